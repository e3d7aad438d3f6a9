"""Keys and values of one sequence: written in place, cut by length, never copied."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.errors import UnsupportedModel
from paceline.kernels.attention import KEYS
from paceline.targets.state.protocol import Saved, State

SLACK = 64
"""Rows beyond the capacity, for draft and padding rows that are scored but not kept."""

BLOCK = KEYS
"""The rows of a cache are a multiple of this, because kernels read them in blocks."""


class KeyValueCache:
    """Keys and values of every layer, `[heads, capacity + SLACK or more, head_dim]` each.

    A `protocol.State` that can be cut anywhere, so that `keep` and `cut` never fall short.

    A layer is allocated when it is first written, for the whole capacity, so that no tensor ever
    moves; on a CPU, memory pages are taken only when they are written to. Only `reserve`, for a
    draft of more than SLACK nodes near the end of the capacity, makes the layers move once. The
    memory starts as zeros: rows beyond the end are masked, but a mask does not stop NaN.

    Args:
        capacity: the most tokens that will be kept.
    """

    def __init__(self, capacity: int) -> None:
        self.rows = 0
        self.reserve(capacity + SLACK)
        self.length = 0
        self._allocated: dict[int, int] = {}
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """See `protocol.State.num_bytes`."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer)

    def bytes_for(self, capacity: int) -> int:
        """See `protocol.State.bytes_for`."""
        return self.num_bytes // self.rows * _whole_blocks(capacity + SLACK)

    def begin(self, start: int, end: int) -> None:
        """See `protocol.State.begin`."""
        self.reserve(end)

    def reserve(self, rows: int) -> None:
        """Make room for this many rows; the layers grow when they are next written."""
        self.rows = max(self.rows, _whole_blocks(rows))

    def write(self, layer: int, keys: Tensor, values: Tensor, start: int) -> None:
        """Write rows `[heads, n, head_dim]` at `start`. The length does not change."""
        if self._allocated.get(layer, 0) < self.rows:
            self._allocate(layer, keys, values, start)
        end = start + keys.shape[1]
        self._keys[layer][:, start:end] = keys
        self._values[layer][:, start:end] = values

    def _allocate(self, layer: int, keys: Tensor, values: Tensor, start: int) -> None:
        """Give a layer all rows; the first `start` that it has stay."""
        for store, rows in ((self._keys, keys), (self._values, values)):
            heads, _, width = rows.shape
            longer = rows.new_zeros(heads, self.rows, width)
            if layer in store:
                longer[:, :start] = store[layer][:, :start]
            store[layer] = longer
        self._allocated[layer] = self.rows

    def read(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        """Views of the first `end` rows of a layer."""
        return self._keys[layer][:, :end], self._values[layer][:, :end]

    @torch.inference_mode()  # as in the passes: inference tensors can be changed in this mode only
    def keep(self, rows: Sequence[int]) -> int:
        """See `protocol.State.keep`.

        The rows of a chain are in place already; those of a tree's path are moved down.
        """
        start = self.length
        self.length += len(rows)
        if list(rows) == list(range(start, self.length)):
            return self.length
        index = torch.tensor(rows)
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[:, start : self.length] = tensor[:, index.to(tensor.device)]
        return self.length

    def cut(self, length: int) -> int:
        """See `protocol.State.cut`."""
        self.length = min(self.length, length)
        return self.length

    @torch.inference_mode()
    def save(self, start: int, end: int) -> Saved:
        """See `protocol.State.save`."""
        keys, values = (
            {layer: tensor[:, start:end].clone() for layer, tensor in store.items()}
            for store in (self._keys, self._values)
        )
        num_bytes = sum(tensor.nbytes for tensor in (*keys.values(), *values.values()))
        return Saved(end - start, num_bytes, (keys, values))

    @torch.inference_mode()
    def load(self, saved: Saved) -> None:
        """See `protocol.State.load`."""
        self.reserve(self.length + saved.num_rows)
        keys, values = saved.content
        for layer in keys:
            self.write(layer, keys[layer], values[layer], self.length)
        self.length += saved.num_rows

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, whole, in layer order."""
        return [(self._keys[layer], self._values[layer]) for layer in sorted(self._keys)]


def _whole_blocks(rows: int) -> int:
    return -(-rows // BLOCK) * BLOCK


def keys_and_values(state: State) -> KeyValueCache:
    """Narrow a state to keys and values.

    Raises:
        UnsupportedModel: the state is of another kind.
    """
    if not isinstance(state, KeyValueCache):
        raise UnsupportedModel(
            "this needs a model whose state is its keys and values alone; the model has a state of "
            f"another kind ({type(state).__name__})"
        )
    return state
