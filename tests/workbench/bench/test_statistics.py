"""Statistics of a benchmark on runs whose speeds are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.economics import cost
from paceline.workbench.bench.predicted import predicted_speedup, prices_of
from paceline.workbench.bench.runs import RoundFacts, Run
from paceline.workbench.bench.schedule import schedule
from paceline.workbench.bench.statistics import (
    Noise,
    Ratio,
    compare,
    fastest,
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


UNKNOWN = Noise(None, 0, None)


def test_speedup_is_the_geometric_mean_over_prompts() -> None:
    """Of 1/2, 2 and 2; Student's t with 2 degrees of freedom is 4.302653 at 97.5 %."""
    seconds = [(2.0, 1.0), (1.0, 2.0), (2.0, 1.0)]
    runs = [
        run(item, method, pair[method]) for item, pair in enumerate(seconds) for method in range(2)
    ]
    found = speedup(runs, 1, UNKNOWN)
    assert found is not None
    mean = math.log(2) / 3
    assert found.value == pytest.approx(math.exp(mean))
    half = 4.302653 * np.std([math.log(a / b) for a, b in seconds], ddof=1) / math.sqrt(3)
    assert found.low == pytest.approx(math.exp(mean - half))
    assert found.high == pytest.approx(math.exp(mean + half))
    with_prefill = speedup(runs, 1, UNKNOWN, with_prefill=True)
    assert with_prefill is not None
    assert with_prefill.value == pytest.approx((2.5 / 1.5 * 1.5 / 2.5 * 2.5 / 1.5) ** (1 / 3))


def test_prompts_that_agree_by_chance_do_not_make_noise_small() -> None:
    """Three equal ratios; the noise of a run is 10 %, known from 30 pairs (t = 2.042272).

    A ratio of one run and one plain run has the variance of two runs, and there are three.
    """
    runs = [run(item, method, 2.0 - method) for item in range(3) for method in range(2)]
    found = speedup(runs, 1, Noise(0.1, 30, 1.0))
    assert found is not None
    assert found.high == pytest.approx(2 * math.exp(2.042272 * 0.1 * math.sqrt(2 / 3)))


def test_prompts_on_which_one_is_missing_do_not_count() -> None:
    runs = [run(0, 0, 2.0), run(0, 1, 1.0), run(1, 0, 1.0), run(2, 1, 2.0)]
    found = speedup(runs, 1, UNKNOWN)
    assert found is not None
    assert (found.value, found.low, found.num_prompts) == (pytest.approx(2.0), None, 1)
    assert speedup(runs, 3, UNKNOWN) is None
    assert log_speed([run(0, 0, 1.0, tokens=0)]) is None


def busy_benchmark(
    seed: int, ratios: list[float], items: int, spread: float, scatter: float
) -> list[Run]:
    """A benchmark on a machine that others use, in the order of `schedule`.

    The speed of the machine wanders (a first-order autoregression with memory .8), each run has
    noise of its own with heavy tails (Student's t with 4 degrees of freedom), and the true ratio
    of a method differs from prompt to prompt.

    Args:
        seed: of everything.
        ratios: the true speed of each method, plain decoding first.
        items: the number of prompts.
        spread: the standard deviation of the logarithm of the true ratio over prompts.
        scatter: the size of both kinds of noise.
    """
    random = np.random.default_rng(seed)
    own = np.exp(random.normal(0, spread, (items, len(ratios))))
    own[:, 0] = 1
    drift, found = 0.0, []
    for step in schedule(items, len(ratios), 1):
        drift = 0.8 * drift + scatter * float(random.normal())
        noise = drift + scatter * float(random.standard_t(4)) / math.sqrt(2)
        seconds = math.exp(noise) / (ratios[step.method] * own[step.item, step.method])
        found.append(run(step.item, step.method, seconds))
    return found


@pytest.mark.statistical
@pytest.mark.parametrize("items", [4, 12])
def test_the_interval_of_the_speedup_covers(items: int) -> None:
    """400 benchmarks of a busy machine, seeds 0 to 399, 10 % scatter, 20 % between prompts.

    At the promised 95 %, fewer than 366 that cover (91.5 %) have a chance of 1.5e-3 (binomial).
    """
    covered = 0
    for seed in range(400):
        runs = busy_benchmark(seed, [1.0, 1.3], items, spread=0.2, scatter=0.1)
        found = speedup(runs, 1, noise_of(runs))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.3 <= found.high
    assert covered >= 366


@pytest.mark.statistical
def test_four_benchmarks_of_the_same_agree() -> None:
    """The interval of one benchmark holds what three others find, in 9 of 10 cases.

    100 groups of four with 8 prompts, seeds 0 to 399. A figure of another benchmark scatters as
    this one does, so that the 95 % interval holds it in about 83 % of cases (Cumming and Maillardet
    2006); all intervals of a group overlap nearly always. Asked are both.
    """
    held, overlap = 0, 0
    for group in range(100):
        found = []
        for seed in range(4 * group, 4 * group + 4):
            runs = busy_benchmark(seed, [1.0, 1.5], 8, spread=0.0, scatter=0.15)
            ratio = speedup(runs, 1, noise_of(runs))
            assert ratio is not None
            assert ratio.low is not None
            assert ratio.high is not None
            found.append((ratio.value, ratio.low, ratio.high))
        _, low, high = found[0]
        held += sum(low <= value <= high for value, _, _ in found[1:])
        overlap += max(low for _, low, _ in found) <= min(high for _, _, high in found)
    assert held >= 0.78 * 300
    assert overlap >= 95


def test_pairing_removes_the_spread_between_prompts() -> None:
    runs = runs_with_noise(0.01, 1.5, 10, seed=0)
    found = speedup(runs, 1, noise_of(runs))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.high / found.low < 1.05  # prompts differ by far more


@pytest.mark.statistical
def test_no_one_is_named_the_fastest_of_equals() -> None:
    """400 benchmarks of plain decoding and five equal methods, 6 prompts, seeds 0 to 399.

    A single one may be named in at most 5 %; more than 34 have a chance of 1.5e-3 (binomial).
    """
    named = 0
    for seed in range(400):
        runs = busy_benchmark(seed, [1.0] * 6, 6, spread=0.0, scatter=0.1)
        named += len(fastest(runs, 6, noise_of(runs))) == 1
    assert named <= 34


def test_the_fastest_is_named_where_it_is_clear() -> None:
    runs = busy_benchmark(0, [1.0, 1.5, 1.1, 1.5], 12, spread=0.02, scatter=0.03)
    assert sorted(fastest(runs, 4, noise_of(runs))) == [1, 3]
    runs = busy_benchmark(0, [1.0, 1.3, 1.5], 12, spread=0.02, scatter=0.03)
    assert fastest(runs, 3, noise_of(runs)) == [2]
    runs = busy_benchmark(0, [1.0, 0.7, 0.8], 12, spread=0.02, scatter=0.03)
    assert fastest(runs, 3, noise_of(runs)) == [0]
    assert fastest([item for item in runs if item.item < 2], 3, UNKNOWN) == []


def with_rounds(item: int, method: int, seconds: float, rounds: int) -> Run:
    facts_ = RoundFacts(2, 1, 1, 1, 2, 0.1, 0.1, 0.1)
    return Run(item, method, tuple(range(12)), "length", 3, (facts_,) * rounds, 0.5, seconds)


def test_a_speedup_beyond_the_tokens_a_round_is_impossible() -> None:
    """12 tokens in 10 rounds, so 1.2 at most, and 2.35 was measured."""
    runs = [
        with_rounds(item, method, seconds, rounds)
        for item in range(4)
        for method, seconds, rounds in ((0, 2.35, 12), (1, 1.0, 10), (0, 2.35, 12))
    ]
    found = speedup(runs, 1, noise_of(runs))
    assert found is not None
    assert (found.value, found.possible) == (pytest.approx(2.35), pytest.approx(1.2))
    assert not found.is_possible
    assert fastest(runs, 2, noise_of(runs)) == []
    # A little more than 1.2 may be, where a pass over two rows takes less time than one over one.
    assert Ratio(1.3, None, None, 4, possible=1.2).is_possible


def test_two_methods_are_compared_on_the_prompts_of_both() -> None:
    runs = [run(0, 1, 1.0), run(0, 2, 2.0), run(1, 1, 1.0), run(2, 2, 1.0)]
    found = compare(runs, 1, 2, UNKNOWN)
    assert found is not None
    assert (found.value, found.num_prompts) == (pytest.approx(2.0), 1)


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
