"""What a target keeps of one sequence between passes: the contract of every kind of state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Saved(NamedTuple):
    """What rows of a state hold, apart from the state. It is not changed any more.

    Args:
        num_rows: how many.
        num_bytes: the memory that it takes.
        content: as the kind of state has it.
    """

    num_rows: int
    num_bytes: int
    content: Any


class State(Protocol):
    """The state of one sequence. A decoder makes it, and its passes read and write it.

    Rows are counted like tokens, from the start of the sequence. The first `length` of them are
    *committed*; what passes write comes after them and is *pending*. How a pass writes and reads is
    between a decoder and its kind of state: keys and values by rows (`kv.KeyValueCache`), or the
    value after a row (`snapshots.SnapshotState`). Every kind has to satisfy the following:

    - A pass never changes what is committed. It can be run again, or replaced by another one.
    - The rows of a pass are committed by `keep`: all rows of a chain, or those on a path of a tree.
    - `keep` and `cut` may fall short. They return the length that they reached, with everything up
      to there right and everything after it forgotten, and the caller runs the missing tokens
      again. Keys and values never fall short. A state that each token replaces falls short where
      there is no snapshot of it: `keep` then changes nothing, and `cut` goes back to the nearest
      earlier snapshot.
    - `keep` does not fall short if it gets all rows of a chain, so running tokens again always
      ends.
    """

    @property
    def length(self) -> int:
        """The number of committed tokens."""
        ...

    @property
    def num_bytes(self) -> int:
        """The memory that it holds, in bytes."""
        ...

    def bytes_for(self, capacity: int) -> int:
        """The memory that such a state takes with `capacity` tokens, in bytes.

        Known from what was written: there was a pass before.
        """
        ...

    def begin(self, start: int, end: int) -> None:
        """Before a pass: it writes rows from `start` on and reads none from `end` on.

        `start` is `length`, or follows pending rows if there are too many tokens for one pass.
        Pending rows from `start` on are forgotten.
        """
        ...

    def keep(self, rows: Sequence[int]) -> int:
        """Commit pending rows, in rising order, as the tokens from `length` on.

        Returns:
            The length that was reached: the old one plus the rows, or just the old one.
        """
        ...

    def cut(self, length: int) -> int:
        """Forget all tokens from `length` on, and what is pending.

        Returns:
            The length that was reached, at most `length`.
        """
        ...

    def save(self, start: int, end: int) -> Saved:
        """What committed rows from `start` to `end` add to those before them.

        Both are ends of what one `keep` committed, or `end` lies in what the last one did.
        """
        ...

    def load(self, saved: Saved) -> None:
        """Commit, as the rows from `length` on, what a state saved that held the same before."""
        ...
