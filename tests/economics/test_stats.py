"""Acceptance statistics against scripted rounds, exact enumeration and published intervals."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.economics.cost import expected_tokens
from paceline.economics.stats import (
    AcceptanceCounts,
    acceptance_rate,
    acceptance_rate_interval,
    acceptance_rate_per_position,
    conditional_acceptance_interval_per_position,
    conditional_acceptance_rate_per_position,
    draft_acceptance_rate,
    mean_acceptance_length,
    mean_acceptance_length_interval,
    mean_acceptance_length_per_draft,
    wilson_interval,
)
from paceline.errors import InvalidInput

# Full acceptance, early and late rejection, a short draft, an empty one, nothing accepted.
SCRIPT = [(4, 4), (4, 0), (4, 2), (2, 2), (0, 0), (1, 0), (4, 3)]

rounds = st.lists(
    st.integers(0, 6).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), max_size=30
)


def test_scripted_rounds_are_counted_exactly() -> None:
    counts = AcceptanceCounts.from_rounds(SCRIPT)
    assert counts.rounds == 7
    assert counts.drafted == (6, 5, 4, 4)
    assert counts.tested == (6, 4, 3, 2)
    assert counts.accepted == (4, 4, 2, 1)
    assert counts.num_drafts == 6
    assert counts.num_draft_tokens == 19
    assert counts.num_tested_tokens == 15
    assert counts.num_accepted_tokens == 11


def test_scripted_rates_are_exact() -> None:
    counts = AcceptanceCounts.from_rounds(SCRIPT)
    # The extra token of a round is in no rate: not (accepted + 1) / (drafted + 1).
    assert draft_acceptance_rate(counts) == 11 / 19
    assert acceptance_rate(counts) == 11 / 15
    assert acceptance_rate_per_position(counts) == (4 / 6, 4 / 6, 2 / 6, 1 / 6)
    assert conditional_acceptance_rate_per_position(counts) == (4 / 6, 1.0, 2 / 3, 1 / 2)
    assert mean_acceptance_length(counts) == 1 + 11 / 7
    assert mean_acceptance_length_per_draft(counts) == 1 + 11 / 6


@pytest.mark.parametrize("script", [[], [(0, 0)], [(0, 0)] * 5])
def test_rates_of_nothing_are_none(script: list[tuple[int, int]]) -> None:
    counts = AcceptanceCounts.from_rounds(script)
    assert draft_acceptance_rate(counts) is None
    assert acceptance_rate(counts) is None
    assert acceptance_rate_interval(counts) is None
    assert acceptance_rate_per_position(counts) is None
    assert conditional_acceptance_rate_per_position(counts) is None
    assert conditional_acceptance_interval_per_position(counts) is None
    assert mean_acceptance_length_per_draft(counts) is None
    assert mean_acceptance_length_interval(counts) is None


def test_plain_decoding_has_a_mean_acceptance_length_of_one() -> None:
    assert mean_acceptance_length(AcceptanceCounts()) is None
    assert mean_acceptance_length(AcceptanceCounts.from_rounds([(0, 0)] * 3)) == 1.0


def test_positions_that_were_drafted_but_never_tested_have_no_conditional_rate() -> None:
    counts = AcceptanceCounts.from_rounds([(3, 0), (3, 1)])
    assert acceptance_rate_per_position(counts) == (0.5, 0.0, 0.0)
    assert conditional_acceptance_rate_per_position(counts) == (0.5, 0.0, None)
    intervals = conditional_acceptance_interval_per_position(counts)
    assert intervals == (wilson_interval(1, 2), wilson_interval(0, 1), None)


def test_a_sequence_that_ends_inside_a_draft_rejects_nothing() -> None:
    # Four drafted, the second of them an accepted end of sequence: two count, none was rejected.
    cut = AcceptanceCounts().add(4, 2, num_tested=2)
    assert (cut.drafted, cut.tested, cut.accepted) == ((1, 1, 1, 1), (1, 1, 0, 0), (1, 1, 0, 0))
    assert acceptance_rate(cut) == 1.0
    assert draft_acceptance_rate(cut) == 0.5
    rejected = AcceptanceCounts().add(4, 2)
    assert acceptance_rate(rejected) == 2 / 3


def test_counts_are_values() -> None:
    empty = AcceptanceCounts()
    one = empty.add(2, 1)
    assert empty == AcceptanceCounts()
    assert one == AcceptanceCounts(1, (1, 1), (1, 1), (1, 0))


@given(rounds, rounds)
def test_pooling_counts_equals_counting_all_rounds(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    pooled = AcceptanceCounts.from_rounds(one) + AcceptanceCounts.from_rounds(other)
    assert pooled == AcceptanceCounts.from_rounds(one + other)
    assert pooled == AcceptanceCounts.from_rounds(other + one)


@given(rounds)
def test_counts_equal_a_count_by_definition(script: list[tuple[int, int]]) -> None:
    counts = AcceptanceCounts.from_rounds(script)
    positions = range(max((d for d, _ in script), default=0))
    assert counts.drafted == tuple(sum(i < d for d, _ in script) for i in positions)
    assert counts.accepted == tuple(sum(i < a for _, a in script) for i in positions)
    # Tested: drafted, and every token before it accepted.
    assert counts.tested == tuple(sum(i < d and a >= i for d, a in script) for i in positions)


@given(rounds)
def test_rates_are_rates(script: list[tuple[int, int]]) -> None:
    counts = AcceptanceCounts.from_rounds(script)
    if not counts.num_drafts:
        assert acceptance_rate(counts) is None
        return
    drafted, tested = draft_acceptance_rate(counts), acceptance_rate(counts)
    assert drafted is not None
    assert tested is not None
    assert 0 <= drafted <= tested <= 1
    per_position = acceptance_rate_per_position(counts)
    assert per_position is not None
    assert all(0 <= rate <= 1 for rate in per_position)
    assert list(per_position) == sorted(per_position, reverse=True)
    length = mean_acceptance_length_per_draft(counts)
    assert length == pytest.approx(1 + sum(per_position), rel=1e-12)


@given(st.integers(1, 6), st.data())
def test_conditional_rates_predict_the_mean_acceptance_length(k: int, data: st.DataObject) -> None:
    accepted = data.draw(st.lists(st.integers(0, k), min_size=1, max_size=30))
    counts = AcceptanceCounts.from_rounds((k, a) for a in accepted)
    conditional = conditional_acceptance_rate_per_position(counts)
    assert conditional is not None
    # What was never tested was never reached, so its rate does not matter.
    profile = [0.0 if rate is None else rate for rate in conditional]
    assert expected_tokens(profile, k) == pytest.approx(1 + fmean(accepted), rel=1e-12)


@given(rounds.filter(lambda script: any(d for d, _ in script)))
def test_acceptance_rate_maximises_the_likelihood(script: list[tuple[int, int]]) -> None:
    def log_likelihood(alpha: float) -> float:
        total = 0.0
        for d, a in script:
            chance = alpha**a * ((1 - alpha) if a < d else 1.0)
            total += math.log(chance) if chance > 0 else -math.inf
        return total

    estimate = acceptance_rate(AcceptanceCounts.from_rounds(script))
    assert estimate is not None
    best = max((i / 1000 for i in range(1001)), key=log_likelihood)
    # The likelihood has one peak, so the best grid point is a neighbour of the maximum.
    assert abs(estimate - best) <= 1 / 1000
    assert log_likelihood(estimate) >= log_likelihood(best) - 1e-9


@pytest.mark.parametrize(
    ("rounds_", "message"),
    [
        ([(2, 3)], "3 accepted of 2 drafted"),
        ([(2, -1)], "-1 accepted of 2 drafted"),
        ([(-1, 0)], "0 accepted of -1 drafted"),
    ],
)
def test_impossible_rounds_are_refused(rounds_: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        AcceptanceCounts.from_rounds(rounds_)


@pytest.mark.parametrize("num_tested", [1, 4])
def test_an_impossible_number_of_tests_is_refused(num_tested: int) -> None:
    with pytest.raises(InvalidInput, match=f"expected 2 to 3 tested .* got {num_tested}"):
        AcceptanceCounts().add(4, 2, num_tested)


@pytest.mark.parametrize(
    "fields",
    [
        (1, (1,), (1,), ()),
        (1, (2,), (1,), (1,)),
        (2, (2,), (1,), (2,)),
        (2, (1,), (2,), (1,)),
        (2, (2, 2), (2, 2), (1, 1)),
        (2, (1, 2), (1, 1), (1, 1)),
        (2, (2,), (1,), (-1,)),
    ],
)
def test_impossible_counts_are_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput, match="expected"):
        AcceptanceCounts(*fields)


# Intervals.


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_newcombe_1998_table_1(
    successes: int, trials: int, low: float, high: float
) -> None:
    interval = wilson_interval(successes, trials)
    assert interval is not None
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)
    assert interval.confidence == 0.95


@given(st.integers(1, 500), st.floats(0.5, 0.999), st.data())
def test_wilson_bounds_solve_the_score_equation(
    trials: int, confidence: float, data: st.DataObject
) -> None:
    successes = data.draw(st.integers(0, trials))
    interval = wilson_interval(successes, trials, confidence)
    assert interval is not None
    assert 0 <= interval.low <= successes / trials <= interval.high <= 1
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    for bound in (interval.low, interval.high):
        squared = (successes / trials - bound) ** 2
        assert squared == pytest.approx(z * z * bound * (1 - bound) / trials, abs=1e-12)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("trials", [10, 30, 100])
def test_wilson_covers_as_often_as_it_says(trials: int, confidence: float) -> None:
    """Exact binomial enumeration over 499 rates; no chance is involved."""
    intervals = [wilson_interval(x, trials, confidence) for x in range(trials + 1)]

    def coverage(rate: float) -> float:
        return math.fsum(
            math.comb(trials, x) * rate**x * (1 - rate) ** (trials - x)
            for x, interval in enumerate(intervals)
            if interval is not None and interval.low <= rate <= interval.high
        )

    assert fmean(coverage(i / 500) for i in range(1, 500)) == pytest.approx(confidence, abs=0.012)
    # Single rates fall short, for few trials most, but not by much away from the ends.
    assert min(coverage(i / 500) for i in range(100, 401)) > confidence - 0.09


@given(rounds.filter(lambda script: len(script) >= 2))
def test_the_interval_of_the_mean_equals_that_of_the_rounds(script: list[tuple[int, int]]) -> None:
    interval = mean_acceptance_length_interval(AcceptanceCounts.from_rounds(script))
    lengths = [1 + a for _, a in script]
    if len(set(lengths)) == 1:
        assert interval is None
        return
    half = NormalDist().inv_cdf(0.975) * stdev(lengths) / math.sqrt(len(lengths))
    longest = 1 + max(d for d, _ in script)
    assert interval is not None
    assert interval.low == pytest.approx(max(1, fmean(lengths) - half), rel=1e-12)
    assert interval.high == pytest.approx(min(longest, fmean(lengths) + half), rel=1e-12)


def test_one_round_tells_no_spread() -> None:
    assert mean_acceptance_length_interval(AcceptanceCounts.from_rounds([(4, 2)])) is None


def test_acceptance_rate_interval_counts_tests() -> None:
    counts = AcceptanceCounts.from_rounds(SCRIPT)
    assert acceptance_rate_interval(counts, 0.9) == wilson_interval(11, 15, 0.9)


def test_bad_trials_and_confidences_are_refused() -> None:
    assert wilson_interval(0, 0) is None
    with pytest.raises(InvalidInput, match="3 successes of 2 trials"):
        wilson_interval(3, 2)
    for confidence in (0.0, 1.0, 95, float("nan")):
        with pytest.raises(InvalidInput, match=r"95 % is 0\.95"):
            wilson_interval(1, 2, confidence)
        with pytest.raises(InvalidInput, match=r"95 % is 0\.95"):
            mean_acceptance_length_interval(AcceptanceCounts(), confidence)
