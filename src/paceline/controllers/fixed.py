"""The same draft length in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.checks import require_int
from paceline.core.drafts import Budget, Outcome
from paceline.core.target import Opening


@dataclass(frozen=True, slots=True)
class FixedController:
    """Draft up to `num_draft_tokens` tokens a round.

    Raises:
        InvalidInput: not a whole number of at least 0.
    """

    name: ClassVar[str] = "fixed"

    num_draft_tokens: int = 5

    def __post_init__(self) -> None:
        require_int("num_draft_tokens", self.num_draft_tokens, low=0)

    def open(self, opening: Opening = Opening()) -> FixedSession:
        """See `protocols.Controller.open`."""
        return FixedSession(Budget(self.num_draft_tokens))


class FixedSession:
    """See `protocols.ControllerSession`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def budget(self) -> Budget:
        """See `protocols.ControllerSession.budget`."""
        return self._budget

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
