"""A safetensors file written tensor by tensor, so that the whole model is never in memory.

The format: eight bytes with the length of the header, a JSON header with the position of each
tensor, then the tensors without gaps. Positions follow from shapes, so the header can be written
first.

Source: the safetensors format (safetensors, README, "Format").
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_PIECE = 1 << 22
_NAMES = {"float32": "F32", "bfloat16": "BF16"}


class TensorFile:
    """A context in which tensors of one dtype are written to `path`, in any order.

    Args:
        path: the new file.
        shapes: the shape of each tensor, by name.
        dtype: the dtype in the file; `write` casts to it.
    """

    def __init__(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
    ) -> None:
        self.path, self.dtype = path, dtype
        self.missing = set(shapes)
        self.written = 0
        head: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._places: dict[str, int] = {}
        position = 0
        for name, shape in shapes.items():
            end = position + math.prod(shape) * dtype.itemsize
            head[name] = {
                "dtype": _NAMES[str(dtype).removeprefix("torch.")],
                "shape": list(shape),
                "data_offsets": [position, end],
            }
            self._places[name], position = position, end
        text = json.dumps(head).encode()
        self._head = text + b" " * (-len(text) % 8)  # to align the tensors
        self.size = position

    def __enter__(self) -> TensorFile:
        self._file = self.path.open("wb")
        self._file.write(struct.pack("<Q", len(self._head)) + self._head)
        return self

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Cast `tensor` and write it to its position. Each tensor is written once."""
        import torch

        self.missing.remove(name)
        self._file.seek(8 + len(self._head) + self._places[name])
        flat = tensor.reshape(-1)
        for begin in range(0, len(flat), _PIECE):
            piece = flat[begin : begin + _PIECE].to(self.dtype)
            self._file.write(piece.view(torch.uint8).numpy().data)
        self.written += tensor.numel() * self.dtype.itemsize

    def __exit__(self, *error: object) -> None:
        # The caller moves the file to its final place: by then the data must be on disk.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
