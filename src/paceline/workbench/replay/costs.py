"""What a target pass and a draft step take, measured in a moment, for the speed of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Target, Work
from paceline.economics import cost, stats
from paceline.economics.acceptance import AcceptanceProfile
from paceline.economics.curve import interpolated
from paceline.economics.stats import AcceptanceCounts

REPEATS = 5


@dataclass(frozen=True)
class PassTimes:
    """Median seconds of a target pass, by its number of rows; between them on a straight line."""

    seconds: dict[int, float] = field(default_factory=dict)

    def of(self, rows: int) -> float:
        """The time of a pass over so many rows.

        >>> PassTimes({1: 1.0, 5: 2.0}).of(3)
        1.5
        """
        known = sorted(self.seconds)
        return interpolated(known, [self.seconds[n] for n in known], rows)


def pass_times(target: Target, tokens: Sequence[int], longest_draft: int) -> PassTimes:
    """Time passes of one row and of a few more, in turns, behind a text.

    Args:
        target: the model.
        tokens: the text, at least one token.
        longest_draft: the longest draft of interest.
    """
    most = target.info.max_draft_tokens
    longest = longest_draft if most is None else min(longest_draft, most)
    limit = target.info.max_length
    context = list(tokens) if limit is None else list(tokens)[: max(1, limit - longest - 1)]
    lengths = sorted({0, *(longest * share // 3 for share in (1, 2, 3))})
    times: dict[int, list[float]] = {length: [] for length in lengths}
    slot = target.open(len(context) + longest + 1)
    try:
        if len(context) > 1:
            prefill(target, slot, context[:-1])
        for repeat in range(REPEATS + 1):
            for length in lengths:
                work = [Work(slot, [context[-1]], Draft((context[0],) * length))]
                start = perf_counter()
                target.score(work)
                if repeat:  # the first pass of a shape is slower
                    times[length].append(perf_counter() - start)
    finally:
        target.close(slot)
    return PassTimes({length + 1: median(values) for length, values in times.items()})


def predicted_speedup(
    counts: AcceptanceCounts, passes: PassTimes, draft_s: dict[int, float]
) -> float | None:
    """The speed-up over plain decoding that the cost model gives; None without a round.

    Args:
        counts: acceptance by position.
        passes: of the target.
        draft_s: what a draft of each length takes.
    """
    if not counts.rounds:
        return None
    rates = stats.conditional_acceptance_rate_per_position(counts) or ()
    profile = AcceptanceProfile(tuple(rate or 0.0 for rate in rates), beyond=0.0)
    reach = (*counts.drafted, 0)
    shares = {0: counts.rounds - reach[0]}
    shares |= {place: reach[place - 1] - reach[place] for place in range(1, len(reach))}
    tokens = seconds = 0.0
    for length, rounds in shares.items():
        if rounds:
            tokens += rounds * cost.expected_tokens(profile, length)
            seconds += rounds * (passes.of(length + 1) + draft_s.get(length, 0.0))
    return tokens * passes.of(1) / seconds
