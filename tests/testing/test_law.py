"""The oracle has an oracle: laws that can be worked out by hand."""

from __future__ import annotations

import pytest
import torch

from paceline.core.protocols import Noise, Purpose
from paceline.errors import ContractViolation
from paceline.testing.law import output_law
from tests.rounds import law


def test_a_function_without_chance_has_one_outcome() -> None:
    assert output_law(lambda noise: "always") == {"always": 1.0}


def test_certain_decisions_are_no_decisions() -> None:
    def run(noise: Noise) -> tuple[bool, bool, int]:
        p = law(0.0, 2.0)
        return noise.accept(1.0, 0), noise.accept(-0.5, 0), noise.sample(p, 0, Purpose.DRAFT)

    assert output_law(run) == {(True, False, 1): 1.0}


def test_two_dice() -> None:
    die = torch.ones(6, dtype=torch.float64)  # any positive sum

    def run(noise: Noise) -> int:
        return sum(noise.sample(die, position, Purpose.TARGET) + 1 for position in range(2))

    found = output_law(run)
    for total in range(2, 13):
        assert found[total] == pytest.approx((6 - abs(total - 7)) / 36, abs=1e-15)


def test_the_number_of_decisions_may_depend_on_decisions() -> None:
    """The first success among at most three tries."""

    def run(noise: Noise) -> int | None:
        return next((i for i in range(3) if noise.accept(0.25, i)), None)

    assert output_law(run) == pytest.approx(
        {0: 0.25, 1: 0.75 * 0.25, 2: 0.75**2 * 0.25, None: 0.75**3}, abs=1e-15
    )


def test_races_at_one_position_share_their_outcome() -> None:
    p = law(0.5, 0.3, 0.2)

    def run(noise: Noise) -> tuple[int, int, int]:
        return noise.race(p, 0), noise.race(p, 0), noise.race(p, 1)

    found = output_law(run)
    assert all(first == second for first, second, _ in found)
    assert found[0, 0, 2] == pytest.approx(0.1, abs=1e-15)


def test_what_cannot_be_enumerated_says_so() -> None:
    p, q = law(0.5, 0.5), law(0.4, 0.6)
    with pytest.raises(ContractViolation, match="two laws at one position"):
        output_law(lambda noise: (noise.race(p, 0), noise.race(q, 0)))
    with pytest.raises(ContractViolation, match="more than 10 cases"):
        output_law(lambda noise: noise.sample(torch.ones(11), 0, Purpose.DRAFT), max_runs=10)
    with pytest.raises(ContractViolation, match="positive sum"):
        output_law(lambda noise: noise.sample(torch.zeros(2), 0, Purpose.DRAFT))


def test_chance_from_elsewhere_is_noticed() -> None:
    sizes = iter([5, 5, 5, 5, 2])

    def run(noise: Noise) -> int:
        return noise.sample(torch.ones(next(sizes)), 0, Purpose.DRAFT)

    with pytest.raises(ContractViolation, match="from outside the noise"):
        output_law(run)


def test_the_probabilities_sum_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    laws = torch.rand(4, 5, generator=generator, dtype=torch.float64)

    def run(noise: Noise) -> tuple[int, ...]:
        tokens = [noise.sample(laws[0], 0, Purpose.TARGET)]
        while len(tokens) < 4 and noise.accept(0.3 + 0.1 * tokens[-1], len(tokens)):
            tokens.append(noise.sample(laws[tokens[-1] % 4], len(tokens), Purpose.TARGET))
        return tuple(tokens)

    assert sum(output_law(run).values()) == pytest.approx(1, abs=1e-12)
