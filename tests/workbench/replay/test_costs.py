"""Predicted speed-ups from timings on a busy machine whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from paceline.core.protocols import Work
from paceline.core.target import Scores
from paceline.economics import cost
from paceline.economics.stats import AcceptanceCounts
from paceline.testing.table import TableTarget
from paceline.workbench.replay import costs
from paceline.workbench.replay.costs import PassTimes, predict, predicted_speedup, time_passes

ALPHA, K, STEP = 0.8, 4, 0.01
TRUE = {1: 0.1, 2: 0.1, 3: 0.102, 5: 0.105}


def steps(passes: PassTimes, length: int) -> float:
    return length * passes.step(0)


def busy(seed: int, scatter: float) -> PassTimes:
    """Timings with heavy tails, in repeats of which some are slow as a whole."""
    random = np.random.default_rng(seed)

    def noise(size: int = 15) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.exp(scatter * np.abs(random.standard_t(3, size)))

    repeats = noise() * np.where(random.random(15) < 0.2, 3.0, 1.0)
    return PassTimes(
        {rows: list(true * repeats * noise()) for rows, true in TRUE.items()},
        {0: list(STEP * repeats * noise())},
    )


def texts(seed: int, count: int = 12) -> list[AcceptanceCounts]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        drafts = random.random((30, K)) < ALPHA
        found.append(
            AcceptanceCounts.from_rounds((K, int(np.cumprod(row).sum())) for row in drafts)
        )
    return found


@pytest.mark.statistical
def test_the_interval_covers_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 replays, seeds 0 to 99, noise of 20 % with heavy tails. At the promised 95 %, fewer than
    88 that cover have a chance of 4e-3 (binomial); bootstraps are a little narrow."""
    monkeypatch.setattr(costs, "DRAWS", 100)
    truth = cost.expected_tokens(ALPHA, K) * TRUE[1] / (TRUE[5] + K * STEP)
    covered = 0
    for seed in range(100):
        found = predict(texts(seed), busy(seed, 0.2), steps)
        assert found is not None
        covered += found.low <= truth <= found.high
    assert covered >= 88


def test_no_timings_can_exceed_the_acceptance_length() -> None:
    """Also where noise makes a pass over more rows look far cheaper than one over a row."""
    counts = sum(texts(0), AcceptanceCounts())
    length = 1 + counts.num_accepted_tokens / counts.rounds
    for seed in range(50):
        found = predicted_speedup(counts, busy(seed, 1.0), steps)
        assert found is not None
        assert found <= length * (1 + 1e-9)
    upside_down = PassTimes({1: [0.3] * 3, 5: [0.1] * 3}, {0: [0.0] * 3})
    assert predicted_speedup(counts, upside_down, steps) == pytest.approx(length)


def test_one_slow_moment_does_not_matter() -> None:
    times = PassTimes({1: [0.1, 0.1, 9.0, 0.1, 0.1], 5: [0.1] * 5}, {0: [0.01] * 5})
    assert times.of(1) == 0.1


class Clocked(TableTarget):
    """A pass takes its time by a clock of its own, and nothing by the wall's."""

    now = 0.0

    def score(self, work: Sequence[Work]) -> list[Scores]:
        found = super().score(work)
        Clocked.now += 1.0 + 0.5 * (sum(item.num_rows for item in work) - 1)
        return found


def test_passes_are_timed_in_turns_by_the_clock() -> None:
    rows = torch.full((7,), 1 / 7, dtype=torch.float64)
    target, draft = Clocked(rows, max_length=64), Clocked(rows, max_length=64)
    found = time_passes(target, {1: draft, 2: draft}, [1, 2, 3], 6, clock=lambda: Clocked.now)
    assert {n: found.of(n) for n in (1, 3, 5, 7)} == {1: 1.0, 3: 2.0, 5: 3.0, 7: 4.0}
    assert (found.step(1), found.step(2)) == (1.0, 1.0)
    # Ten seconds are over at once; the fewest repeats are made.
    assert found.num_repeats == costs.FEWEST_REPEATS
    assert math.isclose(found.of(2), 1.5)
