"""The settings of a tree, the same for every drafter of trees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

from paceline.checks import require_finite, require_int
from paceline.core.drafts import Scheme
from paceline.core.sampling import SamplingParams
from paceline.core.traits import DraftKinds
from paceline.drafting.model import own_params
from paceline.drafting.tree_shape import TreeShape, from_branching, from_paths
from paceline.errors import InvalidInput

Shape = Literal["chain", "dynamic", "static", "sequoia", "beam"]
Children = Literal["sampled", "independent", "chosen"]

TREE_SHAPES = ("dynamic", "static", "sequoia", "beam")
"""Where the nodes of a tree come from, by the name of the setting `shape`."""

SCHEMES: Mapping[str, Scheme] = {
    "chosen": Scheme.CHOSEN,
    "sampled": Scheme.WITHOUT_REPLACEMENT,
    "independent": Scheme.IID,
}
"""The ways of finding the children of a node, by the name of the setting `children`."""

_MOST = 10_000
"""Nodes of a tree that is still one: more would fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """The settings of a drafter of trees, which is a subclass.

    Args:
        shape: "dynamic" grows where the draft is sure; "static" is given by `branching` or `paths`;
            "sequoia" is the best for the acceptance by rank, found by dynamic programming; "beam"
            is made of the paths of a beam search, whose children are "chosen".
        children: "sampled" draws the children of a node without replacement, "independent" draws
            them with it, "chosen" takes the most probable ones. Greedily all are chosen.
        max_nodes: the most nodes of a tree; None is 16, and for the static shape all of it.
        top_k: of the dynamic shape: the children of a node; where children are drawn, the nodes of
            a level.
        width: of the dynamic shape: the nodes of a level that get children. With 1 the draft model
            runs as for a chain, and its next best tokens are leaves. Of "beam": the number of
            beams. None is `top_k`.
        branching: of the static shape: the children of every node, level by level.
        paths: of the static shape: one path of ranks a node, as in `[[0], [1], [0, 0]]`.
        acceptance: of "sequoia": the probability, by rank, that a child is accepted once its
            parent is. None measures it, in each session for itself.
        cost: of "sequoia": what a target pass takes on this machine, as `[rows, time]` pairs. The
            size of the tree is then the one with the most tokens a second; None takes `max_nodes`.
        draft_cost: of "sequoia": what a level of drafting takes, in the unit of `cost`.
        params: sampling options of the draft, `SamplingParams` or a mapping of some of them; None
            follows the target's.

    Raises:
        InvalidInput: a setting outside its range, of the wrong type, or of another shape.
    """

    shapes: ClassVar[Sequence[str]] = TREE_SHAPES
    """The shapes that it knows."""

    shape: Shape = "dynamic"
    children: Children = "sampled"
    max_nodes: int | None = None
    top_k: int = 4
    width: int | None = None
    branching: Sequence[int] | None = None
    paths: Sequence[Sequence[int]] | None = None
    acceptance: Sequence[float] | None = None
    cost: Sequence[Sequence[float]] | None = None
    draft_cost: float = 0.0
    params: SamplingParams | None = None

    def __post_init__(self) -> None:
        _check(self)
        object.__setattr__(self, "params", own_params(self.params))


def _check(settings: TreeSettings) -> None:
    """Check the settings, and bring lists into the form of tuples."""
    kinds = ("shape", tuple(settings.shapes)), ("children", tuple(SCHEMES))
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
