"""A draft model that proposes a tree: several continuations, scored by the target in one pass.

Sources: SpecInfer (2305.09781) and RSD (2402.14160) for sampled trees, EAGLE-2 (2406.16858) for
the dynamic shape, Sequoia (2402.12374) for the planned one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Steps, Target, Warp
from paceline.core.target import Committed, Need, TargetInfo
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_TREE, KindsByTemperature, drawn_or_chosen
from paceline.drafting.model import DraftModel, Stop, check_params
from paceline.drafting.tree import DraftTree
from paceline.drafting.tree_draft import draw_tree
from paceline.drafting.tree_plan import TreePlan
from paceline.drafting.tree_settings import TreeSettings, drawn_tree
from paceline.errors import InvalidInput
from paceline.sampling.warp import SamplingWarp


@dataclass(frozen=True, slots=True)
class TreeDrafter(TreeSettings, KindsByTemperature):
    """Draft a tree with a model of one's own.

    Args:
        model: the draft model, a target like any other, which scores trees.

    For the other settings see `drafting.tree_settings.TreeSettings`.

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
