"""Acceptance at a fixed draft length, from marks along answers that were drafted in any way.

The draft of a round walks along the answer: where all before it was accepted, the next draft token
stands after the answer's own tokens. So whether a place of the answer is accepted hardly depends
on where a round began, and a walk along the marks (see `bench.runs.marks_of`) gives the rounds of
any draft length. Counts by position do not: with long drafts few rounds cover the easy stretches,
and many the hard ones, so that cut to a shorter length they come out too low.

A controller that chooses the length leaves a selected sample: it drafts where it expects
acceptance. The places where it stopped are unknown, and are the doubtful ones. They are not
guessed. Each length is walked twice, with all of them rejected and with all of them accepted, and a
length is known only where the two agree (the bounds of Manski 1989 for a selected sample).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from paceline.economics.stats import AcceptanceCounts

AGREE = 0.05
"""How far the bounds of tokens a round may lie apart for a length to be known."""

ACCEPTED, REJECTED, ENDED, UNKNOWN = "1", "0", ".", "?"


def labels(marks: str, num_draft_tokens: int | None) -> str:
    """What each place of an answer says of a fixed draft length.

    Args:
        marks: of one run.
        num_draft_tokens: the fixed length of its drafts; None where a controller chose.

    Returns:
        A character a token: accepted, rejected, the drafter itself had nothing there, or unknown,
        since the draft ended before it by the length that was allowed.

    Example:
        >>> labels("11+-0", 2), labels("1+-0", 2), labels("1+-0", None)
        ('11?.0', '1..0', '1??0')
    """
    found, run = [], 0
    for mark in marks:
        if mark in (ACCEPTED, REJECTED):
            found.append(mark)
        elif num_draft_tokens is None or run >= num_draft_tokens:
            found.append(UNKNOWN)
        else:
            found.append(ENDED)
        run = run + 1 if mark == ACCEPTED else 0
    return "".join(found)


def merged(answers: Sequence[str]) -> str:
    """The labels of one answer from several runs that wrote the same tokens.

    Where one run tested a place and another did not, it is known; where two disagree, as drafters
    may that look at more than the text, the first counts.

    >>> merged(["1?0", "10?"])
    '100'
    """
    return "".join(
        next((label for label in place if label != UNKNOWN), UNKNOWN)
        for place in zip(*answers, strict=True)
    )


def walk(answer: str, num_draft_tokens: int, *, unknown: bool) -> AcceptanceCounts:
    """The rounds that drafts of at most `num_draft_tokens` would have made along an answer.

    Args:
        answer: labels.
        num_draft_tokens: k.
        unknown: whether unknown places count as accepted.

    Example:
        >>> walk("11011.", 2, unknown=False).accepted
        (2, 2)
    """
    rounds: Counter[tuple[int, int, int]] = Counter()
    accepted = {ACCEPTED, UNKNOWN} if unknown else {ACCEPTED}
    start = 0
    while start < len(answer):
        length = 0
        while length < num_draft_tokens and answer[start + length : start + length + 1] in accepted:
            length += 1
        place = start + length
        if place >= len(answer):  # the answer ended in the draft, which rejected nothing
            rounds[num_draft_tokens, length, length] += 1
        elif length < num_draft_tokens and answer[place] == ENDED:
            rounds[length, length, length] += 1
        else:
            rounds[num_draft_tokens, length, min(length + 1, num_draft_tokens)] += 1
        start = place + 1
    return _counts(rounds, num_draft_tokens)


def _counts(rounds: Mapping[tuple[int, int, int], int], longest: int) -> AcceptanceCounts:
    """Counts by position of rounds (drafted, accepted, tested) and how often each came."""

    def reaching(part: int, place: int) -> int:
        return sum(times for lengths, times in rounds.items() if lengths[part] > place)

    places = [place for place in range(longest) if reaching(0, place)]
    drafted, accepted, tested = (
        tuple(reaching(part, place) for place in places) for part in range(3)
    )
    return AcceptanceCounts(sum(rounds.values()), drafted, tested, accepted)


def counts_by_length(answers: Iterable[str], longest: int) -> dict[int, AcceptanceCounts]:
    """Acceptance at each draft length from 1 to `longest` that the answers are enough to know.

    Args:
        answers: labels, one text for each answer.
        longest: the longest draft to look at.
    """
    texts = list(answers)
    found = {}
    for k in range(1, longest + 1):
        low, high = (
            sum((walk(text, k, unknown=unknown) for text in texts), AcceptanceCounts())
            for unknown in (False, True)
        )
        if low.rounds and low.rounds / high.rounds - 1 <= AGREE:
            found[k] = _between(low, high)
    return found


def _between(low: AcceptanceCounts, high: AcceptanceCounts) -> AcceptanceCounts:
    """Counts half-way, rounded down, of as many rounds as one of them has and not of both."""
    both = low + high
    parts = (tuple(n // 2 for n in part) for part in (both.drafted, both.tested, both.accepted))
    return AcceptanceCounts(both.rounds // 2, *parts)
