"""A draft model that proposes a tree: several continuations, scored by the target in one pass.

Sources: SpecInfer (2305.09781) and RSD (2402.14160) for sampled trees, EAGLE-2 (2406.16858) for
the dynamic shape, Sequoia (2402.12374) for the planned one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Steps, Target, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need, TargetInfo
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_TREE, KindsByTemperature, drawn_or_chosen
from paceline.drafting.model import DraftModel, Stop, check_params, own_params
from paceline.drafting.tree import DraftTree
from paceline.drafting.tree_draft import draw_tree
from paceline.drafting.tree_plan import TreePlan, check_tree_settings, drawn_tree
from paceline.errors import InvalidInput
from paceline.sampling.warp import SamplingWarp


@dataclass(frozen=True, slots=True)
class TreeDrafter(KindsByTemperature):
    """Draft a tree with a model of one's own.

    Args:
        model: the draft model, a target like any other, which scores trees.
        shape: "dynamic" grows where the draft model is sure; "static" is given by `branching` or
            `paths`; "sequoia" is the best for the acceptance by rank, found by dynamic programming;
            "beam" is made of the paths of a beam search, whose children are "chosen".
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
    shape: Literal["dynamic", "static", "sequoia", "beam"] = "dynamic"
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
        check_tree_settings(self)
        object.__setattr__(self, "params", own_params(self.params))

    def _kinds(self, *, is_greedy: bool) -> DraftKinds:
        return drawn_or_chosen(
            self.params, drawn_tree(self.children), CHOSEN_TREE, is_greedy=is_greedy
        )

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


class TreeSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: TreeDrafter, capacity: int, target: TargetInfo) -> None:
        self._model = DraftModel(drafter.model, capacity, target.vocab_size)
        self._warp = None if drafter.params is None else SamplingWarp(drafter.params)
        limits = (target.max_draft_tokens, drafter.model.info.max_draft_tokens)
        self._plan = TreePlan(drafter, limits)

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._model.observe(committed.tokens)
        self._plan.observe(committed.draft, committed.path)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        """See `protocols.DraftSession.propose`."""
        warp, plan = self._warp or warp, self._plan
        depth, max_nodes = self._model.reach(budget), plan.within(budget.max_nodes)
        if not depth or max_nodes < 1:
            return Draft()
        scheme = plan.scheme(is_greedy=warp.is_greedy)
        return (
            yield from draw_tree(
                self._model.start,
                self._follow,
                growth=plan.growth(depth, max_nodes, scheme),
                depth=depth,
                scheme=scheme,
                position=len(self._model.committed),
                warp=warp,
                noise=noise,
                stop=Stop(budget.min_confidence, budget.min_path_confidence, budget.entropy_bound),
                min_first_confidence=budget.min_first_confidence,
            )
        )

    def _follow(self, tree: DraftTree, nodes: Sequence[int]) -> Steps[Sequence[Tensor]]:
        path, part, places = tree.above(nodes)
        logits = yield from self._model.score(path, part)
        return [logits[place + 1] for place in places]

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        self._model.close()
