"""Where two texts of servers part, and whether the probabilities there explain it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from paceline.workbench.audit.endpoint import Reply, TokenScore

Label = Literal["same", "tie", "fault", "unclassified"]

LEAST_TOLERANCE, MOST_TOLERANCE = 0.02, 0.25
"""Bounds of the gap of two log-probabilities (in nats) that is called a near tie.

Between them it is twice the largest difference that the log-probability of one token in one context
had between the two servers. Log-probabilities in bfloat16 are good to some hundredths; a difference
of more than a quarter, in a token that is among the best, is no rounding.
"""

UNSURE = 0.01
"""A token with a log-probability below minus this has one that rounding does not make 0."""

_WORDS = re.compile(r"\s*(?:\w+|[^\w\s])|\s+$")


@dataclass(frozen=True, slots=True)
class TextParting:
    """The first difference of two greedy texts to one prompt.

    Args:
        label: what it is.
        character: where in the text it is, from 0.
        baseline, candidate: what follows there.
        gap: by how much the baseline holds its token to be more probable than the candidate's, in
            nats; a lower bound where `at_least`; None where it is not known.
        at_least: whether the candidate's token is not among those that the baseline tells.
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
        """A part of a row of evidence."""
        return {
            "character": self.character,
            "baseline": self.baseline,
            "candidate": self.candidate,
            "gap": self.gap,
            "gap_is_a_lower_bound": self.at_least,
            "reason": self.reason,
        }


def words(text: str) -> tuple[str, ...]:
    """A text in words and signs, each with the space before it: the units of two-sample tests.

    >>> words("Yes, it is.")
    ('Yes', ',', ' it', ' is', '.')
    """
    return tuple(_WORDS.findall(text))


def first_difference(one: str, other: str) -> int | None:
    """The first character at which two texts differ; None where they are equal.

    >>> first_difference("abc", "abd"), first_difference("ab", "abc"), first_difference("a", "a")
    (2, 2, None)
    """
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def part(
    baseline: str, candidate: str, told: Reply | None, *, tolerance: float
) -> TextParting | None:
    """Compare two greedy texts and classify the first difference; None where they are equal.

    Args:
        baseline, candidate: the texts.
        told: the baseline's answer once more, with log-probabilities; None where it gives none.
        tolerance: the largest gap of a near tie, in nats.

    Returns:
        A tie where the baseline holds the candidate's token to be as probable as its own, up to
        `tolerance`; a fault where it does not; unclassified where that cannot be told.

    Example:
        >>> scores = (TokenScore("yes", -0.70, (("yes", -0.70), ("no", -0.71))),)
        >>> part("yes", "no", Reply("yes", scores=scores), tolerance=0.02).label
        'tie'
    """
    place = first_difference(baseline, candidate)
    if place is None:
        return None
    shown = baseline[place : place + 24], candidate[place : place + 24]
    if told is None or not told.scores:
        return TextParting(
            "unclassified", place, *shown, reason="the baseline gives no log-probabilities"
        )
    common = first_difference(baseline, told.text)
    if common is not None and common < place:
        return TextParting(
            "unclassified",
            place,
            *shown,
            reason="the baseline answered otherwise when asked for log-probabilities",
        )
    found = _score_at(told.scores, place)
    if found is None:
        return TextParting(
            "unclassified",
            place,
            *shown,
            reason="the baseline tells no log-probability where the texts part",
        )
    score, start = found
    gap, at_least = _gap(score, candidate[start:])
    if gap is None:
        return TextParting(
            "unclassified",
            place,
            *shown,
            reason="the baseline tells no other token where the texts part",
        )
    label: Label = "tie" if gap <= tolerance and not at_least else "fault"
    return TextParting(label, place, *shown, gap, at_least)


def _score_at(scores: tuple[TokenScore, ...], place: int) -> tuple[TokenScore, int] | None:
    """The token that holds the character `place`, and where it starts."""
    start = 0
    for score in scores:
        end = start + len(score.text)
        if place < end:
            return score, start
        start = end
    # The answer ended here: servers that tell the end token give it a text of its own, or none.
    if scores and not scores[-1].text and place == start:
        return scores[-1], start
    return None


def _gap(score: TokenScore, rest: str) -> tuple[float | None, bool]:
    """How much less probable the token is that `rest` starts with, and whether it is only a bound.

    Of several tokens that `rest` starts with, the most probable one: which of them it was cannot be
    told from the text.
    """
    others = [(token, value) for token, value in score.top if token != score.text]
    if not others:
        return None, False
    best = max(score.logprob, score.top[0][1])
    matching = [value for token, value in others if token and rest.startswith(token)]
    if matching:
        return best - max(matching), False
    if not rest:  # the candidate ended: which of the others is the end token is not told
        return best - max(value for _, value in others), False
    return best - min(value for _, value in others), True


def deviations(one: Reply, other: Reply) -> list[float]:
    """How far apart two servers hold the tokens of their common beginning, in nats.

    The chosen tokens, and those of `TOP` that both tell; each is a difference of log-probabilities
    in one context.
    """
    found: list[float] = []
    for ours, theirs in zip(one.scores or (), other.scores or (), strict=False):
        known = dict(theirs.top)
        found += [abs(value - known[token]) for token, value in ours.top[:2] if token in known]
        if ours.text != theirs.text:
            break
    return found


def all_zero(reply: Reply) -> bool:
    """Whether every log-probability is exactly 0, which no model gives: they are not computed."""
    return bool(reply.scores) and all(score.logprob == 0.0 for score in reply.scores or ())


def made_up(candidate: Reply, baseline: Reply) -> list[tuple[int, str, float]]:
    """Where a server tells a log-probability of exactly 0 and the other one does not.

    Only where both say the same tokens in the same context, and the baseline is sure that the
    token was not certain: position, token, and the baseline's log-probability.
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
