"""A confidence threshold that adapts to the acceptance: when to end a draft (Draft & Verify).

A draft ends after a token whose probability under q is below the threshold. The threshold rises
while acceptance is too low, and falls while drafts could have gone on.

Source: Zhang et al., Draft & Verify, arXiv 2309.08168, section 3.3 and equations 4 to 6.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.checks import require_finite
from paceline.errors import InvalidInput

GREEDY_START, SAMPLING_START = 0.8, 0.5
"""The paper's initial threshold: for greedy decoding, and at a temperature above 0."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold and its averaged acceptance.

    Args:
        value: the probability below which a draft ends; the token is kept.
        acceptance: the share of drafted tokens that were accepted, averaged over the rounds with
            weights that halve with each round back.

    Raises:
        InvalidInput: a number is outside [0, 1].
    """

    value: float
    acceptance: float = 0.0

    def __post_init__(self) -> None:
        require_finite(self, "value", self.value, low=0.0, high=1.0)
        require_finite(self, "acceptance", self.acceptance, low=0.0, high=1.0)


def next_threshold(
    threshold: Threshold,
    num_accepted_tokens: int,
    num_draft_tokens: int,
    *,
    reached_end: bool,
    aim: float = 0.9,
    step: float = 0.01,
    keep_acceptance: float = 0.5,
    keep_value: float = 0.9,
) -> Threshold:
    """The threshold after a round. It depends on the past only, as rule 2 of `protocols` requires.

    Args:
        threshold: the threshold before the round.
        num_accepted_tokens: how many tokens of the draft were accepted.
        num_draft_tokens: the length of the draft; a round without a draft changes nothing.
        reached_end: whether the draft was as long as it was allowed to be.
        aim: the acceptance below which the threshold rises.
        step: the distance to the value that the threshold moves towards.
        keep_acceptance: the weight of the previous acceptance.
        keep_value: the weight of the previous value.

    Raises:
        InvalidInput: more tokens accepted than drafted, or a negative number.

    Example:
        >>> after = next_threshold(Threshold(0.8), 3, 4, reached_end=False)
        >>> round(after.value, 6), after.acceptance
        (0.801, 0.375)
    """
    if not 0 <= num_accepted_tokens <= num_draft_tokens:
        raise InvalidInput(
            f"of {num_draft_tokens} draft tokens {num_accepted_tokens} cannot have been accepted"
        )
    if not num_draft_tokens:
        return threshold
    matched = num_accepted_tokens / num_draft_tokens
    acceptance = keep_acceptance * threshold.acceptance + (1 - keep_acceptance) * matched
    goal = threshold.value
    if acceptance < aim:
        goal += step
    elif not reached_end:
        goal -= step
    value = keep_value * threshold.value + (1 - keep_value) * goal
    return Threshold(min(max(value, 0.0), 1.0), acceptance)
