"""The header of a GGUF file, read and checked before it is relied on.

A GGUF file is a header (magic, version, counts, key-value pairs, table of tensors) and, from the
next aligned byte on, the tensors. This module only determines where things are and whether the file
holds them: a truncated file is detected without reading the tensors.

Source: the GGUF specification, version 3 (ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import re
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
    """The location of one tensor.

    Args:
        name: its GGUF name.
        shape: outermost dimension first, as in torch.
        type_id: its storage type (`gguf.GGMLQuantizationType`).
        offset: the position of its first byte in the file.
        size: in bytes.
        path: the file that contains it.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    size: int
    path: Path


@dataclass(frozen=True, slots=True)
class Head:
    """The header of a GGUF file.

    Args:
        path: the file, or the first one if the model is split over several.
        metadata: the key-value pairs; arrays are lists.
        tensors: the table of tensors, in the order of the files.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]

    @property
    def architecture(self) -> str:
        """The architecture, such as `llama` or `qwen2`."""
        return str(self.metadata["general.architecture"])


def read_head(path: Path) -> Head:
    """Read the header of `path` and check that the file holds every tensor that it lists.

    If a model is split over several files (`-00001-of-0000N.gguf`), any part may be given; all of
    them are read and must be in one folder.

    Raises:
        InvalidInput: the file is not a GGUF file.
        ModelError: it is damaged, truncated or unreadable, or a part is missing.
        UnsupportedModel: it does not contain a model, or is a part whose name does not say so.
    """
    parts = split_paths(path)
    heads = [_read_one(part) for part in parts]
    head = heads[0]
    for number, one in enumerate(heads):
        count, no = one.metadata.get("split.count", 1), one.metadata.get("split.no", 0)
        if (max(1, count), no) != (len(parts), number):
            raise UnsupportedModel(
                f"{one.path} is part {no + 1} of a model that is split over {count} files; join "
                "them first (`llama-gguf-split --merge`), or name each file accordingly "
                f"(...-{no + 1:05}-of-{count:05}.gguf)"
            )
    if (kind := head.metadata.get("general.type", "model")) != "model":
        raise UnsupportedModel(f"{head.path} does not contain a model but a GGUF of type {kind!r}")
    tensors = tuple(entry for one in heads for entry in one.tensors)
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise ModelError(f"{head.path} is damaged: two of its parts contain the same tensor")
    return Head(head.path, head.metadata, tensors)


def split_paths(path: Path) -> tuple[Path, ...]:
    """All files of a model, in order, whichever of them `path` is.

    Raises:
        ModelError: one is missing.
    """
    found = _PART.fullmatch(path.name)
    if found is None:
        return (path,)
    stem, width, total = found["stem"], len(found["no"]), int(found["count"])
    names = [f"{stem}-{no:0{width}}-of-{found['count']}.gguf" for no in range(1, total + 1)]
    parts = tuple(path.with_name(name) for name in names)
    if lost := [part.name for part in parts if not part.is_file()]:
        raise ModelError(
            f"{path} is one of {total} files of a model, and {', '.join(lost[:3])} "
            f"{'is' if len(lost) == 1 else 'are'} not beside it; fetch all of them into one folder"
        )
    return parts


_PART = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")


def _read_one(path: Path) -> Head:
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise InvalidInput(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).head()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error


class _Reader:
    """A position in the file that advances as values are read, but never past the end."""

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
        if "general.architecture" not in metadata and not metadata.get("split.no"):
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
        return ModelError(f"{self.path} is damaged or truncated: {reason}; fetch it again")

    def take(self, size: int) -> int:
        """Advance by `size` bytes and return where they begin."""
        begin = self.position
        if size > len(self.data) - begin:
            raise self.damaged(
                f"its header needs {size} bytes at {begin} and the file has {len(self.data)}"
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
        # The file lists dimensions from the innermost.
        shape = tuple(reversed(self.scalars("Q", num_dimensions)))
        (type_id,), (offset,) = self.scalars("I", 1), self.scalars("Q", 1)
        return name, shape, type_id, offset

    def placed(
        self, start: int, name: str, shape: tuple[int, ...], type_id: int, offset: int
    ) -> TensorEntry:
        sizes = _block_sizes()
        if type_id not in sizes:
            raise self.damaged(f"tensor {name!r} has the unknown storage type {type_id}")
        block, block_bytes = sizes[type_id]
        if not shape or not all(shape) or shape[-1] % block:
            raise self.damaged(f"tensor {name!r} of shape {shape} does not fill blocks of {block}")
        size = math.prod(shape) // block * block_bytes
        if start + offset + size > len(self.data):
            raise self.damaged(
                f"tensor {name!r} ends at byte {start + offset + size} and the file has "
                f"{len(self.data)}"
            )
        return TensorEntry(name, shape, type_id, start + offset, size, self.path)


@cache
def _block_sizes() -> dict[int, tuple[int, int]]:
    """For each storage type: the values per block, and the bytes per block."""
    from gguf.constants import GGML_QUANT_SIZES

    return {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
