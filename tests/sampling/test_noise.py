"""Keyed chance: repeatable, independent by seed, stream, position and purpose; of the right law.

Statistical tests are chi-square tests at a false-alarm rate of 1e-4 each; the seeds are fixed.
"""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from paceline.core.protocols import Purpose
from paceline.errors import ContractViolation
from paceline.sampling.noise import SeededNoise, exponentials, invert, race
from tests.rounds import law

ALARM = 1e-4


def chi_square(counts: list[int], expected: list[float]) -> float:
    """The p-value of counts against probabilities."""
    total = sum(counts)
    return float(stats.chisquare(counts, [total * value for value in expected]).pvalue)


def random_law(seed: int, size: int, *, zeros: float = 0.3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(size, generator=generator, dtype=torch.float64)
    weights[torch.rand(size, generator=generator) < zeros] = 0
    weights[seed % size] += 0.1
    return weights / weights.sum()


# ---------------------------------------------------------------- repeatable and independent


def decisions(noise: SeededNoise) -> list[int]:
    p = law(0.2, 0.3, 0.5)
    return [
        decision
        for position in range(40)
        for decision in (
            noise.sample(p, position, Purpose.DRAFT),
            int(noise.accept(0.4, position)),
            noise.sample(p, position, Purpose.TARGET),
            noise.race(p, position),
        )
    ]


def test_the_same_key_gives_the_same_decisions_and_another_key_others() -> None:
    keys = [(0, 0), (1, 0), (0, 1), (2**64 - 1, 0)]
    runs = [decisions(SeededNoise(seed, stream)) for seed, stream in keys]
    assert runs == [decisions(SeededNoise(seed, stream)) for seed, stream in keys]
    for one, two in itertools.combinations(runs, 2):
        assert one != two


def test_a_decision_does_not_depend_on_decisions_elsewhere() -> None:
    p = law(0.2, 0.3, 0.5)
    alone = SeededNoise(7).sample(p, 12, Purpose.TARGET)
    busy = SeededNoise(7)
    for position in range(20):
        busy.sample(p, position, Purpose.DRAFT)
        busy.accept(0.5, position)
        busy.race(p, position)
        if position != 12:
            busy.sample(p, position, Purpose.TARGET)
    assert busy.sample(p, 12, Purpose.TARGET) == alone


def test_certain_outcomes_use_up_no_number() -> None:
    p = law(0.2, 0.3, 0.5)
    one, two = SeededNoise(3), SeededNoise(3)
    assert two.accept(1.0, 5)
    assert two.accept(1.5, 5)
    assert not two.accept(0.0, 5)
    assert two.sample(law(0.0, 2.0), 5, Purpose.TARGET) == 1
    assert [one.accept(0.5, 5) for _ in range(20)] == [two.accept(0.5, 5) for _ in range(20)]
    assert one.sample(p, 5, Purpose.TARGET) == two.sample(p, 5, Purpose.TARGET)


def test_only_races_repeat_themselves() -> None:
    p = torch.full((1000,), 1e-3, dtype=torch.float64)
    noise = SeededNoise(0)
    assert len({noise.race(p, 9) for _ in range(10)}) == 1
    assert len({noise.race(p, position) for position in range(10)}) > 5
    assert len({noise.sample(p, 9, Purpose.TARGET) for _ in range(10)}) > 5


@pytest.mark.statistical
def test_numbers_for_neighbouring_keys_are_independent() -> None:
    """n = 4,000 pairs each, 4 x 4 cells, seed 11; five tests at 1e-4."""
    quarters = torch.full((4,), 0.25, dtype=torch.float64)

    def draws(shift: int, purpose: Purpose, seed: int = 11, stream: int = 0) -> list[int]:
        noise = SeededNoise(seed, stream)
        return [noise.sample(quarters, i + shift, purpose) for i in range(4000)]

    base = draws(0, Purpose.DRAFT)
    noise = SeededNoise(11)
    again = [
        (noise.sample(quarters, i, Purpose.DRAFT), noise.sample(quarters, i, Purpose.DRAFT))[1]
        for i in range(4000)
    ]
    others = {
        "position": draws(1, Purpose.DRAFT),
        "purpose": draws(0, Purpose.TARGET),
        "seed": draws(0, Purpose.DRAFT, seed=12),
        "stream": draws(0, Purpose.DRAFT, stream=1),
        "repeat": again,
    }
    for name, other in others.items():
        pairs = collections.Counter(zip(base, other, strict=True))
        counts = [pairs[a, b] for a in range(4) for b in range(4)]
        assert chi_square(counts, [1 / 16] * 16) > ALARM, name


# ---------------------------------------------------------------- the right law


@pytest.mark.statistical
def test_accept_sample_and_race_have_the_law_that_is_asked_for() -> None:
    """n = 8,000 each, seed 5; three tests at 1e-4."""
    noise, n = SeededNoise(5), 8000
    p = law(0.05, 0.0, 0.6, 0.35)
    accepted = sum(noise.accept(0.3, position) for position in range(n))
    assert chi_square([accepted, n - accepted], [0.3, 0.7]) > ALARM
    masses = [0.05, 0.6, 0.35]
    for draws in (
        [noise.sample(3 * p, position, Purpose.TARGET) for position in range(n)],
        [noise.race(3 * p, position) for position in range(n)],
    ):
        counts = collections.Counter(draws)
        assert counts[1] == 0
        assert chi_square([counts[0], counts[2], counts[3]], masses) > ALARM


@pytest.mark.parametrize("noise_of", ["sample", "race"])
def test_an_unnormalised_law_with_a_largest_entry_of_1_is_no_point_mass(noise_of: str) -> None:
    noise, ones = SeededNoise(0), torch.ones(4)
    if noise_of == "sample":
        drawn = {noise.sample(ones, i, Purpose.DRAFT) for i in range(100)}
    else:
        drawn = {noise.race(ones, i) for i in range(100)}
    assert drawn == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "bad", [torch.zeros(3), torch.zeros(200), torch.tensor([0.5, torch.nan, 0.5])]
)
def test_a_law_without_a_positive_sum_is_refused(bad: Tensor) -> None:
    with pytest.raises(ContractViolation, match="positive sum"):
        SeededNoise(0).sample(bad, 0, Purpose.TARGET)


SIZES = st.sampled_from([1, 2, 3, 127, 128, 129, 256, 1000])


@given(st.integers(0, 1000), SIZES, st.floats(0, 1, exclude_max=True))
def test_inversion_by_blocks_finds_the_token_of_plain_inversion(
    seed: int, size: int, uniform: float
) -> None:
    p = random_law(seed, size)
    token = invert(p, uniform)
    cumulative = np.cumsum(p.numpy())
    assert p[token] > 0
    below = cumulative[token - 1] if token else 0.0
    # Sums of blocks and of tokens round differently, by a few units in the last place.
    assert below - 1e-15 <= uniform * cumulative[-1] <= cumulative[token] + 1e-15


@pytest.mark.parametrize("size", [3, 300])
def test_a_number_just_below_one_takes_the_last_token_with_mass(size: int) -> None:
    p = torch.zeros(size, dtype=torch.float64)
    p[: size - 1] = 0.1
    assert invert(p, 1 - 2**-53) == size - 2
    assert invert(p, 1.0) == size - 2
    assert invert(p, 0.0) == 0
    p[0] = 0
    assert invert(p, 0.0) == 1


# ---------------------------------------------------------------- races


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
def test_the_number_of_a_token_does_not_depend_on_the_others(key: int, tokens: list[int]) -> None:
    together = exponentials(key, np.array(tokens))
    alone = [float(exponentials(key, np.array([token]))[0]) for token in tokens]
    assert together.tolist() == alone
    assert (together > 0).all()
    assert np.isfinite(together).all()


def test_exponentials_are_those_of_split_mix_64() -> None:
    """The published sequence for seed 1234567 (Rosetta Code; Vigna's splitmix64.c)."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    expected = [-np.log(((value >> 11) + 0.5) * 2.0**-53) for value in published]
    assert exponentials(1234567, np.arange(5)).tolist() == pytest.approx(expected, rel=1e-15)


@pytest.mark.statistical
def test_exponentials_are_exponential_by_token_and_by_key() -> None:
    """Kolmogorov-Smirnov, n = 20,000, seed (key) 3 and tokens 17; two tests at 1e-4."""
    by_token = exponentials(3, np.arange(20_000))
    by_key = [float(exponentials(key, np.array([17]))[0]) for key in range(20_000)]
    for numbers in (by_token, by_key):
        assert stats.kstest(numbers, "expon").pvalue > ALARM


@given(st.integers(0, 1000), SIZES, st.integers(0, 2**32))
def test_a_race_is_won_by_the_least_time(seed: int, size: int, noise_seed: int) -> None:
    p = random_law(seed, size)
    times = torch.from_numpy(np.random.default_rng(noise_seed).standard_exponential(size))
    finish = torch.where(p > 0, times / p, torch.inf)
    assert race(p, times) == int(finish.argmin())


def test_a_race_is_the_same_in_a_padded_vocabulary_and_at_any_support() -> None:
    p = random_law(1, 700)
    padded = torch.cat([p, torch.zeros(68, dtype=p.dtype)])
    dense = p + 1e-300  # every token runs, but those without mass have no chance
    for position in range(50):
        winner = SeededNoise(4).race(p, position)
        assert SeededNoise(4).race(padded, position) == winner
        assert SeededNoise(4).race(dense, position) == winner
        assert SeededNoise(4).race(p.float(), position) == winner


def test_a_number_is_that_of_philox_with_the_key_as_its_counter() -> None:
    """So numpy's own generator can replay any decision."""
    words = np.array([9, 2], dtype=np.uint64), np.array([0, 1, 33, Purpose.DRAFT], dtype=np.uint64)
    uniform = np.random.Generator(np.random.Philox(key=words[0], counter=words[1])).random()
    p = random_law(0, 200)
    noise = SeededNoise(9, 2)
    noise.sample(p, 33, Purpose.DRAFT)  # repeat 0
    noise.accept(0.5, 33)
    assert noise.sample(p, 33, Purpose.DRAFT) == invert(p, uniform)
