"""The head of a GGUF file, read and checked before anything trusts it.

A GGUF file is a head (magic, version, counts, key-value pairs, table of tensors) and, from the
next aligned byte on, the tensors. All that is known here is where things lie, and whether the
file holds them: a file cut short anywhere is found without reading the tensors.

Source: the GGUF specification, version 3 (ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paceline.errors import InvalidInput, ModelError, UnsupportedModel

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"} | {
    12: "d"
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies.

    Args:
        name: its GGUF name.
        shape: outermost dimension first, as in torch.
        type_id: how it is stored (`gguf.GGMLQuantizationType`).
        offset: of its first byte in the file.
        size: in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Head:
    """What a GGUF file says before its tensors.

    Args:
        path: of the file.
        metadata: the key-value pairs; arrays are lists.
        tensors: the table of tensors, in the order of the file.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]

    @property
    def architecture(self) -> str:
        """Such as `llama` or `qwen2`."""
        return str(self.metadata["general.architecture"])


def read_head(path: Path) -> Head:
    """Read the head of `path` and check that the file holds every tensor that it names.

    Raises:
        InvalidInput: the file is not GGUF.
        ModelError: it is damaged or cut short, or cannot be read.
        UnsupportedModel: it is one part of several, or holds no model.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise InvalidInput(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                head = _Reader(path, data).head()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    if (parts := head.metadata.get("split.count", 1)) not in (0, 1):
        raise UnsupportedModel(
            f"{path} is one part of a model that is split over {parts} files; join them first "
            "(`llama-gguf-split --merge`)"
        )
    if (kind := head.metadata.get("general.type", "model")) != "model":
        raise UnsupportedModel(f"{path} holds no model but a GGUF of type {kind!r}")
    return head


class _Reader:
    """A place in the file that moves on as values are read, and never past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 4

    def head(self) -> Head:
        (version,) = self.scalars("I", 1)
        if version not in _VERSIONS:
            raise ModelError(
                f"{self.path} is GGUF version {version}; this reads little-endian versions "
                f"{' and '.join(map(str, _VERSIONS))}"
            )
        num_tensors, num_pairs = self.scalars("Q", 2)
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self.string()
            metadata[key] = self.value(self.scalars("I", 1)[0])
        table = [self.entry() for _ in range(num_tensors)]
        if "general.architecture" not in metadata:
            raise self.damaged("it names no architecture")
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise self.damaged(f"its alignment is {alignment!r}")
        start = -(-self.position // alignment) * alignment
        tensors = tuple(self.placed(start, *entry) for entry in table)
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise self.damaged("two tensors have the same name")
        return Head(self.path, metadata, tensors)

    def damaged(self, reason: str) -> ModelError:
        return ModelError(f"{self.path} is damaged or cut short: {reason}; fetch it again")

    def take(self, size: int) -> int:
        """Move on by `size` bytes and return where they begin."""
        begin = self.position
        if size > len(self.data) - begin:
            raise self.damaged(
                f"its head needs {size} bytes at {begin} and the file has {len(self.data)}"
            )
        self.position += size
        return begin

    def scalars(self, code: str, count: int) -> tuple[Any, ...]:
        begin = self.take(count * struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{count}{code}", self.data, begin)

    def string(self) -> str:
        (length,) = self.scalars("Q", 1)
        begin = self.take(length)
        try:
            return self.data[begin : begin + length].decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"the text at byte {begin} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalars(_SCALARS[kind], 1)[0]
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            (element,), (count,) = self.scalars("I", 1), self.scalars("Q", 1)
            if element in _SCALARS:
                return list(self.scalars(_SCALARS[element], count))
            if element == _STRING:
                return [self.string() for _ in range(count)]
            raise self.damaged(f"it holds an array of type {element}")
        raise self.damaged(f"it holds a value of type {kind}")

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        (num_dimensions,) = self.scalars("I", 1)
        # The file counts dimensions from the innermost.
        shape = tuple(reversed(self.scalars("Q", num_dimensions)))
        (type_id,), (offset,) = self.scalars("I", 1), self.scalars("Q", 1)
        return name, shape, type_id, offset

    def placed(
        self, start: int, name: str, shape: tuple[int, ...], type_id: int, offset: int
    ) -> TensorEntry:
        sizes = _block_sizes()
        if type_id not in sizes:
            raise self.damaged(f"tensor {name!r} is stored in the unknown way {type_id}")
        block, block_bytes = sizes[type_id]
        if not shape or not all(shape) or shape[-1] % block:
            raise self.damaged(f"tensor {name!r} of shape {shape} does not fill blocks of {block}")
        size = math.prod(shape) // block * block_bytes
        if start + offset + size > len(self.data):
            raise self.damaged(
                f"tensor {name!r} ends at byte {start + offset + size} and the file has "
                f"{len(self.data)}"
            )
        return TensorEntry(name, shape, type_id, start + offset, size)


@cache
def _block_sizes() -> dict[int, tuple[int, int]]:
    """For each way of storing: the numbers in a block, and its bytes."""
    from gguf.constants import GGML_QUANT_SIZES

    return {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
