"""Builds a `DenseDecoder` from the files or the weights of a model.

The weights are packed one layer at a time, so that the peak memory is hardly more than the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.kernels import attention, row_operations
from paceline.kernels.packing import Storage, make_linear, row_costs
from paceline.kernels.shared import SharedLinear
from paceline.targets.dense.architecture import Architecture
from paceline.targets.dense.checkpoint import Checkpoint
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.dense.weights import WeightReader, packed


def load(
    folder: Path,
    config: Any,
    *,
    dtype: torch.dtype,
    storage: Storage = "auto",
    head_storage: Storage = "auto",
    head_ids: Tensor | None = None,
) -> DenseDecoder:
    """Load from a folder in Hugging Face layout, layer by layer.

    Args:
        folder: holds `*.safetensors`.
        config: the `transformers` configuration.
        dtype: of the activations and dense weights.
        storage: how the layers' weights are kept.
        head_storage: how the output head is kept.
        head_ids: cut the head to these tokens.

    Raises:
        UnsupportedModel: see `Architecture.of`.
        ModelError: a weight is missing, unknown to the model, or of another size than the
            configuration says.
    """
    return from_weights(
        Checkpoint(folder),
        config,
        dtype=dtype,
        storage=storage,
        head_storage=head_storage,
        head_ids=head_ids,
    )


def from_weights(
    weights: Mapping[str, Tensor],
    config: Any,
    *,
    dtype: torch.dtype,
    storage: Storage = "auto",
    head_storage: Storage = "auto",
    head_ids: Tensor | None = None,
    kind: type[DenseDecoder] = DenseDecoder,
) -> DenseDecoder:
    """Build a decoder of class `kind` from named weights, for example a model's `state_dict()`.

    See `load`.
    """
    shape = Architecture.of(config)
    reader = WeightReader(weights, shape, config.intermediate_size, dtype, partial(packed, storage))
    with torch.inference_mode():
        # Only the rows of the tokens that come up are read, so the embedding can stay in the
        # mapped file.
        embedding = reader.embedding()
        layers = tuple(reader.layer(f"model.layers.{number}") for number in range(shape.num_layers))
        norm = reader.vector("model.norm.weight", shape.hidden_size)
        head = reader.head()
        reader.check_all_read()
        chosen = head if head_ids is None else head[head_ids]
        products = make_linear(chosen.to(dtype), None, head_storage)
    prepare_kernels(shape, dtype)
    return kind(
        shape,
        embedding,
        layers,
        norm,
        products,
        head_ids,
        dtype,
        whole_head=None if head_ids is None else head,
        row_costs=row_costs((layer.gate_up for layer in layers), shape.hidden_size, dtype),
    )


def over(
    weights: Mapping[str, Tensor],
    shape: Architecture,
    intermediate_size: int,
    *,
    row_costs: Mapping[int, float] | None = None,
) -> DenseDecoder:
    """A decoder that shares the weights of their owner and reads them in place.

    Takes hardly any time or memory. In-place changes of the weights are seen.

    Args:
        weights: by name, all of one dtype, on the CPU.
        shape: the architecture.
        intermediate_size: of the gated units.
        row_costs: see `kernels.packing.row_costs`.

    Raises:
        ModelError: a weight is missing, or has another size than the architecture.
    """
    dtype = weights["model.embed_tokens.weight"].dtype
    reader = WeightReader(weights, shape, intermediate_size, dtype, SharedLinear)
    layers = [reader.layer(f"model.layers.{number}") for number in range(shape.num_layers)]
    norm = reader.vector("model.norm.weight", shape.hidden_size)
    head = SharedLinear([reader.head()], [None])
    prepare_kernels(shape, dtype)
    return DenseDecoder(
        shape, reader.embedding(), layers, norm, head, None, dtype, row_costs=row_costs
    )


def prepare_kernels(shape: Architecture, dtype: torch.dtype) -> None:
    """Compile and time the kernels that passes of this shape use, so that no pass waits for it."""
    if dtype is torch.bfloat16:
        row_operations.prepare()
        attention.prepare(shape.head_dim)
