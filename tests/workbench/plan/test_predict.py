"""Predictions against the formula, against simulated rounds, and intervals that cover."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from paceline.economics import cost
from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput
from paceline.workbench.plan.acceptance import MeasuredSpeed
from paceline.workbench.plan.costs import MethodCosts, PassCosts, PassTime
from paceline.workbench.plan.decide import Method, counts_of_rates, decide, sentences
from paceline.workbench.plan.predict import (
    expected_tokens,
    predict,
    round_seconds,
    shares_of_lengths,
)
from paceline.workbench.workload.methods import DraftSource

FLAT = PassCosts((PassTime(1, 1, 100, 0.1), PassTime(64, 1, 100, 0.1)))
STEEP = PassCosts((PassTime(1, 1, 100, 0.1), PassTime(11, 1, 100, 0.2)))


def test_a_tree_takes_more_rows_than_its_path_is_long() -> None:
    """STEEP takes 10 ms a row: 2 rows a token of 4 are 40 ms more than one."""
    counts = counts_of_rates([0.8], 4)
    chain, tree = (
        round_seconds(counts, 4, STEEP, MethodCosts(rows_per_token=width)) for width in (1.0, 2.0)
    )
    assert tree - chain == pytest.approx(0.04)


def test_a_tree_is_drafted_to_its_last_level_whatever_is_kept() -> None:
    """Of 4 levels 2 are kept, in every round: 4 steps of 5 ms, where a chain of 2 takes 2."""
    counts = AcceptanceCounts.from_rounds([(2, 1)] * 10)
    tree, chain = (
        round_seconds(counts, 4, FLAT, MethodCosts(0.0, 0.005, rows_per_token=width))
        for width in (2.5, 1.0)
    )
    assert tree == pytest.approx(0.1 + 0.02)
    assert chain == pytest.approx(0.1 + 0.01)


@pytest.mark.parametrize(
    ("alpha", "c", "k", "expected"),
    [
        (0.3, 0.05, 4, 1.1876),
        (0.8, 0.05, 4, 2.8013),
        (0.9, 0.05, 4, 3.4126),
        (0.8, 0.3, 4, 1.528),
        (0.8, 0.6, 4, 0.9887),
        (0.7, 0.13, 4, 1.8244),
    ],
)
def test_the_formula_is_a_special_case(alpha: float, c: float, k: int, expected: float) -> None:
    counts = counts_of_rates([alpha], k, rounds=10_000_000)
    found = predict("m", counts, k, FLAT, MethodCosts(0.0, c * 0.1))
    assert found.speedup == pytest.approx(expected, abs=1e-4)
    assert found.speedup == pytest.approx(cost.speedup(alpha, c, k), rel=1e-5)


def test_drafts_of_different_lengths_cost_what_each_costs() -> None:
    rounds = [(4, 4)] * 2 + [(2, 1)] * 3 + [(0, 0)] * 5
    counts = AcceptanceCounts.from_rounds(rounds)
    costs = MethodCosts(0.01, 0.005, 0.001)
    for k in (1, 2, 3, 4):
        lengths = [min(k, drafted) for drafted, _ in rounds]
        seconds = np.mean([STEEP.seconds(1 + n) + costs.draft(n) + costs.rest for n in lengths])
        assert round_seconds(counts, k, STEEP, costs) == pytest.approx(seconds)
        tokens = np.mean([1 + min(k, accepted) for _, accepted in rounds])
        assert expected_tokens(counts, k) == pytest.approx(tokens)
        assert sum(shares_of_lengths(counts, k)) == pytest.approx(1)


@pytest.mark.statistical
def test_the_interval_covers_what_it_says() -> None:
    """300 samples of 200 rounds, seed 0. A 95 % interval that covers less than 90 % of them has a
    chance below 1e-4 (binomial)."""
    generator, alpha, k = random.Random(0), 0.7, 4
    truth = cost.speedup(alpha, 0.1, k)
    inside = 0
    for _ in range(300):
        rounds = []
        for _ in range(200):
            accepted = 0
            while accepted < k and generator.random() < alpha:
                accepted += 1
            rounds.append((k, accepted))
        counts = AcceptanceCounts.from_rounds(rounds)
        found = predict("m", counts, k, FLAT, MethodCosts(0.0, 0.01), draws=400)
        inside += found.low <= truth <= found.high
    assert inside >= 270


def test_the_interval_widens_with_the_spread_of_the_times() -> None:
    def spread(value: float) -> PassCosts:
        return PassCosts((PassTime(1, 1, 100, 0.1, value), PassTime(64, 1, 100, 0.1, value)))

    counts = counts_of_rates([0.8], 4)
    quiet, noisy = (predict("m", counts, 4, spread(value), MethodCosts()) for value in (0.0, 0.1))
    assert quiet.high - quiet.low < 0.1 < noisy.high - noisy.low
    assert quiet.low < quiet.speedup < quiet.high


def test_at_a_batch_rows_add_up_and_drafts_are_made_one_after_another() -> None:
    counts = counts_of_rates([0.8], 4)
    found = predict("m", counts, 4, STEEP, MethodCosts(0.0, 0.002), batch=8)
    plain = STEEP.seconds(1, 8)
    assert found.seconds == pytest.approx(STEEP.seconds(5, 8) + 8 * 4 * 0.002)
    assert found.speedup == pytest.approx(3.3616 * plain / found.seconds, rel=1e-3)


@pytest.mark.parametrize(
    ("counts", "k", "message"),
    [
        (AcceptanceCounts(), 2, "no rounds"),
        (AcceptanceCounts.from_rounds([(2, 1)]), 3, "says nothing about k = 3"),
    ],
)
def test_what_cannot_be_predicted(counts: AcceptanceCounts, k: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        predict("m", counts, k, FLAT, MethodCosts())


def known(alpha: float) -> dict[int, AcceptanceCounts]:
    return dict.fromkeys(range(1, 9), counts_of_rates([alpha], 8))


class TestDecisions:
    GOOD = Method("good", known(0.8), MethodCosts(0.0, 0.005), "model", DraftSource("D"))
    POOR = Method("poor", known(0.1), MethodCosts(0.0, 0.05), "ngram")
    AUTO = MeasuredSpeed("poor,k=auto", 3.0, 2.8, 3.2, tokens=3.1, seconds=0.11, num_draft_tokens=4)

    def test_the_fastest_method_and_length(self) -> None:
        found = decide([self.POOR, self.GOOD], FLAT)
        assert found.best is not None
        assert (found.best.method, found.best.num_draft_tokens) == ("good", 8)
        assert found.best.speedup == max(row.speedup for row in found.rows)
        assert sentences(found)[0].startswith("Use good with k = 8: 3.0")

    def test_plain_decoding_where_nothing_pays(self) -> None:
        found = decide([self.POOR], FLAT)
        assert found.best is None
        assert sentences(found) == [
            "Do not use speculation here: the best, poor with k = 1, would give 0.73 times the "
            f"speed of plain decoding ({found.rows[0].low:.2f} to {found.rows[0].high:.2f}), "
            "1.10 tokens per round."
        ]
        assert decide([], FLAT).best is None

    def test_gains_end_where_rows_cost(self) -> None:
        # Rows are free up to 16 and then cost as much as they are many.
        points = [(1, 0.1), (16, 0.1), (32, 0.2), (640, 4.0)]
        passes = PassCosts(tuple(PassTime(n, 1, 100, t) for n, t in points))
        found = decide([self.GOOD], passes)
        assert found.by_batch[1] is not None
        assert found.by_batch[64] is None
        table = found.schedule("good")
        assert table[0][0] == 1
        assert table[-1][1:] == (10_000, 0)
        for (_, end, _), (start, _, _) in pairwise(table):
            assert start == end + 1
        lengths = [k for _, _, k in table]
        assert lengths == sorted(lengths, reverse=True)
        assert any("and more: plain decoding" in line for line in sentences(found))
        assert sum("By batch" in line for line in sentences(found)) == 1

    def test_a_method_gains_no_more_at_a_greater_batch(self) -> None:
        """Passes of 45 rows happen to be measured fast: that is 9 tokens of 5 sequences' drafts."""
        points = [(1, 0.1), (8, 0.1), (16, 0.3), (32, 0.6), (45, 0.6), (576, 0.7), (640, 0.7)]
        passes = PassCosts(tuple(PassTime(n, 1, 100, t) for n, t in points))
        found = decide([self.GOOD, self.POOR], passes)
        gains = [1.0 if row is None else row.speedup for row in found.by_batch.values()]
        assert gains == sorted(gains, reverse=True)
        (line,) = [line for line in sentences(found) if line.startswith("By batch")]
        assert line.count("plain decoding") <= 1

    def test_auto_is_a_candidate_by_its_measured_speed(self) -> None:
        method = replace(self.POOR, adaptive=(self.AUTO,))
        best = decide([method], FLAT).best
        assert best is not None
        assert (best.method, best.num_draft_tokens, best.speedup) == ("poor", "auto", 3.0)
        # A fixed length of another method is predicted to be 2 % faster, which is too little.
        assert decide([method, self.GOOD], FLAT).best == best
        clearly = replace(method, adaptive=(replace(self.AUTO, speedup=2.5),))
        found = decide([clearly, self.GOOD], FLAT).best
        assert found is not None
        assert (found.method, found.num_draft_tokens) == ("good", 8)

    def test_nothing_is_said_of_batches_where_auto_alone_was_measured(self) -> None:
        found = decide([replace(self.POOR, by_length={}, adaptive=(self.AUTO,))], FLAT)
        assert found.by_batch == {}
        assert not any("By batch" in line for line in sentences(found))

    def test_a_measured_speed_that_tokens_do_not_allow_does_not_count(self) -> None:
        noise = replace(self.AUTO, speedup=4.0)
        found = decide([replace(self.POOR, adaptive=(noise,))], FLAT)
        assert found.best is None
        assert "That is noise and is ignored" in sentences(found)[0]
