"""Tree shapes: the forms they are given in, and the dynamic programme against all trees."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from paceline.core.drafts import Draft
from paceline.drafting.tree_shape import (
    Programme,
    RankAcceptance,
    TreeShape,
    Visit,
    best_shape,
    fastest_shape,
    from_branching,
    from_paths,
    visits,
)
from paceline.errors import InvalidInput

Tree = tuple["Tree", ...]  # type: ignore[misc]
"""A node by its children."""


@cache
def forests(size: int, depth: int) -> tuple[Tree, ...]:
    """Every ordered forest of `size` nodes on at most `depth` levels."""
    if size == 0:
        return ((),)
    if depth == 0:
        return ()
    return tuple(
        (first, *rest)
        for below in range(size)
        for first in forests(below, depth - 1)
        for rest in forests(size - 1 - below, depth)
    )


def value(forest: Tree, acceptance: tuple[float, ...]) -> float:
    """The expected number of accepted tokens, by the recursion of its definition."""
    return sum(
        (acceptance[rank] if rank < len(acceptance) else 0.0) * (1 + value(child, acceptance))
        for rank, child in enumerate(forest)
    )


def paths_of(forest: Tree, before: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    for rank, child in enumerate(forest):
        yield (*before, rank)
        yield from paths_of(child, (*before, rank))


def random_rates(seed: int, count: int) -> tuple[float, ...]:
    """In no order, and with a rank that is never accepted now and then."""
    generator = torch.Generator().manual_seed(seed)
    rates = torch.rand(count, generator=generator, dtype=torch.float64)
    if seed % 3 == 0:
        rates[seed % count] = 0
    return tuple((rates / rates.sum() * 0.95).tolist())


def test_there_are_as_many_forests_as_catalan_says() -> None:
    assert [len(forests(n, n)) for n in range(7)] == [1, 1, 2, 5, 14, 42, 132]


class TestShape:
    @pytest.mark.parametrize("size", range(6))
    def test_every_small_tree_survives_its_list_of_paths(self, size: int) -> None:
        rates = (0.5, 0.3, 0.15)
        for forest in forests(size, size):
            paths = list(paths_of(forest))
            shape = from_paths(paths)
            assert len(shape) == size
            assert shape.expected_accepted(rates) == pytest.approx(value(forest, rates), abs=1e-15)
            found = [
                tuple(shape.ranks[i] for i in Draft((0,) * size, shape.parents).path(node))
                for node in range(size)
            ]
            assert sorted(found) == sorted(paths)
            assert list(shape.depths) == sorted(len(path) for path in paths)
            for node in range(-1, size):
                assert shape.children(node) == Draft((0,) * size, shape.parents).children(node)

    def test_branching(self) -> None:
        shape = from_branching([3, 2, 1])
        assert [shape.depths.count(level) for level in (1, 2, 3)] == [3, 6, 6]
        assert shape == from_paths([[a, b, 0] for a in range(3) for b in range(2)])
        assert len(from_branching([])) == 0

    def test_cut(self) -> None:
        shape = from_branching([2, 2, 2])
        assert shape.cut(2).parents == from_branching([2, 2]).parents
        assert shape.cut(9, 3).parents == (-1, -1, 0)
        assert shape.cut(0).parents == ()

    def test_gaps_in_the_ranks_are_refused(self) -> None:
        with pytest.raises(
            InvalidInput, match=r"the child 2 of the node \[0\] but not the child 1"
        ):
            from_paths([[0, 0], [0, 2]])
        with pytest.raises(InvalidInput, match="ranks count from 0"):
            from_paths([[-1]])

    def test_nodes_out_of_order_are_refused(self) -> None:
        for parents in ((-1, 0, -1), (0,), (-1, 2)):
            with pytest.raises(InvalidInput, match="level by level"):
                TreeShape(parents)


class TestProgramme:
    @pytest.mark.parametrize("seed", range(12))
    @pytest.mark.parametrize("ranks", [1, 2, 3])
    def test_no_tree_is_worth_more(self, seed: int, ranks: int) -> None:
        """Against every forest of up to 6 nodes, at every depth."""
        rates = random_rates(seed, ranks)
        programme = Programme(rates, 6, 6)
        for size, depth in itertools.product(range(7), range(1, 7)):
            best = max(
                value(forest, rates) for n in range(size + 1) for forest in forests(n, depth)
            )
            assert programme.expected_accepted(size, depth) == pytest.approx(best, abs=1e-12)
            shape = programme.shape(size, depth)
            assert len(shape) <= size
            assert max(shape.depths, default=0) <= depth
            assert shape.expected_accepted(rates) == pytest.approx(best, abs=1e-12)

    def test_with_falling_rates_the_best_nodes_are_a_tree(self) -> None:
        """Then the most probable paths, taken one by one, are the best tree of each size."""
        rates = (0.6, 0.2, 0.1, 0.05)
        values = sorted(
            (
                torch.tensor([rates[rank] for rank in path]).prod().item()
                for length in range(1, 7)
                for path in itertools.product(range(4), repeat=length)
            ),
            reverse=True,
        )
        programme = Programme(rates, 32, 6)
        for size in (1, 2, 5, 16, 32):
            assert programme.expected_accepted(size, 6) == pytest.approx(
                sum(values[:size]), abs=1e-6
            )

    def test_sure_of_the_first_child_it_is_a_chain(self) -> None:
        assert best_shape((0.9,), 5, 5).parents == (-1, 0, 1, 2, 3)
        assert best_shape((0.9,), 5, 3).parents == (-1, 0, 1), "more nodes would earn nothing"

    def test_ranks_behind_one_that_fails_are_reached_through_it(self) -> None:
        assert best_shape((0.0, 0.9), 2, 1).parents == (-1, -1)
        assert best_shape((0.0, 0.9), 1, 1).parents == ()

    def test_a_large_tree_is_planned_quickly_and_well(self) -> None:
        rates = (0.7, 0.12, 0.06, 0.03, 0.02, 0.01, 0.005, 0.005)
        shape = best_shape(rates, 64, 10)
        assert len(shape) == 64
        chain = sum(0.7**depth for depth in range(1, 11))
        assert shape.expected_accepted(rates) > 1.3 * chain


class TestFastest:
    RATES = (0.7, 0.15, 0.05)

    @pytest.mark.parametrize("draft_cost", [0.0, 0.05, 0.3])
    def test_against_every_size_and_depth(self, draft_cost: float) -> None:
        cost = ((1.0, 1.0), (4.0, 1.1), (8.0, 2.0))

        def seconds(rows: int) -> float:
            if rows <= 4:
                return 1 + (rows - 1) * 0.1 / 3
            return 1.1 + (rows - 4) * 0.9 / 4

        def speed(shape: TreeShape) -> float:
            depth = max(shape.depths, default=0)
            accepted = shape.expected_accepted(self.RATES)
            return (1 + accepted) / (seconds(1 + len(shape)) + draft_cost * depth)

        found = fastest_shape(self.RATES, 7, 5, cost, draft_cost)
        best = max(
            speed(from_paths(paths_of(forest)))
            for size in range(1, 8)
            for forest in forests(size, 5)
        )
        assert speed(found) == pytest.approx(best, abs=1e-12)

    def test_a_flat_curve_takes_all_it_covers(self) -> None:
        assert len(fastest_shape(self.RATES, 64, 20, ((1, 1.0), (17, 1.0)))) == 16

    def test_dear_rows_leave_one(self) -> None:
        assert fastest_shape(self.RATES, 64, 20, ((1, 1.0), (65, 100.0))).parents == (-1,)


class TestRankAcceptance:
    def test_visits(self) -> None:
        draft = Draft((5, 6, 7, 8, 9), parents=(-1, -1, 0, 0, 2))
        assert visits(draft, ()) == [Visit(2, None)]
        assert visits(draft, (1,)) == [Visit(2, 1)]
        assert visits(draft, (0, 3)) == [Visit(2, 0), Visit(2, 1)]
        assert visits(draft, (0, 2, 4)) == [Visit(2, 0), Visit(2, 0), Visit(1, 0)]
        assert visits(Draft(), ()) == []

    def test_it_finds_the_rates(self) -> None:
        """Of every ten visits six take the first child, three the second, if it is there."""
        rates = RankAcceptance((0.1, 0.1), weight=1e-9)
        rates.add([Visit(2, 0)] * 6 + [Visit(2, 1)] * 3 + [Visit(2, None)])
        assert rates.estimate() == pytest.approx((0.6, 0.3))
        rates.add([Visit(1, 0)] * 10)
        assert rates.estimate() == pytest.approx((0.8, 0.3))

    def test_ranks_beyond_the_prior_are_left_out(self) -> None:
        rates = RankAcceptance((0.5,), weight=1)
        rates.add([Visit(3, 2)])
        assert rates.estimate() == (0.25,)
