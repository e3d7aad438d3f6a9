"""The drafter of a head, whatever its kind: chains and trees, greedy and sampled.

A drafter of heads is a subclass in `drafters/` that gives its name, as in
`drafters.medusa.MedusaDrafter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from paceline.core.drafts import Budget, Draft
from paceline.core.hidden import Hidden
from paceline.core.protocols import Noise, Steps, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.heads.contract import Head, Level
from paceline.drafting.heads.vocabulary import spread
from paceline.drafting.kinds import (
    CHOSEN_CHAIN,
    CHOSEN_TREE,
    DRAWN_CHAIN,
    KindsByTemperature,
    drawn_or_chosen,
)
from paceline.drafting.model import Stop, check_params, draw_chain
from paceline.drafting.tree import DraftTree
from paceline.drafting.tree_draft import draw_tree
from paceline.drafting.tree_plan import TreePlan
from paceline.drafting.tree_settings import TREE_SHAPES, TreeSettings, drawn_tree
from paceline.errors import InvalidInput
from paceline.sampling.warp import SamplingWarp

CHAIN = "chain"
"""The shape of a draft with one token a level."""


@dataclass(frozen=True, slots=True)
class HeadDrafter(TreeSettings, KindsByTemperature):
    """Draft with a head that reads the target's hidden states.

    Args:
        head: the head, as `models.heads.load_head` returns it.
        shape: "chain", or the shape of a tree.

    For `shape` and the other settings see `drafting.tree_settings.TreeSettings`.

    Raises:
        InvalidInput: a setting outside its range, of the wrong type, or of another shape; or a head
            of another kind.
    """

    name: ClassVar[str]
    shapes: ClassVar[Sequence[str]] = (CHAIN, *TREE_SHAPES)
    needs_draft_head: ClassVar[bool] = True
    takes_any_head: ClassVar[bool] = False
    """Whether a head of any kind will do; otherwise it has to be for this drafter."""

    head: Head = field(repr=False)

    def __post_init__(self) -> None:
        TreeSettings.__post_init__(self)
        kind = getattr(self.head, "drafter", None)
        if kind is None:
            raise InvalidInput(
                f"drafter {self.name!r} drafts with a head; it was given {self.head!r:.80}. Load "
                "one with paceline.load_head, or give its path as draft_head"
            )
        if kind != self.name and not self.takes_any_head:
            raise InvalidInput(
                f"drafter {self.name!r} does not draft with {self.head.name}, which is a head for "
                f"drafter {kind!r}; name that drafter, or none"
            )

    @property
    def is_chain(self) -> bool:
        """Whether it drafts one token a level."""
        return self.shape == CHAIN

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """What the head reads, and drafts that branch."""
        return self.head.needs | (frozenset() if self.is_chain else {Need.TREE})

    @property
    def default_verifier(self) -> str:
        """See `core.traits`."""
        return "token" if self.is_chain else "tree"

    def _kinds(self, *, is_greedy: bool) -> DraftKinds:
        drawn, chosen = DRAWN_CHAIN, CHOSEN_CHAIN
        if not self.is_chain:
            drawn, chosen = drawn_tree(self.children), CHOSEN_TREE
        return drawn_or_chosen(self.params, drawn, chosen, is_greedy=is_greedy)

    def open(self, target: TargetView, capacity: int) -> HeadSession:
        """See `protocols.Drafter.open`."""
        check_params(self.params, target.info, self.name)
        return HeadSession(self, target, capacity)


class HeadSession:
    """See `protocols.DraftSession`.

    Hidden states come with the tokens that followed them (see `core.target.Committed`), and go on
    to the head as they come, so that a long prompt never stands in memory as a whole.
    """

    def __init__(self, drafter: HeadDrafter, target: TargetView, capacity: int) -> None:
        self._drafter, self._head = drafter, drafter.head
        self._vocab_size = target.info.vocab_size
        self._hidden = Hidden.union(drafter.needs)
        self._plan = TreePlan(drafter, (target.info.max_draft_tokens,))
        self._warp = None if drafter.params is None else SamplingWarp(drafter.params)
        self._length = 0
        self._has_state = False
        self._rows: dict[int, int] = {}
        self._acceptance: float | None = None
        self._state = self._head.open(target, capacity)

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._length += len(committed.tokens)
        self._plan.observe(committed.draft, committed.path)
        if committed.hidden is None or self._hidden is None:
            return  # a text of one token: no pass has seen anything yet
        hidden = committed.hidden.only(self._hidden)
        self._state.observe(hidden, committed.tokens[-hidden.num_rows :])
        self._has_state = True

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        """See `protocols.DraftSession.propose`."""
        warp = self._warp or warp
        levels = budget.num_draft_tokens
        if self._head.max_levels is not None:
            levels = min(levels, self._head.max_levels)
        if levels < 1 or not self._has_state:
            return Draft()
        stop = Stop(budget.min_confidence, budget.min_path_confidence, budget.entropy_bound)
        draw = self._chain if self._drafter.is_chain else self._tree
        return (yield from draw(levels, budget, warp, noise, stop))

    def _chain(
        self, levels: int, budget: Budget, warp: Warp, noise: Noise, stop: Stop
    ) -> Steps[Draft]:
        if budget.max_nodes is not None:
            levels = min(levels, budget.max_nodes)
        if levels < 1:
            return Draft()

        def feed(token: int) -> Steps[Tensor]:
            return (yield from self._follow([0], [token]))[0]

        return (
            yield from draw_chain(
                lambda: self._start(levels),
                feed,
                position=self._length,
                length=levels,
                warp=warp,
                noise=noise,
                stop=stop,
                foresee=lambda: self._acceptance,
            )
        )

    def _tree(
        self, levels: int, budget: Budget, warp: Warp, noise: Noise, stop: Stop
    ) -> Steps[Draft]:
        max_nodes = self._plan.within(budget.max_nodes)
        if max_nodes < 1:
            return Draft()
        scheme = self._plan.scheme(is_greedy=warp.is_greedy)
        return (
            yield from draw_tree(
                lambda: self._start(levels),
                self._below,
                growth=self._plan.growth(levels, max_nodes, scheme),
                depth=levels,
                scheme=scheme,
                position=self._length,
                warp=warp,
                noise=noise,
                stop=stop,
                min_first_confidence=budget.min_first_confidence,
            )
        )

    def _start(self, levels: int) -> Steps[Tensor]:
        """The logits `[V]` after the last committed token."""
        self._rows = {-1: 0}
        return self._whole((yield from self._state.start(levels)))[0]

    def _below(self, tree: DraftTree, nodes: Sequence[int]) -> Steps[Sequence[Tensor]]:
        """The logits after some nodes of the last level, and which row is whose."""
        parents = [self._rows[tree.parents[node]] for node in nodes]
        self._rows = {node: row for row, node in enumerate(nodes)}
        return list((yield from self._follow(parents, [tree.tokens[node] for node in nodes])))

    def _follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Tensor]:
        """The logits `[m, V]` after m tokens of the last level."""
        return self._whole((yield from self._state.follow(parents, tokens)))

    @torch.inference_mode()
    def _whole(self, level: Level) -> Tensor:
        known = level.acceptance
        self._acceptance = None if known is None else float(known[0])
        return spread(level.logits, self._head.token_ids, self._vocab_size)

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        self._state.close()
