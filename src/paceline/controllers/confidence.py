"""Stop after a token that the draft model is unsure of.

Source: `assistant_confidence_threshold` of assisted generation in `transformers`, .4 there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.checks import require_finite, require_int
from paceline.controllers.fixed import FixedSession
from paceline.core.drafts import Budget
from paceline.core.target import Opening


@dataclass(frozen=True, slots=True)
class ConfidenceController:
    """Draft up to `num_draft_tokens`, and stop after a token held less probable than a threshold.

    The token after which a draft stops is kept. For drafters that say how sure they are; others
    draft the whole length.

    Args:
        num_draft_tokens: the longest draft.
        threshold: the confidence below which a draft stops.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "confidence"

    num_draft_tokens: int = 20
    threshold: float = 0.4

    def __post_init__(self) -> None:
        require_int("num_draft_tokens", self.num_draft_tokens, low=0)
        require_finite(self, "threshold", self.threshold, low=0.0, high=1.0)

    def open(self, opening: Opening = Opening()) -> FixedSession:
        """See `protocols.Controller.open`."""
        return FixedSession(Budget(self.num_draft_tokens, min_confidence=self.threshold))
