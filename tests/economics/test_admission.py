"""DSpark's scheduler: the paper's vectors, a brute force, and what it must not look at."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest

from paceline.economics.admission import admitted

CHAINS = [(0.9, 0.8, 0.5), (0.6, 0.5, 0.4)]


@pytest.mark.parametrize(("free", "counts"), [(20, [3, 2]), (4, [2, 1]), (1, [1, 0]), (0, [0, 0])])
def test_the_vector_of_the_paper(free: int, counts: list[int]) -> None:
    """With t0 + B as the time of a pass over B rows."""
    assert admitted(CHAINS, lambda rows: 1 / (free + rows)) == counts


def test_it_stops_at_the_first_token_that_does_not_pay() -> None:
    """The paper's example: two tokens would pay, but the first alone does not."""
    speed = {1: 1.0, 2: 0.5, 3: 0.45}
    assert admitted([(0.8, 0.9)], speed.__getitem__) == [0]
    assert best_of_all([(0.8, 0.9)], speed.__getitem__) == [2]


def rate(
    chains: Sequence[Sequence[float]], counts: Sequence[int], speed: Callable[[int], float]
) -> float:
    tokens = len(chains) + sum(
        math.prod(chain[: place + 1])
        for chain, count in zip(chains, counts, strict=True)
        for place in range(count)
    )
    return tokens * speed(len(chains) + sum(counts))


def best_of_all(chains: Sequence[Sequence[float]], speed: Callable[[int], float]) -> list[int]:
    """What is not allowed: the best cut, which looks at all confidences."""
    cuts = itertools.product(*(range(len(chain) + 1) for chain in chains))
    return list(max(cuts, key=lambda counts: rate(chains, counts, speed)))


@pytest.mark.parametrize("seed", range(20))
def test_with_passes_that_grow_steadily_it_finds_the_best_cut(seed: int) -> None:
    """Where each row costs no less than the one before, nothing is lost by stopping at once."""
    chance = random.Random(seed)
    chains = [[chance.random() for _ in range(chance.randint(0, 3))] for _ in range(3)]
    free = 5 * chance.random()

    def speed(rows: int) -> float:
        return 1 / (free + rows)

    found = admitted(chains, speed)
    best = rate(chains, best_of_all(chains, speed), speed)
    assert rate(chains, found, speed) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_a_token_is_admitted_by_what_is_known_before_it_is_drawn(seed: int) -> None:
    """Whatever the confidences after a token are, it stays in, or stays out."""
    chance = random.Random(seed)
    chains = [[chance.random() for _ in range(4)] for _ in range(3)]
    times = sorted(chance.random() + 0.2 for _ in range(20))

    def speed(rows: int) -> float:
        return 1 / times[rows]

    for chain, place in itertools.product(range(3), range(3)):
        was = admitted(chains, speed)[chain] > place
        for _ in range(5):
            changed = [list(own) for own in chains]
            changed[chain][place + 1 :] = [chance.random() for _ in changed[chain][place + 1 :]]
            assert (admitted(changed, speed)[chain] > place) == was


def test_other_rows_and_tokens_count() -> None:
    """Beside many rows of a prompt one more hardly matters; beside many sure tokens it does."""

    def speed(rows: int) -> float:
        return 1 / (1 + rows)

    assert admitted([(0.2,)], speed) == [0]
    assert admitted([(0.2,)], speed, other_rows=100) == [1]
    assert admitted([(0.2,)], speed, other_rows=100, other_tokens=90.0) == [0]


def test_without_chains_nothing_is_admitted() -> None:
    assert admitted([], lambda rows: 1.0) == []
    assert admitted([()], lambda rows: 1.0) == [0]
