"""Shapes of draft trees, and the best one for a budget by dynamic programming.

A shape says where there are nodes, not which tokens they hold. The r-th child of a node, counted
from 0 in draw order, has rank r. Let `acceptance[r]` be the probability that a rule accepts the
r-th child once it has reached the parent. A node is then reached with the product of the
acceptances along its path, and the sum over all nodes is the expected number of accepted tokens.

Source: Sequoia, Chen et al. 2402.12374, section 3.1 (the programme, under the assumption that
acceptance depends only on the rank) and section 3.3 (the size for a machine).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.drafts import ROOT, Draft
from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The shape of a tree: the parent of each node, level by level, siblings by rank.

    Args:
        parents: the parent of each node; `ROOT` on the first level.

    Raises:
        InvalidInput: the nodes are not in that order.

    Example:
        >>> TreeShape((-1, -1, 0)).ranks
        (0, 1, 0)
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node or (node and parent < self.parents[node - 1]):
                raise InvalidInput(
                    "the nodes of a tree shape must be listed level by level, in the order of "
                    "their "
                    f"parents; the parents are {self.parents}"
                )

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each node among its siblings, from 0."""
        seen: Counter[int] = Counter()
        ranks = []
        for parent in self.parents:
            ranks.append(seen[parent])
            seen[parent] += 1
        return tuple(ranks)

    @property
    def depths(self) -> tuple[int, ...]:
        """The level of each node, from 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def children(self, node: int) -> tuple[int, ...]:
        """The children of a node by rank."""
        return tuple(child for child, parent in enumerate(self.parents) if parent == node)

    def cut(self, max_depth: int, max_nodes: int | None = None) -> TreeShape:
        """The first `max_nodes` nodes of its first `max_depth` levels.

        >>> TreeShape((-1, -1, 0, 0, 2)).cut(2, 3).parents
        (-1, -1, 0)
        """
        kept = [depth <= max_depth for depth in self.depths].count(True)
        return TreeShape(self.parents[: kept if max_nodes is None else min(kept, max_nodes)])

    def expected_accepted(self, acceptance: Sequence[float]) -> float:
        """The expected number of accepted tokens; ranks beyond `acceptance` are never accepted.

        >>> TreeShape((-1, -1, 0)).expected_accepted([0.5, 0.25])
        1.0
        """
        reached: list[float] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            before = 1.0 if parent == ROOT else reached[parent]
            reached.append(before * (acceptance[rank] if rank < len(acceptance) else 0.0))
        return sum(reached)


def from_branching(branching: Sequence[int]) -> TreeShape:
    """Every node of level d has `branching[d]` children; the root is level 0.

    >>> from_branching([2, 1]).parents
    (-1, -1, 0, 1)
    """
    parents: list[int] = []
    level = [ROOT]
    for width in branching:
        first = len(parents)
        parents += [node for node in level for _ in range(width)]
        level = list(range(first, len(parents)))
    return TreeShape(tuple(parents))


def from_paths(paths: Iterable[Sequence[int]]) -> TreeShape:
    """A shape from a list of paths of ranks, one per node, as in Medusa and EAGLE.

    Intermediate nodes of a path need not be listed.

    Raises:
        InvalidInput: a rank occurs without the lower ranks of the same parent.

    Example:
        >>> from_paths([[0, 0], [1]]).parents
        (-1, -1, 0)
    """
    nodes = {tuple(path[:length]) for path in paths for length in range(1, len(path) + 1)}
    for path in nodes:
        if path[-1] < 0 or (path[-1] and (*path[:-1], path[-1] - 1) not in nodes):
            raise InvalidInput(
                f"the tree has the child {path[-1]} of the node {list(path[:-1])} but not the "
                f"child {path[-1] - 1}; ranks count from 0, without gaps"
            )
    order = sorted(nodes, key=lambda path: (len(path), path))
    places = {path: number for number, path in enumerate(order)} | {(): ROOT}
    return TreeShape(tuple(places[path[:-1]] for path in order))


Floats = npt.NDArray[np.float64]


class Programme:
    """The best trees of every size and depth, from one table.

    Args:
        acceptance: the acceptance of each rank; its length limits the number of children.
        max_nodes: the largest size.
        max_depth: the largest depth.

    Example:
        >>> Programme((0.5, 0.25), max_nodes=3, max_depth=3).shape(3, 3).parents
        (-1, -1, 0)
    """

    def __init__(self, acceptance: tuple[float, ...], max_nodes: int, max_depth: int) -> None:
        sizes = np.arange(max_nodes + 1)
        # below[d][m]: the best value of m nodes below one node, on d levels.
        self._below: list[Floats] = [np.zeros(max_nodes + 1)]
        # taken[d][r][m]: how many of m nodes the child of rank r and its subtree take, after ranks
        # 0 to r - 1 have taken theirs; 0 ends the row of siblings.
        self._taken: list[list[npt.NDArray[np.int64]]] = [[]]
        for _ in range(max_depth):
            child = np.concatenate([[0.0], 1 + self._below[-1][:-1]])
            rest = np.zeros(max_nodes + 1)
            taken: list[npt.NDArray[np.int64]] = []
            for rate in reversed(acceptance):
                best, choice = np.zeros(max_nodes + 1), np.zeros(max_nodes + 1, dtype=np.int64)
                for size in sizes[1:]:
                    values = rate * child[1 : size + 1] + rest[size - 1 :: -1]
                    place = int(values.argmax())
                    if values[place] > 0:
                        best[size], choice[size] = values[place], place + 1
                rest, taken = best, [choice, *taken]
            self._below.append(rest)
            self._taken.append(taken)

    def expected_accepted(self, num_nodes: int, depth: int) -> float:
        """The expected number of accepted tokens of the best tree."""
        return float(self._below[depth][num_nodes])

    def shape(self, num_nodes: int, depth: int) -> TreeShape:
        """The best tree within these limits; smaller if more nodes gain nothing."""
        paths: list[tuple[int, ...]] = []
        work: list[tuple[tuple[int, ...], int, int]] = [((), num_nodes, depth)]
        while work:
            path, nodes, levels = work.pop()
            for rank, choice in enumerate(self._taken[levels]):
                if not (size := int(choice[nodes])):
                    break
                paths.append((*path, rank))
                work.append(((*path, rank), size - 1, levels - 1))
                nodes -= size
        return from_paths(paths)


@lru_cache(maxsize=256)
def best_shape(acceptance: tuple[float, ...], max_nodes: int, max_depth: int) -> TreeShape:
    """The shape with the most expected accepted tokens within a budget.

    Args:
        acceptance: the probability, by rank, that a child is accepted once its parent is.
        max_nodes, max_depth: the budget.

    Example:
        >>> best_shape((0.8, 0.1), max_nodes=3, max_depth=3).parents
        (-1, 0, 1)
    """
    return Programme(acceptance, max_nodes, max_depth).shape(max_nodes, max_depth)


@lru_cache(maxsize=256)
def fastest_shape(
    acceptance: tuple[float, ...],
    max_nodes: int,
    max_depth: int,
    cost: tuple[tuple[float, float], ...],
    draft_cost: float = 0.0,
) -> TreeShape:
    """The shape with the most expected tokens per time, (1 + accepted) / time; at least a node.

    Args:
        acceptance, max_nodes, max_depth: see `best_shape`.
        cost: the time of a target pass, as (rows, time) in ascending order of rows, interpolated
            linearly; passes with more rows than the last are not considered.
        draft_cost: the time of drafting one level, in the same unit.

    Example:
        If every row costs as much as the first, the best draft has one token.

        >>> fastest_shape((0.5, 0.25), 8, 4, cost=((1, 1.0), (9, 9.0))).parents
        (-1,)
    """
    rows, times = np.array(cost, dtype=np.float64).T
    most = min(max_nodes, max(int(rows[-1]) - 1, 1))
    programme = Programme(acceptance, most, max_depth)
    speeds = {
        (nodes, depth): (1 + programme.expected_accepted(nodes, depth))
        / (float(np.interp(1 + nodes, rows, times)) + depth * draft_cost)
        for nodes in range(1, most + 1)
        for depth in range(1, max_depth + 1)
    }
    return programme.shape(*max(speeds, key=speeds.__getitem__)) if speeds else TreeShape(())


class Visit(NamedTuple):
    """A node that a rule visited: how many children it had, and which rank was accepted."""

    num_children: int
    accepted: int | None


def visits(draft: Draft, path: Sequence[int]) -> list[Visit]:
    """The nodes with children that a rule visited; `path` holds the accepted nodes.

    >>> visits(Draft((5, 7, 9), parents=(-1, -1, 1)), (1,))
    [Visit(num_children=2, accepted=1), Visit(num_children=1, accepted=None)]
    """
    found = []
    for node, child in zip((ROOT, *path), (*path, None), strict=True):
        if children := draft.children(node):
            found.append(Visit(len(children), None if child is None else children.index(child)))
    return found


class RankAcceptance:
    """An estimate of the acceptance by rank, from the visited nodes.

    Args:
        prior: the estimate before the first visit.
        weight: the number of visits that the prior counts for.

    Example:
        >>> rates = RankAcceptance((0.5, 0.25), weight=2)
        >>> rates.add([Visit(1, 0), Visit(2, None)])
        >>> rates.estimate()
        (0.5, 0.16666666666666666)
    """

    def __init__(self, prior: Sequence[float], weight: float) -> None:
        self._accepted = [weight * rate for rate in prior]
        self._seen = [float(weight)] * len(prior)

    def add(self, found: Iterable[Visit]) -> None:
        """Take in visits. A child of rank r exists wherever there are more than r children."""
        for num_children, accepted in found:
            for rank in range(min(num_children, len(self._seen))):
                self._seen[rank] += 1
                self._accepted[rank] += rank == accepted

    def estimate(self) -> tuple[float, ...]:
        """By rank."""
        return tuple(a / n for a, n in zip(self._accepted, self._seen, strict=True))
