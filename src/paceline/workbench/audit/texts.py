"""Where two texts of servers diverge, and whether the probabilities there explain it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from paceline.workbench.audit.endpoint import Reply, TokenScore

Label = Literal["same", "tie", "fault", "unclassified"]

LEAST_TOLERANCE, MOST_TOLERANCE = 0.02, 0.25
"""Bounds of the gap of two log-probabilities (in nats) that counts as a near-tie.

Between the bounds it is twice the largest difference between the two servers in the log-probability
of a token in the same context. Log-probabilities in bfloat16 are accurate to a few hundredths; a
difference of more than a quarter, for one of the best tokens, is not rounding.
"""

UNSURE = 0.01
"""A log-probability below minus this is not 0 by rounding."""

_WORDS = re.compile(r"\s*(?:\w+|[^\w\s])|\s+$")


@dataclass(frozen=True, slots=True)
class TextParting:
    """The first difference of two greedy texts to one prompt.

    Args:
        label: a tie, a fault, or unclassified.
        character: its position in the text, from 0.
        baseline, candidate: the texts from there on.
        gap: how much more probable the baseline's token is for the baseline than the candidate's,
            in nats; a lower bound if `at_least`; None if it is unknown.
        at_least: whether the candidate's token is not among those that the baseline reports.
        reason: why it could not be classified.
    """

    label: Label
    character: int
    baseline: str
    candidate: str
    gap: float | None = None
    at_least: bool = False
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The difference as a part of a row of evidence."""
        return {
            "character": self.character,
            "baseline": self.baseline,
            "candidate": self.candidate,
            "gap": self.gap,
            "gap_is_a_lower_bound": self.at_least,
            "reason": self.reason,
        }


def words(text: str) -> tuple[str, ...]:
    """A text as words and punctuation, each with the space before it: units of two-sample tests.

    >>> words("Yes, it is.")
    ('Yes', ',', ' it', ' is', '.')
    """
    return tuple(_WORDS.findall(text))


def first_difference(one: str, other: str) -> int | None:
    """The first character at which two texts differ; None if they are equal.

    >>> first_difference("abc", "abd"), first_difference("ab", "abc"), first_difference("a", "a")
    (2, 2, None)
    """
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def part(
    baseline: str, candidate: str, scored: Reply | None, *, tolerance: float
) -> TextParting | None:
    """Compare two greedy texts and classify the first difference; None if they are equal.

    Args:
        baseline, candidate: the texts.
        scored: the baseline's answer again, with log-probabilities; None if it gives none.
        tolerance: the largest gap of a near-tie, in nats.

    Returns:
        A tie if, for the baseline, the candidate's token is as probable as its own, up to
        `tolerance`; a fault if it is not; unclassified if that is unknown.

    Example:
        >>> scores = (TokenScore("yes", -0.70, (("yes", -0.70), ("no", -0.71))),)
        >>> part("yes", "no", Reply("yes", scores=scores), tolerance=0.02).label
        'tie'
    """
    place = first_difference(baseline, candidate)
    if place is None:
        return None
    shown = baseline[place : place + 24], candidate[place : place + 24]
    if scored is None or not scored.scores:
        return TextParting(
            "unclassified", place, *shown, reason="the baseline gives no log-probabilities"
        )
    common = first_difference(baseline, scored.text)
    if common is not None and common < place:
        return TextParting(
            "unclassified",
            place,
            *shown,
            reason="the baseline answered differently when asked for log-probabilities",
        )
    found = _score_at(scored.scores, place)
    if found is None:
        return TextParting(
            "unclassified",
            place,
            *shown,
            reason="the baseline reports no log-probability where the texts diverge",
        )
    score, start = found
    gap, at_least = _gap(score, candidate[start:])
    if gap is None:
        return TextParting(
            "unclassified",
            place,
            *shown,
            reason="the baseline reports no other token where the texts diverge",
        )
    label: Label = "tie" if gap <= tolerance and not at_least else "fault"
    return TextParting(label, place, *shown, gap, at_least)


def _score_at(scores: tuple[TokenScore, ...], place: int) -> tuple[TokenScore, int] | None:
    """The token that contains the character `place`, and where it starts."""
    start = 0
    for score in scores:
        end = start + len(score.text)
        if place < end:
            return score, start
        start = end
    # The answer ended here: servers that report the end token give it a special text, or none.
    if scores and not scores[-1].text and place == start:
        return scores[-1], start
    return None


def _gap(score: TokenScore, rest: str) -> tuple[float | None, bool]:
    """How much less probable the first token of `rest` is, and whether that is only a bound.

    If `rest` starts with several tokens, this is the most probable one: the text does not show
    which of them it was.
    """
    others = [(token, value) for token, value in score.top if token != score.text]
    if not others:
        return None, False
    best = max(score.logprob, score.top[0][1])
    matching = [value for token, value in others if token and rest.startswith(token)]
    if matching:
        return best - max(matching), False
    if not rest:  # the candidate ended: which of the others is the end token is unknown
        return best - max(value for _, value in others), False
    return best - min(value for _, value in others), True


def deviations(one: Reply, other: Reply) -> list[float]:
    """The differences of two servers' log-probabilities in their common beginning, in nats.

    They are those of the chosen tokens, and of the `TOP` tokens that both report; the two
    log-probabilities are of the same context.
    """
    found: list[float] = []
    for ours, theirs in zip(one.scores or (), other.scores or (), strict=False):
        known = dict(theirs.top)
        found += [abs(value - known[token]) for token, value in ours.top[:2] if token in known]
        if ours.text != theirs.text:
            break
    return found


def all_zero(reply: Reply) -> bool:
    """Whether every log-probability is exactly 0: no model gives that, so they are not computed."""
    return bool(reply.scores) and all(score.logprob == 0.0 for score in reply.scores or ())


def made_up(candidate: Reply, baseline: Reply) -> list[tuple[int, str, float]]:
    """Where a server reports a log-probability of exactly 0 and the other one does not.

    Only places where both have the same tokens in the same context, and where the token was clearly
    not certain for the baseline: position, token, and the baseline's log-probability.
    """
    found = []
    for place, (theirs, ours) in enumerate(
        zip(candidate.scores or (), baseline.scores or (), strict=False)
    ):
        if theirs.text != ours.text:
            break
        if theirs.logprob == 0.0 and ours.logprob < -UNSURE:
            found.append((place, theirs.text, ours.logprob))
    return found
