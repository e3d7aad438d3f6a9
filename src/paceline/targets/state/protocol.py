"""What a target keeps of one sequence between passes, and what every kind of it owes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class State(Protocol):
    """The state of one sequence. A decoder makes it, and its passes read and write it.

    Rows are counted like tokens, from the start of the sequence. The first `length` of them are
    *committed*; what passes write lies after them and is *pending*. How a pass writes and reads is
    between a decoder and its kind of state: keys and values by rows (`kv.KeyValueCache`), or the
    value after a row (`snapshots.SnapshotState`). What every kind owes is below:

    - A pass never changes what is committed. It can be run again, or another can take its place.
    - The rows of a pass are committed by `keep`: all rows of a chain, or those on a path of a tree.
    - `keep` and `cut` may fall short. They return the length that they reached, with everything up
      to there right and everything after it forgotten, and the caller runs the tokens that are
      missing once more. Keys and values never fall short. A state that is replaced at each token
      does, where no snapshot of it was taken: `keep` then changes nothing, and `cut` goes back to
      the nearest snapshot before.
    - `keep` does not fall short where it is given all rows of a chain, so running tokens once more
      always ends.
    """

    @property
    def length(self) -> int:
        """The number of committed tokens."""
        ...

    @property
    def num_bytes(self) -> int:
        """The memory that it holds."""
        ...

    def begin(self, start: int, end: int) -> None:
        """Before a pass: it writes rows from `start` on and reads none from `end` on.

        `start` is `length`, or follows rows that are pending, where tokens are too many for one
        pass. Pending rows from `start` on are forgotten.
        """
        ...

    def keep(self, rows: Sequence[int]) -> int:
        """Commit pending rows, in rising order, as the tokens from `length` on.

        Returns:
            The length that was reached: the old one with the rows, or the old one.
        """
        ...

    def cut(self, length: int) -> int:
        """Forget all tokens from `length` on, and what is pending.

        Returns:
            The length that was reached, at most `length`.
        """
        ...
