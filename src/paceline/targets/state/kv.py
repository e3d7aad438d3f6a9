"""A key-value cache of one sequence: written in place, cut by length, never copied."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.kernels.attention import KEYS

SLACK = 64
"""Rows beyond the capacity, for drafted and padding rows that are scored but never kept."""

BLOCK = KEYS
"""A cache has a multiple of so many rows, since kernels read them in blocks."""


class KeyValueCache:
    """Keys and values of every layer, `[heads, capacity + SLACK or more, head_dim]` each.

    A layer is allocated when it is first written, for the whole capacity, so that no tensor ever
    moves; on a CPU the pages are only taken when they are written to. Only `reserve`, for a draft
    of more than SLACK nodes near the end of the capacity, makes the layers move once. The memory
    starts as zeros: rows beyond the end are masked, but a mask does not stop NaN.

    Args:
        capacity: the most tokens that will be kept.
    """

    def __init__(self, capacity: int) -> None:
        self.rows = 0
        self.reserve(capacity + SLACK)
        self.length = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def reserve(self, rows: int) -> None:
        """Make room for this many rows; the layers grow when they are next written."""
        self.rows = max(self.rows, -(-rows // BLOCK) * BLOCK)

    def write(self, layer: int, keys: Tensor, values: Tensor, start: int) -> None:
        """Write rows `[heads, n, head_dim]` at `start`. The length does not change."""
        end = start + keys.shape[1]
        for store, rows in ((self._keys, keys), (self._values, values)):
            if layer not in store or store[layer].shape[1] < self.rows:
                heads, _, width = rows.shape
                longer = rows.new_zeros(heads, self.rows, width)
                if layer in store:
                    longer[:, :start] = store[layer][:, :start]
                store[layer] = longer
        self._keys[layer][:, start:end] = keys
        self._values[layer][:, start:end] = values

    def read(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        """Views of the first `end` rows of a layer."""
        return self._keys[layer][:, :end], self._values[layer][:, :end]

    @torch.inference_mode()  # as in the passes: tensors made in this mode change in it alone
    def keep(self, rows: Sequence[int]) -> None:
        """Append the rows with these absolute indices, which lie at or behind the end, in order.

        A chain's rows are where they belong already; those of a tree's path are moved down.
        """
        start = self.length
        self.length += len(rows)
        if list(rows) == list(range(start, self.length)):
            return
        index = torch.tensor(rows)
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[:, start : self.length] = tensor[:, index.to(tensor.device)]

    def cut(self, length: int) -> None:
        """Forget all rows from `length` on."""
        self.length = min(self.length, length)

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, whole, in layer order."""
        return [(self._keys[layer], self._values[layer]) for layer in sorted(self._keys)]
