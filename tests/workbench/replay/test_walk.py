"""The rounds along a text have the law of the rounds that wrote it, by enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput
from paceline.workbench.replay.costs import PassTimes, predicted_speedup
from paceline.workbench.replay.walk import Row, walk

P = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.7, 0.1, 0.2]]
Q = [[0.2, 0.7, 0.1], [0.3, 0.3, 0.4], [0.6, 0.2, 0.2]]
"""Laws of target and draft behind each token."""


def decode_law(length: int, k: int) -> dict[tuple[tuple[int, ...], AcceptanceCounts], float]:
    """The exact joint law of text and counts, by following every draw of decoding behind token 0.

    Token verification as it stands in Leviathan et al., algorithm 1; drafts are cut so that a
    round cannot pass the end.
    """
    law: dict[tuple[tuple[int, ...], AcceptanceCounts], float] = {}

    def go(text: tuple[int, ...], counts: AcceptanceCounts, mass: float) -> None:
        if len(text) == length:
            law[text, counts] = law.get((text, counts), 0.0) + mass
            return
        d = min(k, length - len(text) - 1)
        for draft in itertools.product(range(3), repeat=d):
            chance, last, accepted = mass, (0, *text)[-1], 0
            for token in draft:
                chance *= Q[last][token]
                last = token
            last = (0, *text)[-1]
            for token in draft:
                p, q = P[last], Q[last]
                ratio = min(1.0, p[token] / q[token])
                residual = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
                if ratio < 1:
                    for other in range(3):
                        if residual[other]:
                            go(
                                (*text, *draft[:accepted], other),
                                counts.add(d, accepted),
                                chance * (1 - ratio) * residual[other] / sum(residual),
                            )
                chance *= ratio
                last, accepted = token, accepted + 1
            for bonus in range(3):
                go((*text, *draft, bonus), counts.add(d, d), chance * P[last][bonus])

    go((), AcceptanceCounts(), 1.0)
    return law


def walk_law(text: tuple[int, ...], k: int) -> dict[AcceptanceCounts, float]:
    """The exact law of the counts that `walk` gives for a text, over all its draws."""
    rows = []
    for last, token in itertools.pairwise((0, *text)):
        p, q = P[last][token], Q[last][token]
        rows.append(Row(min(1.0, q / p)))
    law: dict[AcceptanceCounts, float] = {}

    def go(said: list[bool]) -> None:
        asked: list[float] = []

        class More(Exception):
            pass

        def uniform() -> float:
            if len(asked) == len(said):
                raise More
            asked.append(0.0)
            return 0.0 if said[len(asked) - 1] else 1 - 1e-12

        # Which row each draw was for is known from the rounds; so the chance is recounted below.
        try:
            counts = walk(rows, lambda done: min(k, len(text) - done - 1), uniform)
        except More:
            go([*said, True])
            go([*said, False])
            return
        law[counts] = law.get(counts, 0.0) + chance_of(said)

    def chance_of(said: list[bool]) -> float:
        chance, used = 1.0, iter(said)

        place = 0
        while place < len(text):
            d, accepted = min(k, len(text) - place - 1), 0
            while accepted < d:
                stay = rows[place + accepted].stay
                yes = True if stay == 1 else next(used)
                chance *= stay if yes else 1 - stay
                if not yes:
                    break
                accepted += 1
            place += accepted + 1
        return chance

    go([])
    return law


@pytest.mark.parametrize(("length", "k"), [(3, 1), (4, 2), (4, 3)])
def test_text_and_rounds_together_have_the_law_of_decoding(length: int, k: int) -> None:
    """Every text, its chance under the target times the law of the walk: that of decoding."""
    expected = decode_law(length, k)
    assert sum(expected.values()) == pytest.approx(1)
    found: dict[tuple[tuple[int, ...], AcceptanceCounts], float] = {}
    for text in itertools.product(range(3), repeat=length):
        mass = math.prod(P[last][token] for last, token in itertools.pairwise((0, *text)))
        for counts, chance in walk_law(text, k).items():
            found[text, counts] = mass * chance
    for key in {*expected, *found}:
        assert found.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), abs=1e-9)


def test_a_round_that_leaves_the_text_rejects_nothing() -> None:
    rows = [Row(0.0, 1.0), Row(1.0), Row(0.0), Row(0.0)]
    counts = walk(rows, lambda done: 3, lambda: 0.5)
    # Left at once and went on from the second; accepted one, was corrected; rejected at once.
    assert counts == AcceptanceCounts(3, (3, 3, 3), (3, 1, 0), (2, 0, 0))


def test_the_chance_of_staying_and_of_leaving() -> None:
    """n = 20,000, seed 5; four standard errors, false alarm below 2e-4 for each of three."""
    random = torch.Generator().manual_seed(5)
    seen: Counter[tuple[int, int]] = Counter()
    for _ in range(20_000):
        counts = walk([Row(0.5, 0.2)], lambda d: 1, lambda: float(torch.rand((), generator=random)))
        seen[counts.tested[0], counts.accepted[0]] += 1
    assert seen[1, 1] / 20_000 == pytest.approx(0.7, abs=4 * math.sqrt(0.21 / 20_000))
    assert seen[1, 0] / 20_000 == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 20_000))


def test_speed_is_the_cost_model() -> None:
    counts = AcceptanceCounts(
        rounds=625, drafted=(625,) * 4, tested=(625, 500, 400, 320), accepted=(500, 400, 320, 256)
    )
    flat = PassTimes({1: [2.0], 5: [2.0]}, {})
    found = predicted_speedup(counts, flat, lambda _, length: length * 0.1)
    assert found == pytest.approx(2.8013, abs=1e-4)  # alpha .8, c .05, k 4
    free = PassTimes({1: [1.0]}, {})
    assert predicted_speedup(AcceptanceCounts(), free, lambda *_: 0.0) is None
    plain = AcceptanceCounts.from_rounds([(0, 0)] * 3)
    assert predicted_speedup(plain, free, lambda *_: 0.0) == 1.0


def test_impossible_counts_stay_impossible() -> None:
    with pytest.raises(InvalidInput):
        AcceptanceCounts(1, (1,), (0,), (1,))
