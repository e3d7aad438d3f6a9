"""The cost model against published tables, exact enumeration and its own inverses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.economics.acceptance import AcceptanceProfile
from paceline.economics.cost import (
    acceptance_rate_for,
    arithmetic_overhead,
    best_num_draft_tokens,
    break_even_acceptance_rate,
    break_even_cost,
    expected_accepted_tokens,
    expected_tokens,
    guaranteed_speedup,
    implied_tokens,
    oracle_tokens,
    plan_table,
    round_cost,
    speedup,
)
from paceline.economics.published import (
    CHEN_DRAFT_MILLISECONDS,
    CHEN_NUM_DRAFT_TOKENS,
    CHEN_TABLE_1,
    CHEN_TARGET_MILLISECONDS,
    LEVIATHAN_LENIENT_COST,
    LEVIATHAN_LENIENT_SPEEDUP_CLAIM,
    LEVIATHAN_TABLE_1,
    LEVIATHAN_TABLE_2,
    LEVIATHAN_TABLE_3,
    LEVIATHAN_TABLE_5,
    ChenRow,
    OperationsAndSpeed,
    SpeedupRow,
)
from paceline.errors import InvalidInput

rates = st.floats(0.0, 1.0)
costs = st.floats(0.0, 2.0)
lengths = st.integers(0, 12)


def tokens_by_enumeration(conditional: list[Fraction]) -> Fraction:
    """E[tokens] over all outcomes of one independent test a position, read left to right."""
    total = Fraction(0)
    for outcome in product((True, False), repeat=len(conditional)):
        chance = Fraction(1)
        for passed, rate in zip(outcome, conditional, strict=True):
            chance *= rate if passed else 1 - rate
        num_accepted = next((i for i, passed in enumerate(outcome) if not passed), len(outcome))
        total += chance * (num_accepted + 1)
    return total


# The reference values of the paper's formulas, computed apart from this code.


@pytest.mark.parametrize(
    ("alpha", "tokens"), [(0.5, "1.9375"), (0.8, "3.3616"), (0.9, "4.0951"), (0.7, "2.7731")]
)
def test_expected_tokens_of_four_drafted(alpha: float, tokens: str) -> None:
    assert f"{expected_tokens(alpha, 4):.4f}" == tokens


@pytest.mark.parametrize(
    ("alpha", "cost", "k", "value"),
    [
        (0.3, 0.05, 4, 1.1876),
        (0.8, 0.05, 4, 2.8013),
        (0.9, 0.05, 4, 3.4126),
        (0.8, 0.6, 4, 0.9887),
        (0.7, 0.13, 4, 1.8244),
        (0.8, 0.05, 7, 3.0823),
        (0.8, 0.05, 8, 3.0921),
        (0.8, 0.05, 9, 3.0780),
        (0.8, 0.3, 2, 1.525),
        (0.8, 0.3, 3, 1.5537),
        (0.8, 0.3, 4, 1.528),
    ],
)
def test_speedup(alpha: float, cost: float, k: int, value: float) -> None:
    assert speedup(alpha, cost, k) == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize(("alpha", "cost", "best"), [(0.8, 0.05, 8), (0.8, 0.3, 3), (0.3, 0.9, 0)])
def test_best_length(alpha: float, cost: float, best: int) -> None:
    assert best_num_draft_tokens(alpha, cost) == best


def test_plan_table_row() -> None:
    rows = plan_table(0.7, 0.13, [4, 0])
    assert [row.num_draft_tokens for row in rows] == [4, 0]
    assert rows[0].accepted_tokens == pytest.approx(1.7731, abs=5e-5)
    assert rows[0].expected_tokens == pytest.approx(2.7731, abs=5e-5)
    assert rows[0].speedup == pytest.approx(1.8244, abs=5e-5)
    assert rows[0].arithmetic_overhead == pytest.approx(5 / 2.7731, abs=5e-5)
    plain = rows[1]
    assert (plain.expected_tokens, plain.accepted_tokens) == (1.0, 0.0)
    assert (plain.speedup, plain.arithmetic_overhead) == (1.0, 1.0)


# Published tables.


@pytest.mark.parametrize("row", LEVIATHAN_TABLE_1, ids=str)
def test_leviathan_table_1(row: OperationsAndSpeed) -> None:
    overhead = arithmetic_overhead(row.acceptance_rate, row.num_draft_tokens)
    gain = speedup(row.acceptance_rate, 0.0, row.num_draft_tokens)
    assert round(overhead, 2) == row.arithmetic_overhead
    assert round(gain, 2) == row.speedup


FORMULA = (3.157, 3.251, 2.497, 2.258, 2.347, 1.934, 2.402, 2.619, 2.025, 1.891, 1.803, 1.541)


@pytest.mark.parametrize(
    ("row", "formula"), list(zip(LEVIATHAN_TABLE_2, FORMULA, strict=True)), ids=str
)
def test_leviathan_table_2(row: SpeedupRow, formula: float) -> None:
    value = speedup(row.acceptance_rate, row.cost, row.num_draft_tokens)
    assert value == pytest.approx(formula, abs=5e-4)
    # The paper used acceptance rates and costs that it does not print to the last digit.
    assert value == pytest.approx(row.expected_speedup, abs=0.07)


def test_leviathan_tables_2_and_3_agree() -> None:
    printed = {
        (row.task, row.draft): (row.greedy, row.temperature_1)
        for row in LEVIATHAN_TABLE_3
        if row.target == "T5-XXL 11B"
    }
    for row in LEVIATHAN_TABLE_2:
        assert row.acceptance_rate == printed[row.task, row.draft][int(row.temperature)]


def test_leviathan_bigram_speedup() -> None:
    [bigram] = [r for r in LEVIATHAN_TABLE_3 if (r.task, r.draft) == ("EnDe", "bigram")]
    assert speedup(bigram.greedy, 0.0, 3) == pytest.approx(1.25, abs=5e-3)


def test_leviathan_lenient_claim_is_out_of_reach() -> None:
    [small] = [row for row in LEVIATHAN_TABLE_5 if row.draft == "T5-small 77M"]
    cost = LEVIATHAN_LENIENT_COST
    best = [best_num_draft_tokens(alpha, cost) for _, alpha in small.by_lenience]
    gains = [speedup(a, cost, k) for (_, a), k in zip(small.by_lenience, best, strict=True)]
    assert best == [7, 9, 10, 15]
    assert [round(gain, 2) for gain in gains] == [2.33, 2.94, 3.45, 4.79]
    claims = [claim for _, claim in LEVIATHAN_LENIENT_SPEEDUP_CLAIM]
    assert all(gain < claim for gain, claim in zip(gains, claims, strict=True))


@pytest.mark.parametrize(
    ("row", "tokens"), list(zip(CHEN_TABLE_1, (2.83, 3.04, 3.72), strict=True)), ids=str
)
def test_chen_implied_tokens(row: ChenRow, tokens: float) -> None:
    cost = CHEN_DRAFT_MILLISECONDS / CHEN_TARGET_MILLISECONDS
    gain = CHEN_TARGET_MILLISECONDS / row.milliseconds_per_token
    assert cost == pytest.approx(0.128, abs=5e-4)
    assert gain == pytest.approx(row.speedup, abs=0.05)
    assert implied_tokens(gain, cost, CHEN_NUM_DRAFT_TOKENS) == pytest.approx(tokens, abs=5e-3)


# Independent oracles.


@given(st.lists(st.fractions(0, 1, max_denominator=50), min_size=1, max_size=7))
def test_expected_tokens_equal_enumeration(conditional: list[Fraction]) -> None:
    exact = tokens_by_enumeration(conditional)
    profile = [float(rate) for rate in conditional]
    assert expected_tokens(profile, len(profile)) == pytest.approx(float(exact), abs=1e-12)


@given(st.fractions(0, Fraction(99, 100), max_denominator=100), lengths)
def test_expected_tokens_equal_the_closed_form(alpha: Fraction, k: int) -> None:
    exact = (1 - alpha ** (k + 1)) / (1 - alpha)
    assert expected_tokens(float(alpha), k) == pytest.approx(float(exact), rel=1e-12)


@given(rates, lengths)
def test_a_constant_profile_is_the_iid_model(alpha: float, k: int) -> None:
    one = expected_tokens(alpha, k)
    assert expected_tokens(AcceptanceProfile((alpha,) * 12), k) == one
    assert expected_tokens([alpha] * 12, k) == one
    assert expected_tokens(AcceptanceProfile((alpha,) * 3, beyond=alpha), k) == one


@given(lengths)
def test_the_ends_of_the_scale_are_exact(k: int) -> None:
    assert expected_tokens(1.0, k) == k + 1
    assert expected_tokens(0.0, k) == 1
    assert arithmetic_overhead(1.0, k) == 1
    assert arithmetic_overhead(0.0, k) == k + 1


@given(rates, rates, lengths)
def test_tokens_rise_with_the_rate_and_the_length(one: float, other: float, k: int) -> None:
    low, high = sorted((one, other))
    assert expected_tokens(low, k) <= expected_tokens(high, k) <= expected_tokens(high, k + 1)
    assert expected_tokens(high, k) <= k + 1
    assert expected_tokens(high, k) <= oracle_tokens(high) * (1 + 1e-12)


@given(rates, costs, costs, st.integers(1, 12))
def test_speedup_falls_with_the_cost(alpha: float, one: float, other: float, k: int) -> None:
    low, high = sorted((one, other))
    assert speedup(alpha, low, k) >= speedup(alpha, high, k)
    assert speedup(alpha, low, k) >= speedup(alpha, low, k, verify_cost=1.0 + high)
    assert speedup(alpha, low, k) >= speedup(alpha, low, k, overhead=high)


def test_the_limit_of_long_drafts() -> None:
    assert expected_tokens(0.8, 500) == pytest.approx(oracle_tokens(0.8), rel=1e-12)
    assert oracle_tokens(1.0) == float("inf")


# Cost of a round.


def test_verify_cost_as_number_table_and_function() -> None:
    table = {2: 1.0, 5: 1.25}
    expected = 4 * 0.1 + 1.25 + 0.02
    assert round_cost(0.1, 4, 1.25, 0.02) == pytest.approx(expected)
    assert round_cost(0.1, 4, table, 0.02) == pytest.approx(expected)
    assert round_cost(0.1, 4, lambda rows: table[rows], 0.02) == pytest.approx(expected)
    with pytest.raises(InvalidInput, match=r"for 4 rows .* got a table for \[2, 5\]"):
        round_cost(0.1, 3, table)


def test_plain_decoding_costs_one_pass_whatever_speculation_costs() -> None:
    assert round_cost(0.7, 0, verify_cost=3.0, overhead=0.4) == 1.0
    assert speedup(0.9, 0.7, 0, verify_cost=3.0, overhead=0.4) == 1.0


# The choice of the length.


@given(rates, costs, st.floats(1.0, 3.0), st.floats(0.0, 0.5))
def test_the_best_length_is_the_best_and_never_slower_than_plain(
    alpha: float, cost: float, verify_cost: float, overhead: float
) -> None:
    best = best_num_draft_tokens(alpha, cost, verify_cost, overhead, max_num_draft_tokens=10)
    gains = [speedup(alpha, cost, k, verify_cost, overhead) for k in range(11)]
    assert gains[best] == max(gains) >= 1.0
    assert best == gains.index(max(gains))


@given(rates, costs)
def test_the_guaranteed_speedup_is_reached_by_the_best_length(alpha: float, cost: float) -> None:
    best = best_num_draft_tokens(alpha, cost, max_num_draft_tokens=16)
    assert speedup(alpha, cost, best) >= guaranteed_speedup(alpha, cost) * (1 - 1e-12)
    if alpha <= cost:
        assert guaranteed_speedup(alpha, cost) == 1.0
        assert speedup(alpha, cost, best) == pytest.approx(1.0, abs=1e-12)


def test_guaranteed_speedup_by_hand() -> None:
    assert guaranteed_speedup(0.8, 0.2) == pytest.approx(1.5)
    assert guaranteed_speedup(0.2, 0.8) == 1.0


def test_a_second_hill_of_the_speedup_is_found() -> None:
    # Passes come in sizes of 4 and 8 rows; the jump makes 4 drafted tokens worse than 3.
    def cost_of_rows(rows: int) -> float:
        return 1.0 if rows <= 4 else 1.3

    gains = [speedup(0.9, 0.02, k, cost_of_rows) for k in range(8)]
    assert gains[7] > gains[3] > gains[4]
    assert best_num_draft_tokens(0.9, 0.02, cost_of_rows, max_num_draft_tokens=7) == 7
    assert best_num_draft_tokens(0.9, 0.02, cost_of_rows, max_num_draft_tokens=4) == 3


def test_a_measured_profile_is_searched_as_far_as_it_is_known() -> None:
    assert best_num_draft_tokens([0.9, 0.9, 0.9], 0.01) == 3
    assert best_num_draft_tokens([0.9, 0.9, 0.1], 0.2) == 2
    with pytest.raises(InvalidInput, match="at most 3 draft tokens"):
        best_num_draft_tokens([0.9, 0.9, 0.9], 0.01, max_num_draft_tokens=4)


def test_equal_lengths_go_to_the_shortest() -> None:
    assert best_num_draft_tokens(0.0, 0.0) == 0
    assert best_num_draft_tokens([0.9, 0.0, 0.9], 0.0) == 1


def test_a_dear_draft_that_is_seldom_right_is_not_worth_a_token() -> None:
    """Whatever verification costs; elsewhere such pairs were slower than plain (vLLM #21278)."""
    assert best_num_draft_tokens(0.3, 0.9) == 0
    assert best_num_draft_tokens([0.3, 0.2, 0.1], 0.9) == 0
    for verify_cost in (1.0, 1.2, 3.0):
        for overhead in (0.0, 0.1):
            assert best_num_draft_tokens(0.3, 0.9, verify_cost, overhead) == 0
            gains = [speedup(0.3, 0.9, k, verify_cost, overhead) for k in range(1, 20)]
            assert max(gains) < 1.0


# Break-even, and the other inverses.


@given(costs, st.integers(1, 12), st.floats(1.0, 2.0), st.floats(0.0, 0.5))
def test_break_even_acceptance_rate_is_where_the_speedup_is_one(
    cost: float, k: int, verify_cost: float, overhead: float
) -> None:
    alpha = break_even_acceptance_rate(cost, k, verify_cost, overhead)
    if alpha is None:
        assert speedup(1.0, cost, k, verify_cost, overhead) < 1.0
    else:
        assert speedup(alpha, cost, k, verify_cost, overhead) == pytest.approx(1.0, abs=1e-9)


def test_break_even_acceptance_rate_of_one_token_is_the_cost() -> None:
    assert break_even_acceptance_rate(0.3, 1) == pytest.approx(0.3, abs=1e-15)
    assert break_even_acceptance_rate(0.0, 4) == 0.0
    assert break_even_acceptance_rate(1.0, 4) == 1.0
    assert break_even_acceptance_rate(1.01, 4) is None


@given(rates, st.integers(1, 12), st.floats(1.0, 2.0), st.floats(0.0, 0.5))
def test_break_even_cost_is_where_the_speedup_is_one(
    alpha: float, k: int, verify_cost: float, overhead: float
) -> None:
    cost = break_even_cost(alpha, k, verify_cost, overhead)
    if cost is None:
        assert speedup(alpha, 0.0, k, verify_cost, overhead) < 1.0
    else:
        assert speedup(alpha, cost, k, verify_cost, overhead) == pytest.approx(1.0, abs=1e-12)


@given(st.floats(0.01, 1.0), st.integers(1, 12))
def test_acceptance_rate_for_inverts_expected_tokens(alpha: float, k: int) -> None:
    assert acceptance_rate_for(expected_tokens(alpha, k), k) == pytest.approx(alpha, abs=1e-12)


def test_acceptance_rate_for_its_limits() -> None:
    assert acceptance_rate_for(5.0, 4) == 1.0
    assert acceptance_rate_for(5.01, 4) is None
    assert acceptance_rate_for(1.0, 4) == 0.0


@given(rates, costs, lengths)
def test_implied_tokens_invert_the_speedup(alpha: float, cost: float, k: int) -> None:
    gain = speedup(alpha, cost, k, verify_cost=1.2, overhead=0.05)
    tokens = implied_tokens(gain, cost, k, verify_cost=1.2, overhead=0.05)
    assert tokens == pytest.approx(expected_tokens(alpha, k), rel=1e-12)


def test_arithmetic_overhead_counts_the_draft() -> None:
    # (1 - .8) * (4 * .1 + 5) / (1 - .8^5)
    assert arithmetic_overhead(0.8, 4, 0.1) == pytest.approx(5.4 / 3.3616)


@given(st.lists(rates, min_size=1, max_size=6))
def test_accepted_tokens_and_tokens_differ_by_the_extra_one(profile: list[float]) -> None:
    k = len(profile)
    assert expected_tokens(profile, k) == 1 + expected_accepted_tokens(profile, k)


# What is refused.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_tokens(1.2, 4), "from 0 to 1, got 1.2"),
        (lambda: expected_tokens(float("nan"), 4), "from 0 to 1, got nan"),
        (lambda: expected_tokens([0.5, -0.1], 2), "position 1 to be from 0 to 1, got -0.1"),
        (lambda: expected_tokens([], 0), "at least one draft position"),
        (lambda: expected_tokens([0.5], 2), "at most 1 draft tokens"),
        (lambda: expected_tokens(0.5, -1), "0 or more, got -1"),
        (lambda: speedup(0.5, -0.1, 2), "cost to be a finite number, 0 or more, got -0.1"),
        (lambda: speedup(0.5, float("inf"), 2), "got inf"),
        (lambda: speedup(0.5, 0.1, 2, overhead=-1), "overhead to be a finite number"),
        (lambda: speedup(0.5, 0.1, 2, verify_cost=0), "verify_cost for 3 rows .* above 0"),
        (lambda: break_even_cost(0.5, 0), "at least 1 draft token"),
        (lambda: best_num_draft_tokens(0.5, 0.1, max_num_draft_tokens=-1), "got -1"),
        (lambda: guaranteed_speedup(2, 0.1), "got 2"),
        (lambda: oracle_tokens(-1), "got -1"),
    ],
)
def test_bad_numbers_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_the_planner_runs_without_torch() -> None:
    """`paceline plan` has to start at once."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import paceline.economics.cost, paceline.economics.published\n"
        "import paceline.economics.roofline\n"
        "import paceline.economics.stats"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
