"""From the files or weights of a model to a `DenseDecoder`.

The weights go from the file into their packed form one layer at a time, so that the peak memory is
hardly more than the weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.errors import ModelError
from paceline.kernels import attention, row_operations
from paceline.kernels.linear import Linear
from paceline.kernels.packing import Storage, make_linear, row_costs
from paceline.kernels.shared import SharedLinear
from paceline.targets.dense.architecture import Architecture
from paceline.targets.dense.checkpoint import Checkpoint
from paceline.targets.dense.decoder import DenseDecoder, Layer


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
        ModelError: a weight is missing, has no place, or has another size than the configuration
            says.
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
    """Build a decoder of class `kind` from named weights, a model's `state_dict()` say.

    See `load`.
    """
    shape = Architecture.of(config)
    reader = _Reader(weights, shape, config.intermediate_size, dtype, partial(_packed, storage))
    with torch.inference_mode():
        # Only the rows of the tokens that come up are read, so the embedding may stay where
        # the file is mapped.
        embedding = reader.embedding()
        layers = tuple(reader.layer(number) for number in range(shape.num_layers))
        norm = reader.dense("model.norm.weight")
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
    """A decoder over weights that stay their owner's: it reads them where they lie.

    Takes no time and no memory worth mentioning. Changes of their numbers are seen.

    Args:
        weights: by name, all of one dtype, on the CPU.
        shape: the architecture.
        intermediate_size: of the gated units.
        row_costs: see `kernels.packing.row_costs`.

    Raises:
        ModelError: a weight is missing, or has another size than the architecture.
    """
    dtype = weights["model.embed_tokens.weight"].dtype
    reader = _Reader(weights, shape, intermediate_size, dtype, SharedLinear)
    layers = [reader.layer(number) for number in range(shape.num_layers)]
    norm, head = reader.dense("model.norm.weight"), SharedLinear([reader.head()], [None])
    prepare_kernels(shape, dtype)
    return DenseDecoder(
        shape, reader.embedding(), layers, norm, head, None, dtype, row_costs=row_costs
    )


def prepare_kernels(shape: Architecture, dtype: torch.dtype) -> None:
    """Compile and time the loops that passes of this shape use, so that no pass waits for them."""
    if dtype is torch.bfloat16:
        row_operations.prepare()
        attention.prepare(shape.head_dim)


_IDLE = re.compile(r"rotary_emb\.inv_freq$|^model\.mtp|^mtp\.")
"""Tensors that plain decoding does not read: frequencies that follow from the configuration, and
layers that predict further tokens."""


def without_place(name: str, left: Sequence[str]) -> ModelError:
    """The error for a checkpoint with tensors that the model does not take."""
    return ModelError(
        f"{name}: {len(left)} of its tensors have no place in the model ({', '.join(left[:3])}); "
        "without them it would be another model. Weights quantized in a way that transformers does "
        "not know look like this; use the model in its original precision"
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """The weights of a model, in the dtype and storage that the decoder wants.

    `join` makes one product of weights with the same inputs, and of their biases.
    """

    weights: Mapping[str, Tensor]
    shape: Architecture
    intermediate_size: int
    dtype: torch.dtype
    join: Callable[[Sequence[Tensor], Sequence[Tensor | None]], Linear]
    read: set[str] = field(default_factory=set)

    def check_all_read(self) -> None:
        """Refuse weights without a place: without them the model would be another one.

        Scales of quantized weights, say, or biases that the decoder does not know.
        """
        left = sorted(name for name in set(self.weights) - self.read if not _IDLE.search(name))
        if left:
            raise without_place(self.shape.name, left)

    def raw(self, name: str) -> Tensor:
        """A weight as it lies in the file."""
        if name not in self.weights:
            raise ModelError(
                f"{self.shape.name}: the weight {name!r} is missing; the files are incomplete, or "
                "belong to another model"
            )
        self.read.add(name)
        return self.weights[name].detach()

    def dense(self, name: str) -> Tensor:
        """A weight in the dtype of the activations."""
        return self.raw(name).to(self.dtype)

    def fused(self, names: list[str], outputs: int, inputs: int) -> Linear:
        """The product with several weights at once, `outputs` rows together."""
        parts = [self.dense(f"{name}.weight") for name in names]
        sizes = {part.shape[1] for part in parts}, sum(len(part) for part in parts)
        if sizes != ({inputs}, outputs):
            raise ModelError(
                f"{self.shape.name}: the weights {', '.join(names)} are "
                f"{', '.join(str(tuple(part.shape)) for part in parts)}, and by config.json "
                f"they are {(outputs, inputs)} together; the files do not belong together"
            )
        biased = f"{names[0]}.bias" in self.weights
        return self.join(parts, [self.dense(f"{name}.bias") if biased else None for name in names])

    def layer(self, number: int) -> Layer:
        """One decoder layer."""
        shape, hidden, inner = self.shape, self.shape.hidden_size, self.intermediate_size
        heads, kept = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        at = f"model.layers.{number}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        qk_norms = None
        if f"{attention}.q_norm.weight" in self.weights:
            qk_norms = (
                self.dense(f"{attention}.q_norm.weight"),
                self.dense(f"{attention}.k_norm.weight"),
            )
        return Layer(
            input_norm=self.dense(f"{at}.input_layernorm.weight"),
            qkv=self.fused([f"{attention}.{x}_proj" for x in "qkv"], heads + 2 * kept, hidden),
            qk_norms=qk_norms,
            output=self.fused([f"{attention}.o_proj"], hidden, heads),
            post_norm=self.dense(f"{at}.post_attention_layernorm.weight"),
            gate_up=self.fused([f"{mlp}.gate_proj", f"{mlp}.up_proj"], 2 * inner, hidden),
            down=self.fused([f"{mlp}.down_proj"], hidden, inner),
        )

    def embedding(self) -> Tensor:
        """The embedding `[V, hidden]`, as it lies in the file."""
        found, expected = (
            self.raw("model.embed_tokens.weight"),
            (self.shape.vocab_size, self.shape.hidden_size),
        )
        if found.shape != expected:
            raise ModelError(
                f"{self.shape.name}: the embedding is {tuple(found.shape)}, and config.json "
                f"says {expected}; the files do not belong together"
            )
        return found

    def head(self) -> Tensor:
        """The output head `[V, hidden]`, as it lies in the file.

        A head of its own counts even where the configuration says that it is tied, as in
        transformers. Where neither is there, the files are incomplete.
        """
        tied = self.shape.tied and "lm_head.weight" not in self.weights
        return self.raw("model.embed_tokens.weight" if tied else "lm_head.weight")


def _packed(storage: Storage, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Linear:
    """One product of several weights, of which either all have a bias or none."""
    weight = _joined(weights) if len(weights) > 1 else weights[0]
    known = [bias for bias in biases if bias is not None]
    return make_linear(weight, torch.cat(known) if known else None, storage)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The weights `[out, in]` one after the other.

    They lie in a mapping of their own, which goes back to the system when it is dropped. The heap
    would keep its place, as a hole between the packed weights that are allocated meanwhile.
    """
    rows, width = sum(len(part) for part in parts), parts[0].shape[1]
    memory = mmap(-1, rows * width * parts[0].itemsize)
    joined = torch.frombuffer(memory, dtype=parts[0].dtype).view(rows, width)
    return torch.cat(list(parts), out=joined)
