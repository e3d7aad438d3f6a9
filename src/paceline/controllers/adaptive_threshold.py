"""A confidence threshold that follows the acceptance.

Source: Draft & Verify, Zhang et al. 2309.08168, section 3.4; the rule itself is in
`math.threshold`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.checks import require_finite, require_int
from paceline.core.drafts import Budget, Outcome
from paceline.core.target import Opening
from paceline.sampling.threshold import Threshold, next_threshold


@dataclass(frozen=True, slots=True)
class AdaptiveThresholdController:
    """Stop after an unsure token; what counts as unsure follows what is accepted.

    The threshold rises while less than `aim` is accepted. While more is, it falls where drafts
    stop early, and stays where they run to their full length. The token after which a draft stops
    is kept.

    Args:
        num_draft_tokens: the longest draft.
        threshold: the first threshold: .8 in the paper for greedy decoding, .5 above temperature 0.
        aim: the acceptance that is aimed at.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "adaptive-threshold"

    num_draft_tokens: int = 8
    threshold: float = 0.8
    aim: float = 0.9

    def __post_init__(self) -> None:
        require_int("num_draft_tokens", self.num_draft_tokens, low=0)
        require_finite(self, "threshold", self.threshold, low=0.0, high=1.0)
        require_finite(self, "aim", self.aim, low=0.0, high=1.0)

    def open(self, opening: Opening = Opening()) -> AdaptiveThresholdSession:
        """See `protocols.Controller.open`."""
        return AdaptiveThresholdSession(self)


class AdaptiveThresholdSession:
    """See `protocols.ControllerSession`."""

    def __init__(self, settings: AdaptiveThresholdController) -> None:
        self._settings, self._threshold = settings, Threshold(settings.threshold)

    def budget(self) -> Budget:
        """See `protocols.ControllerSession.budget`."""
        longest = self._settings.num_draft_tokens
        return Budget(longest, min_confidence=self._threshold.value)

    def observe(self, outcome: Outcome) -> None:
        """See `protocols.ControllerSession.observe`."""
        drafted = outcome.draft.max_path_length
        if drafted:
            self._threshold = next_threshold(
                self._threshold,
                outcome.num_accepted_tokens,
                drafted,
                reached_end=drafted >= outcome.budget.num_draft_tokens,
                aim=self._settings.aim,
            )
