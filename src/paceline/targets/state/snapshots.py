"""A state that each token replaces, and that can only go back to snapshots.

Recurrent and linear-attention layers keep such a state: what a token adds cannot be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from paceline.targets.state.protocol import Saved

T = TypeVar("T")


class SnapshotState(Generic[T]):
    """See `protocol.State`. The value after a token is a snapshot that is not changed any more.

    A pass reads the value `at` its start and may write the value after any of its rows. For a
    chain it has to write at least the one after the last row, because `keep` may not fall short
    there. The more rows are written, the fewer tokens have to be run again: with a value after
    every row `keep` never falls short, not even for trees, because the value after a node is the
    value after the path to it.

    Committed snapshots are thinned so that their distances from the end double. A sequence then has
    few of them, and after a `cut` by n tokens about n tokens are run again, or those of one long
    pass.

    Args:
        value: the value before the first token; a tensor, or a container of tensors.
        num_bytes: gives the memory that a value takes, in bytes.

    Example:
        >>> state = SnapshotState(0, num_bytes=lambda value: 8)
        >>> for row in range(3):
        ...     state.begin(row, row + 1)
        ...     state.write(row, state.at(row) + 10)
        ...     reached = state.keep([row])
        >>> state.length, state.at(3), state.cut(1), state.at(1)
        (3, 30, 1, 10)
    """

    def __init__(self, value: T, num_bytes: Callable[[T], int]) -> None:
        self._snapshots: list[tuple[int, T]] = [(0, value)]
        self._pending: dict[int, T] = {}
        self._num_bytes = num_bytes

    @property
    def length(self) -> int:
        """See `protocol.State.length`."""
        return self._snapshots[-1][0]

    @property
    def num_bytes(self) -> int:
        """See `protocol.State.num_bytes`."""
        values = [*(value for _, value in self._snapshots), *self._pending.values()]
        return sum(self._num_bytes(value) for value in values)

    def bytes_for(self, capacity: int) -> int:
        """See `protocol.State.bytes_for`: the snapshots of a thinned text, and one to come."""
        most = max(self._num_bytes(value) for _, value in self._snapshots)
        return most * (2 * capacity.bit_length() + 2)

    def begin(self, start: int, end: int) -> None:
        """See `protocol.State.begin`."""
        self._pending = {row: value for row, value in self._pending.items() if row < start}

    def at(self, start: int) -> T:
        """The value that a pass starts from."""
        length, value = self._snapshots[-1]
        return value if start == length else self._pending[start - 1]

    def write(self, row: int, value: T) -> None:
        """Write the value after a row, which may not be committed yet."""
        self._pending[row] = value

    def keep(self, rows: Sequence[int]) -> int:
        """See `protocol.State.keep`."""
        pending, self._pending = self._pending, {}
        if rows and rows[-1] in pending:
            self._snapshots.append((self.length + len(rows), pending[rows[-1]]))
            self._thin()
        return self.length

    def cut(self, length: int) -> int:
        """See `protocol.State.cut`."""
        self._pending = {}
        while self.length > length:
            self._snapshots.pop()
        return self.length

    def save(self, start: int, end: int) -> Saved:
        """See `protocol.State.save`: the value after the rows, which is shared and not copied.

        A state falls short where it has no value after just these rows.
        """
        value = dict(self._snapshots)[end]
        return Saved(end - start, self._num_bytes(value), value)

    def load(self, saved: Saved) -> None:
        """See `protocol.State.load`."""
        self._pending = {}
        self._snapshots.append((self.length + saved.num_rows, saved.content))
        self._thin()

    def _thin(self) -> None:
        """Drop snapshots whose neighbours are close together, given how far back they are."""
        end, kept = self.length, self._snapshots[-1:]
        for older, snapshot in reversed(list(pairwise(self._snapshots[:-1]))):
            newer = kept[-1]
            if end - older[0] > 2 * (end - newer[0]):
                kept.append(snapshot)
        kept.append(self._snapshots[0])
        self._snapshots = kept[::-1]
