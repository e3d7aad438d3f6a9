"""The settings of a tree, shared by every drafter of trees, and the growth that they describe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

from paceline.checks import require_finite, require_int
from paceline.core.drafts import Draft, Scheme
from paceline.core.traits import DraftKinds
from paceline.drafting.tree import (
    BeamGrowth,
    BestFirstGrowth,
    ForesightGrowth,
    Growth,
    ShapedGrowth,
)
from paceline.drafting.tree_shape import (
    RankAcceptance,
    TreeShape,
    best_shape,
    fastest_shape,
    from_branching,
    from_paths,
    visits,
)
from paceline.errors import InvalidInput

TREE_SHAPES = ("dynamic", "static", "sequoia", "beam")
"""Where the nodes of a tree come from, by the name of the setting `shape`."""

SCHEMES: Mapping[str, Scheme] = {
    "chosen": Scheme.CHOSEN,
    "sampled": Scheme.WITHOUT_REPLACEMENT,
    "independent": Scheme.IID,
}
"""The ways of finding the children of a node, by the name of the setting `children`."""

PRIOR = (0.65, 0.12, 0.05, 0.03, 0.02, 0.01)
"""What acceptance by rank is taken to be before a session has seen any."""

DEFAULT_MAX_NODES = 16

_MOST = 10_000
"""Nodes of a tree that is still one: more would fill the memory."""

_PRIOR_WEIGHT = 16
_REPLAN = 16
"""The number of rounds after which a shape is planned again."""


class TreeSettings(Protocol):
    """The settings of a drafter of trees; see `drafters.tree.TreeDrafter` for their meaning."""

    @property
    def shape(self) -> str:
        """Where its nodes are: one of `TREE_SHAPES`."""
        ...

    @property
    def children(self) -> str:
        """How children are found: one of `SCHEMES`."""
        ...

    @property
    def max_nodes(self) -> int | None:
        """The maximum number of nodes; None leaves it to the shape."""
        ...

    @property
    def top_k(self) -> int:
        """Of "dynamic": the children of a node, or the drawn nodes of a level."""
        ...

    @property
    def width(self) -> int | None:
        """Of "dynamic": the nodes of a level that get children; of "beam": beams; None: `top_k`."""
        ...

    @property
    def branching(self) -> Sequence[int] | None:
        """Of "static": the children of every node, level by level."""
        ...

    @property
    def paths(self) -> Sequence[Sequence[int]] | None:
        """Of "static": one path of ranks per node."""
        ...

    @property
    def acceptance(self) -> Sequence[float] | None:
        """Of "sequoia": the acceptance by rank; None measures it."""
        ...

    @property
    def cost(self) -> Sequence[Sequence[float]] | None:
        """Of "sequoia": the times of a target pass, as (rows, time)."""
        ...

    @property
    def draft_cost(self) -> float:
        """Of "sequoia": the time of a level, in the unit of `cost`."""
        ...


def check_tree_settings(settings: Any, shapes: Sequence[str] = TREE_SHAPES) -> None:
    """Check the settings of a frozen drafter, and bring lists into the form of tuples.

    Args:
        settings: a drafter with the settings of `TreeSettings`, in its `__post_init__`.
        shapes: the shapes that it knows.

    Raises:
        InvalidInput: a setting outside its range, of the wrong type, or of another shape.
    """
    kinds = ("shape", tuple(shapes)), ("children", tuple(SCHEMES))
    for setting, known in kinds:
        if (given := getattr(settings, setting)) not in known:
            raise InvalidInput(f"{setting} must be one of {', '.join(known)}; it is {given!r}")
    if settings.max_nodes is not None:
        require_int("max_nodes", settings.max_nodes, low=1, high=_MOST)
    require_int("top_k", settings.top_k, low=1, high=_MOST)
    if settings.width is not None:
        require_int("width", settings.width, low=1)
    for setting, owners in (
        ("branching", ("static",)),
        ("paths", ("static",)),
        ("width", ("dynamic", "beam")),
        ("acceptance", ("sequoia",)),
        ("cost", ("sequoia",)),
    ):
        if getattr(settings, setting) is not None and settings.shape not in owners:
            raise InvalidInput(
                f"{setting} goes with the shape {' or '.join(map(repr, owners))}; the shape is "
                f"{settings.shape!r}"
            )
    if settings.shape == "beam" and settings.children != "chosen":
        raise InvalidInput(
            "the shape 'beam' is for chosen children, since which beams survive depends on their "
            "tokens, and a drawn token must never be dropped; set children to 'chosen', or the "
            "shape to 'dynamic'"
        )
    if settings.shape == "static" and (settings.branching is None) == (settings.paths is None):
        raise InvalidInput(
            "the static shape needs branching, as in [3, 2, 1], or paths, as in "
            "[[0], [1], [0, 0]]: one of them"
        )
    require_finite(settings, "draft_cost", settings.draft_cost, low=0.0)
    if settings.branching is not None:
        widths = _numbers("branching", settings.branching, whole=True)
        for width in widths:
            require_int("each of branching", width, low=1)
        if math.prod(int(width) for width in widths) > _MOST:
            raise InvalidInput(f"branching {list(widths)} makes more than {_MOST:,} nodes")
        object.__setattr__(settings, "branching", widths)
    if settings.paths is not None:
        paths = _rows("paths", settings.paths, whole=True)
        from_paths(paths)
        object.__setattr__(settings, "paths", paths)
    if settings.acceptance is not None:
        rates = _numbers("acceptance", settings.acceptance)
        if not rates or not all(0 <= rate <= 1 for rate in rates) or sum(rates) > 1 + 1e-9:
            raise InvalidInput(
                "acceptance must be probabilities by rank, whose sum is at most 1, as in "
                f"[0.6, 0.15, 0.05]; it is {list(rates)}"
            )
        object.__setattr__(settings, "acceptance", rates)
    if settings.cost is not None:
        object.__setattr__(settings, "cost", _cost(settings.cost))


def drawn_tree(children: str) -> DraftKinds:
    """The kinds of trees whose children are found in this way, at a temperature above 0.

    >>> drawn_tree("independent").draws
    True
    """
    scheme = SCHEMES[children]
    return DraftKinds(frozenset({scheme}), draws=scheme is not Scheme.CHOSEN)


def static_shape(settings: TreeSettings) -> TreeShape:
    """The shape that was given as `branching` or `paths`."""
    if settings.branching is not None:
        return from_branching(settings.branching)
    assert settings.paths is not None
    return from_paths(settings.paths)


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


def _numbers(setting: str, given: Any, *, whole: bool = False) -> tuple[Any, ...]:
    """A row of numbers, as it comes from a command line or from JSON."""
    kinds = (int,) if whole else (int, float)
    row = () if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__") else tuple(given)
    if not row or not all(isinstance(n, kinds) and not isinstance(n, bool) for n in row):
        kind = "whole numbers" if whole else "numbers"
        raise InvalidInput(f"{setting} must be a list of {kind}; it is {given!r:.80}")
    return row


def _rows(setting: str, given: Any, *, whole: bool = False) -> tuple[tuple[Any, ...], ...]:
    """A list of rows of numbers."""
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__") or not (rows := [*given]):
        raise InvalidInput(f"{setting} must be a list of lists of numbers; it is {given!r:.80}")
    return tuple(_numbers(f"each of {setting}", row, whole=whole) for row in rows)


def _cost(given: Any) -> tuple[tuple[float, float], ...]:
    """A cost curve with rising rows and times above 0."""
    curve = _rows("cost", given)
    rows = [row[0] for row in curve]
    if any(
        len(row) != 2 or not 1 <= row[0] < math.inf or not 0 < row[1] < math.inf for row in curve
    ) or any(after <= before for before, after in pairwise(rows)):
        raise InvalidInput(
            "cost must be [rows, time] pairs with rising rows from 1 on and times above 0, as in "
            f"[[1, 0.2], [8, 0.22]]; it is {given!r:.80}"
        )
    return curve
