"""A draft model that proposes a tree: several continuations, scored by the target in one pass.

Sources: SpecInfer (2305.09781) and RSD (2402.14160) for sampled trees, EAGLE-2 (2406.16858) for
the dynamic shape, Sequoia (2402.12374) for the planned one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal

from torch import Tensor

from paceline.checks import require_finite, require_int
from paceline.core.drafts import ROOT, Budget, Draft, Scheme
from paceline.core.protocols import Noise, Steps, Target, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need, TargetInfo
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_TREE, drawn_or_chosen
from paceline.drafting.model import DraftModel, Stop, check_params, own_params
from paceline.drafting.tree import (
    BestFirstGrowth,
    DraftTree,
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
from paceline.errors import InvalidInput, NoTokenLeft
from paceline.sampling.siblings import Siblings, draw_siblings, most_probable
from paceline.sampling.warp import SamplingWarp

SCHEMES = {
    "chosen": Scheme.CHOSEN,
    "sampled": Scheme.WITHOUT_REPLACEMENT,
    "independent": Scheme.IID,
}
"""The ways of finding the children of a node, by the name of the setting."""

PRIOR = (0.65, 0.12, 0.05, 0.03, 0.02, 0.01)
"""What acceptance by rank is taken to be before a session has seen any."""

DEFAULT_MAX_NODES = 16

_MOST = 10_000
"""Nodes of a tree that is still one: more would fill the memory."""

_PRIOR_WEIGHT = 16
_REPLAN = 16
"""The number of rounds after which a shape is planned again."""


@dataclass(frozen=True, slots=True)
class TreeDrafter:
    """Draft a tree with a model of one's own.

    Args:
        model: the draft model, a target like any other, which scores trees.
        shape: "dynamic" grows where the draft model is sure; "static" is given by `branching` or
            `paths`; "sequoia" is the best for the acceptance by rank, found by dynamic programming.
        children: "sampled" draws the children of a node without replacement, "independent" draws
            them with it, "chosen" takes the most probable ones. Greedily all are chosen.
        max_nodes: the most nodes of a tree; None is 16, and for the static shape all of it.
        top_k: of the dynamic shape: the children of a node; where children are drawn, the nodes of
            a level.
        width: of the dynamic shape: the nodes of a level that get children. With 1 the draft model
            runs as for a chain, and its next best tokens are leaves. None is `top_k`.
        branching: of the static shape: the children of every node, level by level.
        paths: of the static shape: one path of ranks a node, as in `[[0], [1], [0, 0]]`.
        acceptance: of "sequoia": the probability, by rank, that a child is accepted once its
            parent is. None measures it, in each session for itself.
        cost: of "sequoia": what a target pass takes on this machine, as `[rows, time]` pairs. The
            size of the tree is then the one with the most tokens a second; None takes `max_nodes`.
        draft_cost: of "sequoia": what a level of drafting takes, in the unit of `cost`.
        params: sampling options of the draft, `SamplingParams` or a mapping of some of them; None
            follows the target's.

    The depth is at most `num_draft_tokens`. A controller's bounds on confidence and entropy end
    single branches.

    Raises:
        InvalidInput: a setting outside its range, of the wrong type, or of another shape.
    """

    name: ClassVar[str] = "tree"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TREE})
    needs_draft_model: ClassVar[bool] = True
    default_verifier: ClassVar[str] = "tree"

    model: Target = field(repr=False)
    shape: Literal["dynamic", "static", "sequoia"] = "dynamic"
    children: Literal["sampled", "independent", "chosen"] = "sampled"
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
        kinds = ("shape", ("dynamic", "static", "sequoia")), ("children", tuple(SCHEMES))
        for setting, known in kinds:
            if (given := getattr(self, setting)) not in known:
                raise InvalidInput(f"{setting} must be one of {', '.join(known)}; it is {given!r}")
        if self.max_nodes is not None:
            require_int("max_nodes", self.max_nodes, low=1, high=_MOST)
        require_int("top_k", self.top_k, low=1, high=_MOST)
        if self.width is not None:
            require_int("width", self.width, low=1)
        object.__setattr__(self, "params", own_params(self.params))
        for setting, shape in (
            ("branching", "static"),
            ("paths", "static"),
            ("width", "dynamic"),
            ("acceptance", "sequoia"),
            ("cost", "sequoia"),
        ):
            if getattr(self, setting) is not None and self.shape != shape:
                raise InvalidInput(
                    f"{setting} goes with the shape {shape!r}; the shape is {self.shape!r}"
                )
        if self.shape == "static" and (self.branching is None) == (self.paths is None):
            raise InvalidInput(
                "the static shape needs branching, as in [3, 2, 1], or paths, as in "
                "[[0], [1], [0, 0]]: one of them"
            )
        require_finite(self, "draft_cost", self.draft_cost, low=0.0)
        if self.branching is not None:
            widths = _numbers("branching", self.branching, whole=True)
            for width in widths:
                require_int("each of branching", width, low=1)
            if math.prod(int(width) for width in widths) > _MOST:
                raise InvalidInput(f"branching {list(widths)} makes more than {_MOST:,} nodes")
            object.__setattr__(self, "branching", widths)
        if self.paths is not None:
            paths = _rows("paths", self.paths, whole=True)
            from_paths(paths)
            object.__setattr__(self, "paths", paths)
        if self.acceptance is not None:
            rates = _numbers("acceptance", self.acceptance)
            if not rates or not all(0 <= rate <= 1 for rate in rates) or sum(rates) > 1 + 1e-9:
                raise InvalidInput(
                    "acceptance must be probabilities by rank, whose sum is at most 1, as in "
                    f"[0.6, 0.15, 0.05]; it is {list(rates)}"
                )
            object.__setattr__(self, "acceptance", rates)
        if self.cost is not None:
            object.__setattr__(self, "cost", _cost(self.cost))

    @property
    def drafts(self) -> DraftKinds:
        """The kinds of drafts that it makes; see `core.traits`."""
        return drawn_or_chosen(self.params, self._sampled(), CHOSEN_TREE, is_greedy=False)

    @property
    def greedy_drafts(self) -> DraftKinds:
        """The same when the target's temperature is 0."""
        return drawn_or_chosen(self.params, self._sampled(), CHOSEN_TREE, is_greedy=True)

    def _sampled(self) -> DraftKinds:
        scheme = SCHEMES[self.children]
        return DraftKinds(frozenset({scheme}), draws=scheme is not Scheme.CHOSEN)

    def open(self, target: TargetView, capacity: int) -> TreeSession:
        """See `protocols.Drafter.open`."""
        check_params(self.params, target.info, self.name)
        if Need.TREE not in self.model.info.gives:
            raise InvalidInput(
                f"drafter 'tree' needs a draft model that scores trees, and {self.model.info.name} "
                "does not (in invariant mode, none does); load it without (no --invariant, "
                "invariant=False), or use drafter 'model'"
            )
        return TreeSession(self, capacity, target.info)

    def default_max_nodes(self) -> int:
        """The size where `max_nodes` says none."""
        return len(self.static_shape()) if self.shape == "static" else DEFAULT_MAX_NODES

    def static_shape(self) -> TreeShape:
        """The shape that was given."""
        if self.branching is not None:
            return from_branching(self.branching)
        assert self.paths is not None
        return from_paths(self.paths)


class TreeSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: TreeDrafter, capacity: int, target: TargetInfo) -> None:
        self._drafter = drafter
        self._model = DraftModel(drafter.model, capacity, target.vocab_size)
        self._warp = None if drafter.params is None else SamplingWarp(drafter.params)
        limits = (
            drafter.max_nodes if drafter.max_nodes is not None else drafter.default_max_nodes(),
            target.max_draft_tokens,
            drafter.model.info.max_draft_tokens,
        )
        self._max_nodes = min(limit for limit in limits if limit is not None)
        self._rates = RankAcceptance(PRIOR, _PRIOR_WEIGHT)
        self._rounds = 0
        self._acceptance = drafter.acceptance or PRIOR

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._model.observe(committed.tokens)
        drafter, draft = self._drafter, committed.draft
        if drafter.shape == "sequoia" and drafter.acceptance is None and draft is not None:
            self._rates.add(visits(draft, committed.path))
            self._rounds += 1
            if self._rounds % _REPLAN == 0:
                self._acceptance = self._rates.estimate()

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        """See `protocols.DraftSession.propose`."""
        warp = self._warp or warp
        depth = self._model.reach(budget)
        max_nodes = self._max_nodes
        if budget.max_nodes is not None:
            max_nodes = min(max_nodes, budget.max_nodes)
        if not depth or max_nodes < 1:
            return Draft()
        scheme = Scheme.CHOSEN if warp.is_greedy else SCHEMES[self._drafter.children]
        growth = self._growth(depth, max_nodes, scheme)
        stop = Stop(budget.min_confidence, budget.min_path_confidence, budget.entropy_bound)
        tree, nodes, rows = DraftTree(), [ROOT], [(yield from self._model.start())]
        for level in range(depth):
            known = [
                (node, _Belief(warp, row, tree.path_tokens(node)))
                for node, row in zip(nodes, rows, strict=True)
            ]
            known = [item for item in known if item[1].law is not None]
            known = [item for item in known if not stop.before(item[1].belief)]
            counts = growth.counts(
                tree, [node for node, _ in known], [b.belief for _, b in known], depth - level
            )
            position, new = len(self._model.committed) + level, []
            for (node, belief), count in zip(known, counts, strict=True):
                if count:
                    siblings = belief.children(count, scheme, noise, position)
                    new += tree.add(node, siblings, belief.belief)
            if (
                scheme is Scheme.CHOSEN
                and max(tree.beliefs, default=0.0) < budget.min_first_confidence
            ):
                return Draft()
            nodes = [n for n in growth.frontier(tree, new) if not stop.after(tree.confidence(n))]
            if not nodes or level + 1 == depth:
                break
            path, part, places = tree.above(nodes)
            logits = yield from self._model.score(path, part)
            rows = [logits[place + 1] for place in places]
        return tree.draft(growth.kept(tree), scheme)

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        self._model.close()

    def _growth(self, depth: int, max_nodes: int, scheme: Scheme) -> Growth:
        drafter = self._drafter
        if drafter.shape == "dynamic":
            rule = BestFirstGrowth if scheme is Scheme.CHOSEN else ForesightGrowth
            width = drafter.top_k if drafter.width is None else drafter.width
            return rule(drafter.top_k, max_nodes, width)
        if drafter.shape == "static":
            return ShapedGrowth(drafter.static_shape().cut(depth, max_nodes))
        rates = tuple(round(rate, 2) for rate in self._acceptance)
        if drafter.cost is None:
            return ShapedGrowth(best_shape(rates, max_nodes, depth))
        return ShapedGrowth(
            fastest_shape(rates, max_nodes, depth, drafter.cost, drafter.draft_cost)
        )


class _Belief:
    """What the draft model takes to follow a node.

    Attributes:
        law: q; None where the sampling options leave the draft model nothing to say.
        belief: the probability of every token: q, or greedily the softmax of the logits.
    """

    def __init__(self, warp: Warp, logits: Tensor, path: Sequence[int]) -> None:
        try:
            self.law: Tensor | None = warp.law(logits, path)
        except NoTokenLeft:
            self.law = None
        self._is_greedy = warp.is_greedy
        self.belief = logits if self.law is None else self.law
        if self._is_greedy:
            self.belief = logits.softmax(dim=-1)

    def children(self, count: int, scheme: Scheme, noise: Noise, position: int) -> Siblings:
        """The children of the node."""
        assert self.law is not None
        if not self._is_greedy:
            return draw_siblings(self.law, count, scheme, noise, position)
        # The sampling options may ban the most probable tokens: the law knows what is left.
        first = most_probable(self.law, 1)
        others = [token for token in most_probable(self.belief, count) if token not in first]
        tokens = (*first, *others)[:count]
        return Siblings(tokens, (None,) * len(tokens), scheme)


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
