"""Statistics of a benchmark on runs whose speeds are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.economics import cost
from paceline.workbench.bench.predicted import predicted_speedup, prices_of
from paceline.workbench.bench.runs import RoundFacts, Run
from paceline.workbench.bench.statistics import (
    Noise,
    log_speed,
    noise_of,
    prompt_ratios,
    share_of_time,
    speedup,
)


def run(item: int, method: int, seconds: float, tokens: int = 10, prefill: float = 0.5) -> Run:
    return Run(item, method, tuple(range(tokens)), "length", 3, (), prefill, seconds)


def runs_with_noise(deviation: float, ratio: float, items: int, seed: int) -> list[Run]:
    """Plain twice and one method once on each prompt; prompts differ tenfold in speed."""
    random = np.random.default_rng(seed)
    found = []
    for item in range(items):
        base = math.exp(random.normal(0, 1))
        for method, factor in ((0, 1.0), (1, ratio), (0, 1.0)):
            found.append(run(item, method, base / factor * math.exp(random.normal(0, deviation))))
    return found


def test_noise_is_that_of_one_run() -> None:
    noise = noise_of([run(0, 0, 1.0), run(0, 1, 9.0), run(0, 0, 2.0)])
    assert noise.num_pairs == 1
    assert noise.deviation == pytest.approx(math.log(2) / math.sqrt(2))
    assert noise.ratio == pytest.approx(0.5)
    assert noise_of([run(0, 0, 1.0), run(0, 1, 1.0)]).deviation is None


@pytest.mark.statistical
def test_noise_is_found_again() -> None:
    """n = 400 pairs, seed 1: the estimate is within 4 standard errors (false alarm 6e-5)."""
    noise = noise_of(runs_with_noise(0.05, 1.0, 400, seed=1))
    assert noise.deviation == pytest.approx(0.05, rel=4 / math.sqrt(2 * 400))


def test_speedup_is_the_geometric_mean_over_prompts() -> None:
    runs = [run(0, 0, 2.0), run(0, 1, 1.0), run(1, 0, 1.0), run(1, 1, 2.0)]
    found = speedup(runs, 1)
    assert found is not None
    assert found.value == pytest.approx(1.0)
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(2.0))
    with_prefill = speedup(runs, 1, with_prefill=True)
    assert with_prefill is not None
    assert with_prefill.value == pytest.approx(math.sqrt(2.5 / 1.5 * 1.5 / 2.5))


def test_prompts_on_which_one_is_missing_do_not_count() -> None:
    runs = [run(0, 0, 2.0), run(0, 1, 1.0), run(1, 0, 1.0), run(2, 1, 2.0)]
    found = speedup(runs, 1)
    assert found is not None
    assert (found.value, found.low, found.num_prompts) == (pytest.approx(2.0), None, 1)
    assert speedup(runs, 3) is None
    assert log_speed([run(0, 0, 1.0, tokens=0)]) is None


@pytest.mark.statistical
def test_the_interval_of_the_speedup_covers() -> None:
    """True ratio 1.3 with 10 % scatter a run, 12 prompts, 200 benchmarks, seeds 0 to 199.

    The percentile bootstrap is known to be a little short at 12: at least 85 % of the 95 %
    intervals must cover (for coverage .90 the chance of fewer than 170 of 200 is .6 %).
    """
    covered = 0
    for seed in range(200):
        found = speedup(runs_with_noise(0.1, 1.3, 12, seed), 1)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.3 <= found.high
    assert covered >= 170


def test_pairing_removes_the_spread_between_prompts() -> None:
    found = speedup(runs_with_noise(0.01, 1.5, 10, seed=0), 1)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.high / found.low < 1.05  # prompts differ by far more


@pytest.mark.statistical
def test_equal_methods_are_seldom_called_slower_on_a_prompt() -> None:
    """400 prompts, seed 3: 2.5 % expected, so 10; more than 24 has a chance of 5e-5."""
    runs = runs_with_noise(0.05, 1.0, 400, seed=3)
    slower = sum(ratio.is_slower for ratio in prompt_ratios(runs, 1, noise_of(runs)))
    assert 0 < slower <= 24


def test_slower_beyond_noise_is_found_and_within_noise_is_not() -> None:
    noise = Noise(0.01, 30, 1.0)
    runs = [run(0, 0, 1.0), run(0, 1, 1.1), run(0, 0, 1.0), run(1, 0, 1.0), run(1, 1, 1.01)]
    first, second = prompt_ratios(runs, 1, noise)
    assert first.is_slower
    assert not second.is_slower
    assert not prompt_ratios(runs, 1, Noise(None, 0, None))[0].is_slower


def facts(length: int, accepted: int, *, draft: float, target: float) -> RoundFacts:
    return RoundFacts(accepted + 1, length, length, accepted, length + 1, draft, target, 0.001)


def test_the_parts_of_the_time_add_up() -> None:
    rounds = (facts(2, 1, draft=0.1, target=0.2), facts(2, 2, draft=0.1, target=0.2))
    one = Run(0, 1, (1, 2, 3, 4, 5), "length", 3, rounds, 0.5, 1.0)
    parts = one.parts_s
    assert parts == {
        "prefill": 0.5,
        "draft": pytest.approx(0.2),
        "target": pytest.approx(0.4),
        "verify": pytest.approx(0.002),
        "rest": pytest.approx(0.398),
    }
    assert sum(parts.values()) == pytest.approx(one.total_s)
    assert share_of_time([one, one])["target"] == pytest.approx(0.8)


def test_prediction_is_the_cost_model_on_the_measured_parts() -> None:
    """Drafts of 4 with alpha .8 at each position, c = .05: 2.8013 times plain."""
    plain = tuple(facts(0, 0, draft=0.0, target=1.0)._replace(verify_s=0.0) for _ in range(50))
    # Of 625 drafts .8 reach each next position.
    reached = [625, 500, 400, 320, 256]
    accepted = [a for a in range(5) for _ in range(reached[a] - (reached[a + 1] if a < 4 else 0))]
    rounds = tuple(facts(4, a, draft=0.2, target=1.0)._replace(verify_s=0.0) for a in accepted)
    runs = [
        Run(0, 0, tuple(range(50)), "length", 3, plain, 0.0, 50.0),
        Run(0, 1, tuple(range(9)), "length", 3, rounds, 0.0, 625 * 1.2),
    ]
    prices = prices_of(runs)
    assert predicted_speedup(runs, 1, prices) == pytest.approx(cost.speedup(0.8, 0.05, 4))
    assert predicted_speedup(runs, 0, prices) == pytest.approx(1.0)
    assert predicted_speedup(runs, 2, prices) is None


def test_what_is_paid_once_is_in_the_prediction_and_in_no_price() -> None:
    """A draft model takes the prompt in with its first draft: here ten seconds, once."""
    plain = tuple(facts(0, 0, draft=0.0, target=1.0)._replace(verify_s=0.0) for _ in range(4))
    usual = facts(1, 1, draft=0.2, target=1.0)._replace(verify_s=0.0)
    rounds = (usual._replace(draft_s=10.2), usual, usual, usual)
    runs = [
        Run(0, 0, tuple(range(4)), "length", 3, plain, 0.0, 4.0),
        Run(0, 1, tuple(range(8)), "length", 3, rounds, 0.0, 14.8),
    ]
    found = predicted_speedup(runs, 1, prices_of(runs))
    assert found == pytest.approx(2 / ((4 * 1.2 + 10) / 4))
