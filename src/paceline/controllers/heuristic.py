"""Longer after a full success, shorter after any rejection.

Source: the schedule "heuristic" of assisted generation in `transformers`: all accepted, two more;
otherwise one fewer, at least one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.checks import require_int
from paceline.core.drafts import Budget, Outcome
from paceline.core.target import Opening


@dataclass(frozen=True, slots=True)
class HeuristicController:
    """Draft n tokens; all accepted, n + 2 the next time; otherwise max(1, n - 1).

    Args:
        num_draft_tokens: the first length.
        longest: the greatest.

    Raises:
        InvalidInput: not whole numbers of at least 1, or the first above the greatest.
    """

    name: ClassVar[str] = "heuristic"

    num_draft_tokens: int = 5
    longest: int = 64

    def __post_init__(self) -> None:
        require_int("longest", self.longest, low=1)
        require_int("num_draft_tokens", self.num_draft_tokens, low=1, high=self.longest)

    def open(self, opening: Opening = Opening()) -> HeuristicSession:
        """See `protocols.Controller.open`."""
        return HeuristicSession(self.num_draft_tokens, self.longest)


def next_length(length: int, drafted: int, accepted: int) -> int:
    """The length after a round; a round without a draft changes nothing.

    >>> next_length(5, 5, 5), next_length(5, 5, 4), next_length(1, 1, 0), next_length(5, 0, 0)
    (7, 4, 1, 5)
    """
    if not drafted:
        return length
    return length + 2 if accepted == drafted else max(1, length - 1)


class HeuristicSession:
    """See `protocols.ControllerSession`."""

    def __init__(self, length: int, longest: int) -> None:
        self._length, self._longest = length, longest

    def budget(self) -> Budget:
        """See `protocols.ControllerSession.budget`."""
        return Budget(self._length)

    def observe(self, outcome: Outcome) -> None:
        """See `protocols.ControllerSession.observe`."""
        drafted = outcome.draft.max_path_length
        length = next_length(self._length, drafted, outcome.num_accepted_tokens)
        self._length = min(length, self._longest)
