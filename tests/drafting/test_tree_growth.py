"""Which nodes get children: against all other choices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from paceline.drafting.tree_growth import allocate, best, level_width


def test_best_against_a_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    for count in range(8):
        scores = torch.randint(4, (7,), generator=generator).tolist()
        places = best(scores, count)
        assert places == sorted(places)
        assert sorted(scores[i] for i in places) == sorted(scores)[7 - min(count, 7) :]


def promise(
    scores: Sequence[float], beliefs: Sequence[Sequence[float]], counts: Sequence[int]
) -> float:
    rows = zip(scores, beliefs, counts, strict=True)
    return sum(score * sum(row[:count]) for score, row, count in rows)


@pytest.mark.parametrize("width", range(7))
def test_no_other_allocation_promises_more(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    for _ in range(10):
        scores = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
        beliefs = [
            torch.rand(4, generator=generator, dtype=torch.float64)
            .sort(descending=True)[0]
            .tolist()
            for _ in scores
        ]

        counts = allocate(scores, beliefs, width)
        assert sum(counts) == width
        most = max(
            promise(scores, beliefs, other)
            for other in itertools.product(range(5), repeat=3)
            if sum(other) <= width
        )
        assert promise(scores, beliefs, counts) == pytest.approx(most, abs=1e-12)


def test_tokens_without_mass_are_no_children() -> None:
    assert allocate([1.0, 0.5], [[1.0, 0.0], [0.6, 0.4]], 4) == [1, 2]
    assert allocate([], [], 4) == []


def test_levels_share_what_is_left() -> None:
    left, widths = 16, []
    for level in range(5):
        widths.append(level_width(left, 5 - level, most=10))
        left -= widths[-1]
    assert widths == [4, 3, 3, 3, 3]
    assert level_width(60, 6, most=10) == 10
    assert level_width(2, 1, most=1) == 1
