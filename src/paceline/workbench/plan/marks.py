"""Acceptance at a fixed draft length, from marks along answers with any drafts.

A draft token is tested only if all before it were accepted, that is, after the answer's own tokens.
So whether a token of the answer is accepted hardly depends on where a round began, and a walk along
the marks (see `bench.runs.marks_of`) gives the rounds of any draft length. Counts by position do
not: with long drafts, few rounds cover the easy parts of a text and many the hard ones, so counts
that are cut to a shorter length are too low.

A controller that chooses the length leaves a selected sample: it drafts where it expects
acceptance. Where it stopped, acceptance is unknown, and these are the doubtful places. They are not
guessed. Each length is walked twice, with all of them rejected and with all of them accepted, and a
length is known only if the two agree (the bounds of Manski 1989 for a selected sample).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from paceline.economics.stats import AcceptanceCounts

AGREE = 0.05
"""The largest distance of the bounds of tokens per round for a length to be known."""

ACCEPTED, REJECTED, ENDED, UNKNOWN = "1", "0", ".", "?"


def labels(marks: str, num_draft_tokens: int | None) -> str:
    """What each token of an answer tells about a fixed draft length.

    Args:
        marks: the marks of one run.
        num_draft_tokens: the fixed length of its drafts; None if a controller chose.

    Returns:
        One character per token: accepted, rejected, nothing drafted by the drafter's own choice, or
        unknown because the allowed length ended the draft before it.

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
    """The labels of one answer, merged from several runs with the same tokens.

    A place that any run tested is known. If two runs disagree, which can happen if a drafter uses
    more than the text, the first counts.

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
        if place >= len(answer):  # the answer ended within the draft, without a rejection
            rounds[num_draft_tokens, length, length] += 1
        elif length < num_draft_tokens and answer[place] == ENDED:
            rounds[length, length, length] += 1
        else:
            rounds[num_draft_tokens, length, min(length + 1, num_draft_tokens)] += 1
        start = place + 1
    return _counts(rounds, num_draft_tokens)


def _counts(rounds: Mapping[tuple[int, int, int], int], longest: int) -> AcceptanceCounts:
    """Counts by position from rounds (drafted, accepted, tested) and the number of each."""

    def reaching(part: int, place: int) -> int:
        return sum(times for lengths, times in rounds.items() if lengths[part] > place)

    places = [place for place in range(longest) if reaching(0, place)]
    drafted, accepted, tested = (
        tuple(reaching(part, place) for place in places) for part in range(3)
    )
    return AcceptanceCounts(sum(rounds.values()), drafted, tested, accepted)


def counts_by_length(answers: Iterable[str], longest: int) -> dict[int, AcceptanceCounts]:
    """Acceptance at each draft length from 1 to `longest` that the answers determine.

    Args:
        answers: the labels of each answer.
        longest: the longest draft length.
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
    """The mean of two counts, rounded down: they are bounds for the same rounds."""
    both = low + high
    parts = (tuple(n // 2 for n in part) for part in (both.drafted, both.tested, both.accepted))
    return AcceptanceCounts(both.rounds // 2, *parts)
