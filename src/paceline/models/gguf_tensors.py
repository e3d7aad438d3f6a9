"""The tensors of a GGUF file, one at a time, under the names and in the layout of transformers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paceline.errors import UnsupportedModel
from paceline.models.gguf_architectures import ARCHITECTURES, PERMUTED
from paceline.models.gguf_file import Head, TensorEntry

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 22


def checkpoint_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of the checkpoint; a tied one only under its first name."""
    seen: set[int] = set()
    shapes = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            shapes[name] = tuple(tensor.shape)
        seen.add(id(tensor))
    return shapes


def without_place(head: Head, name: str) -> UnsupportedModel:
    """The error for a tensor that the model does not take."""
    return UnsupportedModel(
        f"{head.path} holds tensor {name!r}, which has no place in a {head.architecture!r} model "
        "of transformers; leaving it out would change the result"
    )


def converted_tensors(head: Head, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the file under the names and in the layout of transformers, in float32."""
    import numpy as np
    import torch
    from transformers import modeling_gguf_pytorch_utils as hf

    known_as = "llama" if head.architecture in PERMUTED else head.architecture
    processor = hf.TENSOR_PROCESSORS.get(known_as, hf.TensorProcessor)(
        config=model.config.to_dict()
    )
    names = _names(head, model, processor)
    fused = _fused(head, names, model.config)
    # Experts are stored as several tensors that fill one; the processor collects them in
    # `gathered`.
    gathered: dict[str, torch.Tensor] = {}
    targets = {t.name: names.get(t.name) or names.get(_stem(t.name)) for t in head.tensors}
    waiting = Counter(targets.values())
    for entry in head.tensors:
        if entry.name == "rope_freqs.weight":
            continue  # `rope_parameters` has turned it into the config
        target = targets[entry.name]
        if target is None and entry.name not in fused and entry.name != "output.weight":
            raise without_place(head, entry.name)
        weights = _dequantised(entry)
        for name, begin, end in fused.get(entry.name, [(entry.name, 0, len(weights))]):
            result = processor.process(
                weights=weights[begin:end],
                name=name,
                tensor_key_mapping=names,
                parsed_parameters={"tensors": gathered},
            )
            if result.name is not None:
                if result.name not in names:
                    raise without_place(head, result.name)
                target_name = names[result.name]
                tensor = torch.from_numpy(np.ascontiguousarray(result.weights))
                del result  # so that the consumer can free the tensor
                yield target_name, tensor
                del tensor
        del weights
        waiting[target] -= 1
        for name in [name for name in gathered if not waiting[name]]:
            yield name, gathered.pop(name)


def _names(head: Head, model: Any, processor: Any) -> dict[str, str]:
    """Maps GGUF names to those of transformers."""
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    try:
        # transformers walks through every module and builds a table at each, for the few models
        # whose names begin further down. For all others the top level suffices.
        kind = head.architecture if head.architecture in ARCHITECTURES else None
        names = get_gguf_hf_weights_map(_TopLevel(model), processor, kind)
        if not set(checkpoint_shapes(model)) <= set(names.values()):
            names = get_gguf_hf_weights_map(model, processor, kind)
    except NotImplementedError as error:
        raise UnsupportedModel(f"{head.path}: {error}") from error
    return dict(names)


def _fused(head: Head, names: dict[str, str], config: Any) -> dict[str, list[tuple[str, int, int]]]:
    """Where queries, keys and values are in a tensor that holds all three, and the model does not.

    Files of 2023 are like this, those of Phi-2 say.
    """
    fused = {}
    for entry in head.tensors:
        parts = [entry.name.replace(".attn_qkv.", f".attn_{part}.") for part in "qkv"]
        if entry.name in names or entry.name in parts or not set(parts) <= set(names):
            continue
        heads, kept = config.num_attention_heads, config.num_key_value_heads
        dim = entry.shape[0] // (heads + 2 * kept)
        ends = [heads * dim, (heads + kept) * dim, entry.shape[0]]
        fused[entry.name] = list(zip(parts, [0, *ends], ends, strict=False))
    return fused


class _TopLevel:
    """The part of a model from which the name table is built, without its modules."""

    def __init__(self, model: Any) -> None:
        self.config, self.state_dict = model.config, model.state_dict

    def named_children(self) -> tuple[()]:
        return ()


def _stem(name: str) -> str:
    return name.removesuffix(".weight")


def _dequantised(entry: TensorEntry) -> Any:
    """One tensor in float32, read and unpacked in pieces so that there is never a second copy."""
    import numpy as np
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind, rows = GGMLQuantizationType(entry.type_id), math.prod(entry.shape[:-1])
    raw = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
    out = np.empty((rows, entry.shape[-1]), dtype=np.float32)
    row_bytes, step = entry.size // rows, max(1, _CHUNK // entry.shape[-1])
    with entry.path.open("rb") as file:
        file.seek(entry.offset)
        for begin in range(0, rows, step):
            count = min(step, rows - begin)
            piece = np.frombuffer(file.read(count * row_bytes), dtype=raw.get(kind, np.uint8))
            try:
                out[begin : begin + count] = dequantize(piece.reshape(count, -1), kind)
            except NotImplementedError as error:
                raise UnsupportedModel(
                    f"{entry.path}: {entry.name} is in {kind.name}, {error}"
                ) from error
    return out.reshape(entry.shape)
