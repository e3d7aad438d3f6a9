"""Acceptance statistics: counts of what was drafted and accepted, rates, intervals.

Nothing here turns "nothing was drafted" into a zero: a rate without trials is None.

Four different numbers are called "acceptance rate". Here they are

- `acceptance_rate`: accepted / *tested*. A draft token after a rejection is never tested. This is
  alpha of the cost model.
- `draft_acceptance_rate`: accepted / *drafted*, as vLLM and llama.cpp report it. Lower than alpha
  and falling with the draft length, for the same drafter.
- `acceptance_rate_per_position`: the share of drafts in which position i was accepted, which
  implies that all before it were: *unconditional*, as vLLM reports it.
- `conditional_acceptance_rate_per_position`: accepted at i / tested at i, which is what an
  `AcceptanceProfile` of the cost model holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class AcceptanceCounts:
    """What happened to chain drafts, summed over rounds.

    Immutable; `add` and `+` return new counts.

    Position i is the i-th draft token of a round, from 0.

    Args:
        rounds: all rounds, including those with an empty draft.
        drafted: by position, the rounds that drafted a token there.
        tested: by position, the rounds in which that token was tested: all before it accepted.
        accepted: by position, the rounds in which it was accepted.

    Raises:
        InvalidInput: the counts are impossible for any rounds.

    Example:
        >>> counts = AcceptanceCounts.from_rounds([(4, 4), (4, 1), (0, 0)])
        >>> counts.drafted, counts.tested, counts.accepted
        ((2, 2, 2, 2), (2, 2, 1, 1), (2, 1, 1, 1))
    """

    rounds: int = 0
    drafted: tuple[int, ...] = ()
    tested: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.drafted) == len(self.tested) == len(self.accepted):
            raise InvalidInput(
                "expected drafted, tested and accepted counts for the same positions, got "
                f"{len(self.drafted)}, {len(self.tested)} and {len(self.accepted)} of them"
            )
        drafted_before = accepted_before = self.rounds
        for position, counts in enumerate(
            zip(self.drafted, self.tested, self.accepted, strict=True)
        ):
            drafted, tested, accepted = counts
            possible = 0 <= accepted <= tested <= min(drafted, accepted_before)
            if not (possible and drafted <= drafted_before):
                raise InvalidInput(
                    f"expected accepted <= tested <= drafted at position {position}, tested only "
                    f"where all before was accepted, got accepted {accepted}, tested {tested}, "
                    f"drafted {drafted} after accepted {accepted_before}, drafted "
                    f"{drafted_before}; build the counts with AcceptanceCounts.from_rounds"
                )
            drafted_before, accepted_before = drafted, accepted

    @classmethod
    def from_rounds(cls, rounds: Iterable[tuple[int, int]]) -> AcceptanceCounts:
        """Count (number drafted, number accepted) pairs, one per round."""
        counts = cls()
        for num_drafted, num_accepted in rounds:
            counts = counts.add(num_drafted, num_accepted)
        return counts

    def add(
        self, num_drafted: int, num_accepted: int, num_tested: int | None = None
    ) -> AcceptanceCounts:
        """These counts plus one more round.

        Args:
            num_drafted: d, the length of the draft; 0 for plain decoding.
            num_accepted: a, the accepted tokens up to the end of the sequence: positions 0 to a -
                1.
            num_tested: how many positions were tested. None: the accepted ones and, if a < d, the
                rejected one. Pass `num_accepted` if the sequence ended at an accepted token: no
                token was rejected then, and counting one would bias every rate downwards.

        Raises:
            InvalidInput: not 0 <= a <= d, or an impossible number of tests.
        """
        if not 0 <= num_accepted <= num_drafted:
            raise InvalidInput(
                f"expected 0 <= accepted <= drafted, got {num_accepted} accepted of "
                f"{num_drafted} drafted; the correction or bonus token counts as neither"
            )
        most_tested = min(num_accepted + 1, num_drafted)
        if num_tested is None:
            num_tested = most_tested
        if not num_accepted <= num_tested <= most_tested:
            raise InvalidInput(
                f"expected {num_accepted} to {most_tested} tested tokens for {num_accepted} "
                f"accepted of {num_drafted} drafted, got {num_tested}; testing stops at the first "
                "rejection"
            )
        return self + AcceptanceCounts(
            rounds=1,
            drafted=(1,) * num_drafted,
            tested=_ones(num_tested, num_drafted),
            accepted=_ones(num_accepted, num_drafted),
        )

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        """The counts of both, pooled so that every round has the same weight."""
        return AcceptanceCounts(
            rounds=self.rounds + other.rounds,
            drafted=_sum_by_position(self.drafted, other.drafted),
            tested=_sum_by_position(self.tested, other.tested),
            accepted=_sum_by_position(self.accepted, other.accepted),
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "rounds": self.rounds,
            "drafted": list(self.drafted),
            "tested": list(self.tested),
            "accepted": list(self.accepted),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> AcceptanceCounts:
        """From the result of `to_json`.

        >>> AcceptanceCounts.from_json(AcceptanceCounts.from_rounds([(2, 1)]).to_json()).accepted
        (1, 0)
        """
        return cls(
            rounds=found["rounds"],
            drafted=tuple(found["drafted"]),
            tested=tuple(found["tested"]),
            accepted=tuple(found["accepted"]),
        )

    @property
    def num_drafts(self) -> int:
        """The number of rounds with a draft of at least one token."""
        return self.drafted[0] if self.drafted else 0

    @property
    def num_draft_tokens(self) -> int:
        """The number of drafted tokens."""
        return sum(self.drafted)

    @property
    def num_tested_tokens(self) -> int:
        """The number of tested tokens, accepted and rejected."""
        return sum(self.tested)

    @property
    def num_accepted_tokens(self) -> int:
        """The number of accepted tokens, without corrections and bonus tokens."""
        return sum(self.accepted)


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided confidence interval."""

    low: float
    high: float
    confidence: float


def draft_acceptance_rate(counts: AcceptanceCounts) -> float | None:
    """Accepted / drafted tokens, including those after a rejection; None if nothing was drafted.

    It has no binomial interval: a token is only accepted if all before it were, so the tokens of a
    draft are not independent trials. For an interval, resample whole rounds.
    """
    return _ratio(counts.num_accepted_tokens, counts.num_draft_tokens)


def acceptance_rate(counts: AcceptanceCounts) -> float | None:
    """Accepted / tested tokens: the maximum-likelihood alpha of the i.i.d. model.

    A round with a of d accepted has likelihood alpha^a, times (1 - alpha) if a < d. The product
    over rounds is alpha^accepted * (1 - alpha)^(tested - accepted), with its maximum at accepted /
    tested, whatever the lengths of the drafts. None if nothing was tested.

    Example:
        >>> acceptance_rate(AcceptanceCounts.from_rounds([(4, 3), (4, 4)]))
        0.875
    """
    return _ratio(counts.num_accepted_tokens, counts.num_tested_tokens)


def acceptance_rate_interval(counts: AcceptanceCounts, confidence: float = 0.95) -> Interval | None:
    """The Wilson interval of `acceptance_rate`, for independent, identically distributed tests.

    If the rate differs between positions or texts, it is too narrow.
    """
    return wilson_interval(counts.num_accepted_tokens, counts.num_tested_tokens, confidence)


def acceptance_rate_per_position(counts: AcceptanceCounts) -> tuple[float, ...] | None:
    """Accepted at i / drafts, by position: vLLM's unconditional rates. None without a draft.

    At every position the divisor is the number of *all* drafts, including those too short to have a
    position i. So the rates never increase, and 1 plus their sum is
    `mean_acceptance_length_per_draft`. With drafts of different lengths a low rate may mean short
    drafts; the conditional rates distinguish the two.
    """
    if not counts.num_drafts:
        return None
    return tuple(accepted / counts.num_drafts for accepted in counts.accepted)


def conditional_acceptance_rate_per_position(
    counts: AcceptanceCounts,
) -> tuple[float | None, ...] | None:
    """Accepted at i / tested at i, by position; None if nothing was tested there.

    If one position was never tested, none after it was. The rates before it form the
    `AcceptanceProfile` of the cost model.
    """
    if not counts.num_drafts:
        return None
    return tuple(map(_ratio, counts.accepted, counts.tested))


def conditional_acceptance_interval_per_position(
    counts: AcceptanceCounts, confidence: float = 0.95
) -> tuple[Interval | None, ...] | None:
    """The Wilson interval of each conditional rate. A position is tested at most once per round."""
    if not counts.num_drafts:
        return None
    return tuple(
        wilson_interval(accepted, tested, confidence)
        for accepted, tested in zip(counts.accepted, counts.tested, strict=True)
    )


def mean_acceptance_length(counts: AcceptanceCounts) -> float | None:
    """Tokens per round including the correction or bonus: 1 + accepted / rounds.

    None without a round.

    Rounds with an empty draft count, as each is a target pass: plain decoding is 1.00, and this is
    the factor by which the number of target passes falls.
    """
    accepted = _ratio(counts.num_accepted_tokens, counts.rounds)
    return None if accepted is None else 1.0 + accepted


def mean_acceptance_length_per_draft(counts: AcceptanceCounts) -> float | None:
    """1 + accepted / drafts, as vLLM reports it: rounds with an empty draft do not count.

    Equal to `mean_acceptance_length` if every round drafted. For a drafter that often has nothing
    to propose it is the higher of the two; it measures how good the drafts are, not how fast
    decoding is.
    """
    accepted = _ratio(counts.num_accepted_tokens, counts.num_drafts)
    return None if accepted is None else 1.0 + accepted


def mean_acceptance_length_interval(
    counts: AcceptanceCounts, confidence: float = 0.95
) -> Interval | None:
    """The normal interval of `mean_acceptance_length`, with rounds as independent trials.

    The counts by position hold the whole distribution of the accepted length a (accepted at i is
    the number of rounds with a > i), so the variance over rounds is exact: the sum of a^2 is that
    of (2 i + 1) * accepted[i]. Clipped to the possible values. None if rounds do not vary (fewer
    than two, or all alike): the spread cannot be estimated from them.
    """
    z = _two_sided_z(confidence)
    mean = mean_acceptance_length(counts)
    if mean is None or counts.rounds < 2:
        return None
    n, total = counts.rounds, counts.num_accepted_tokens
    total_of_squares = sum((2 * i + 1) * count for i, count in enumerate(counts.accepted))
    # In integers, so that identical rounds give exactly 0.
    scaled_variance = n * total_of_squares - total * total
    if scaled_variance == 0:
        return None
    half = z * math.sqrt(scaled_variance / (n * (n - 1)) / n)
    most = 1.0 + len(counts.accepted)
    return Interval(max(1.0, mean - half), min(most, mean + half), confidence)


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> Interval | None:
    """The Wilson score interval of a binomial proportion; None without trials.

    All rates r with |successes / trials - r| <= z * sqrt(r * (1 - r) / trials). Unlike the normal
    interval it stays within [0, 1] and keeps a width at 0 and at 1. Averaged over rates it has its
    nominal coverage; for single rates near 0 or 1 the coverage may be lower. (Wilson 1927; Newcombe
    1998, method 3.)

    Raises:
        InvalidInput: not 0 <= successes <= trials, or the confidence is not between 0 and 1.

    Example:
        >>> interval = wilson_interval(81, 263)
        >>> round(interval.low, 4), round(interval.high, 4)
        (0.2553, 0.3662)
    """
    z = _two_sided_z(confidence)
    if not 0 <= successes <= trials:
        raise InvalidInput(
            f"expected 0 <= successes <= trials, got {successes} successes of {trials} trials"
        )
    if trials == 0:
        return None
    rate = successes / trials
    shrink = 1.0 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / shrink
    spread = rate * (1.0 - rate) / trials + z * z / (4 * trials * trials)
    half = z * math.sqrt(spread) / shrink
    # At the ends the formula gives 0 and 1 up to rounding; give them exactly.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return Interval(low, high, confidence)


def _two_sided_z(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise InvalidInput(f"expected a confidence between 0 and 1, got {confidence}; 95 % is 0.95")
    return NormalDist().inv_cdf((1.0 + confidence) / 2.0)


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _ones(count: int, length: int) -> tuple[int, ...]:
    return (1,) * count + (0,) * (length - count)


def _sum_by_position(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    head = tuple(a + b for a, b in zip(longer, shorter, strict=False))
    return head + longer[len(shorter) :]
