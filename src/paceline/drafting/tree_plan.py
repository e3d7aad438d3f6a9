"""The growth that the settings of a tree describe."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.drafts import Draft, Scheme
from paceline.drafting.tree import (
    BeamGrowth,
    BestFirstGrowth,
    ForesightGrowth,
    Growth,
    ShapedGrowth,
)
from paceline.drafting.tree_settings import SCHEMES, TreeSettings, static_shape
from paceline.drafting.tree_shape import (
    RankAcceptance,
    best_shape,
    fastest_shape,
    visits,
)

PRIOR = (0.65, 0.12, 0.05, 0.03, 0.02, 0.01)
"""What acceptance by rank is taken to be before a session has seen any."""

DEFAULT_MAX_NODES = 16

_PRIOR_WEIGHT = 16
_REPLAN = 16
"""The number of rounds after which a shape is planned again."""


class TreePlan:
    """The growth of one sequence's trees.

    Args:
        settings: of the drafter, checked.
        limits: the maximum numbers of nodes that the models take; None is no limit.

    Attributes:
        max_nodes: the maximum number of nodes of a tree.
    """

    def __init__(self, settings: TreeSettings, limits: Sequence[int | None]) -> None:
        self._settings = settings
        most = settings.max_nodes
        if most is None:
            is_static = settings.shape == "static"
            most = len(static_shape(settings)) if is_static else DEFAULT_MAX_NODES
        self.max_nodes = min([most, *(limit for limit in limits if limit is not None)])
        self._rates = RankAcceptance(PRIOR, _PRIOR_WEIGHT)
        self._rounds = 0
        self._acceptance = settings.acceptance or PRIOR

    def observe(self, draft: Draft | None, path: Sequence[int]) -> None:
        """Take in what was accepted of a tree: "sequoia" may measure acceptance by rank."""
        if self._settings.shape != "sequoia" or self._settings.acceptance is not None:
            return
        if draft is not None:
            self._rates.add(visits(draft, path))
            self._rounds += 1
            if self._rounds % _REPLAN == 0:
                self._acceptance = self._rates.estimate()

    def within(self, most: int | None) -> int:
        """The maximum number of nodes within a budget."""
        return self.max_nodes if most is None else min(self.max_nodes, most)

    def scheme(self, *, is_greedy: bool) -> Scheme:
        """How children are found."""
        return Scheme.CHOSEN if is_greedy else SCHEMES[self._settings.children]

    def growth(self, depth: int, max_nodes: int, scheme: Scheme) -> Growth:
        """The growth of the next tree, of at most `depth` levels and `max_nodes` nodes."""
        settings = self._settings
        if settings.shape == "dynamic":
            rule = BestFirstGrowth if scheme is Scheme.CHOSEN else ForesightGrowth
            width = settings.top_k if settings.width is None else settings.width
            return rule(settings.top_k, max_nodes, width)
        if settings.shape == "beam":
            return BeamGrowth(settings.width or settings.top_k, max_nodes)
        if settings.shape == "static":
            return ShapedGrowth(static_shape(settings).cut(depth, max_nodes))
        rates = tuple(round(rate, 2) for rate in self._acceptance)
        if settings.cost is None:
            return ShapedGrowth(best_shape(rates, max_nodes, depth))
        curve = tuple((rows, time) for rows, time in settings.cost)
        return ShapedGrowth(fastest_shape(rates, max_nodes, depth, curve, settings.draft_cost))
