"""Stop before a token whose acceptance is bounded too low by the entropy of its law.

Source: AdaEDL, Agrawal et al. 2410.18351: acceptance is at least 1 - sqrt(gamma H(q)), gamma = .2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.checks import require_finite, require_int
from paceline.core.drafts import Budget, Outcome
from paceline.core.target import Opening
from paceline.sampling.threshold import Threshold, next_threshold


@dataclass(frozen=True, slots=True)
class AdaEDLController:
    """Draft while the entropy bound on acceptance is at least lambda, which follows the acceptance.

    A drafter that has a law stops *before* it draws, so nothing is dropped. The bound itself is
    `math.entropy.acceptance_bound`.

    Args:
        num_draft_tokens: the longest draft.
        bound: lambda at first.
        aim: the acceptance aimed at: lambda rises while less is accepted, and falls while more is.
        step: how far lambda moves at once, 0 to hold it.

    The paper lets lambda follow the running acceptance; the form here, with its constants, is that
    of Draft & Verify (`math.threshold`).

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "adaedl"

    num_draft_tokens: int = 7
    bound: float = 0.4
    aim: float = 0.9
    step: float = 0.01

    def __post_init__(self) -> None:
        require_int("num_draft_tokens", self.num_draft_tokens, low=0)
        for name in ("bound", "aim", "step"):
            require_finite(self, name, getattr(self, name), low=0.0, high=1.0)

    def open(self, opening: Opening = Opening()) -> AdaEDLSession:
        """See `protocols.Controller.open`."""
        return AdaEDLSession(self)


class AdaEDLSession:
    """See `protocols.ControllerSession`."""

    def __init__(self, settings: AdaEDLController) -> None:
        self._settings, self._bound = settings, Threshold(settings.bound)

    def budget(self) -> Budget:
        """See `protocols.ControllerSession.budget`."""
        return Budget(self._settings.num_draft_tokens, entropy_bound=self._bound.value)

    def observe(self, outcome: Outcome) -> None:
        """See `protocols.ControllerSession.observe`."""
        settings, drafted = self._settings, outcome.draft.max_path_length
        if drafted:
            self._bound = next_threshold(
                self._bound,
                outcome.num_accepted_tokens,
                drafted,
                reached_end=False,
                aim=settings.aim,
                step=settings.step,
            )
        elif outcome.budget.num_draft_tokens > 0:
            # Every first token was held too doubtful; unless lambda falls, none is tried again.
            self._bound = Threshold(max(self._bound.value - settings.step, 0.0))
