"""Several drafters in one round, their drafts merged into one tree.

Where one drafter is wrong another may be right: an n-gram copies what a draft model would not think
of, the draft model goes on where nothing repeats. The target scores all of it in one pass.

Source: the hybrid of SuffixDecoding, 2411.04975, which chooses one draft; the merging of trees of
several drafters is that of SpecInfer, 2305.09781, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.checks import require_int
from paceline.core.drafts import Budget, Draft
from paceline.core.hidden import Hidden
from paceline.core.passes import steps_of
from paceline.core.protocols import Drafter, DraftSession, Noise, Steps, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.combined import check_names, close_all, kinds_of, needs_of, open_all
from paceline.drafting.kinds import KindsByTemperature
from paceline.drafting.merge import Merged, merge, merged_kinds, view
from paceline.errors import ContractViolation


@dataclass(frozen=True, slots=True)
class HybridDrafter(KindsByTemperature):
    """Draft with several drafters at once; the target scores one tree of all their tokens.

    Tokens on the same path are merged. The first drafter whose draft has laws keeps them; all
    other tokens are point masses. That stays exact, but a drawn token counts for less as a point
    mass: name the drafter with laws that matters most first.

    Args:
        drafters: of different names. By name: a list of names, or one text with commas between
            them, as in "ngram,model".
        max_nodes: the most nodes of a tree; each drafter gets an even share of what is left. None
            leaves it to the drafters.

    Raises:
        InvalidInput: fewer than two drafters, or two of one name.
    """

    name: ClassVar[str] = "hybrid"
    needs_draft_model: ClassVar[bool] = False
    combines: ClassVar[bool] = True
    default_verifier: ClassVar[str] = "tree"

    drafters: tuple[Drafter, ...]
    max_nodes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "drafters", tuple(self.drafters))
        if self.max_nodes is not None:
            require_int("max_nodes", self.max_nodes, low=1)
        check_names(self.drafters, "hybrid", least=2)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the drafters, in their order."""
        return tuple(drafter.name for drafter in self.drafters)

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """What any of them needs, and drafts that branch."""
        return needs_of(self.drafters) | {Need.TREE}

    def _kinds(self, *, is_greedy: bool) -> DraftKinds:
        return merged_kinds(kinds_of(self.drafters, is_greedy=is_greedy))

    def open(self, target: TargetView, capacity: int) -> HybridSession:
        """See `protocols.Drafter.open`."""
        sessions = open_all(self.drafters, target, capacity)
        parts = [_Part(name, session) for name, session in sessions.items()]
        return HybridSession(self, parts, target.info.max_draft_tokens)


@dataclass(slots=True)
class _Part:
    """One drafter's session, and what it proposed last."""

    name: str
    session: DraftSession
    draft: Draft | None = None


class HybridSession:
    """See `protocols.DraftSession`."""

    def __init__(
        self, drafter: HybridDrafter, parts: Sequence[_Part], max_draft_tokens: int | None
    ) -> None:
        self._parts = parts
        self._limits = (drafter.max_nodes, max_draft_tokens)
        self._merged: Merged | None = None

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`. Each sees the outcome of its own draft."""
        merged, self._merged = self._merged, None
        proposed = [part for part in self._parts if part.draft is not None]
        rows = (
            {}
            if merged is None
            else dict(zip([p.name for p in proposed], merged.rows, strict=True))
        )
        for part in self._parts:
            own = committed
            if committed.draft is not None:
                draft, part.draft = part.draft, None
                if merged is None or draft is None or committed.draft is not merged.draft:
                    root = None if committed.logits is None else committed.logits[:1]
                    own = Committed(committed.tokens, Draft(), (), root, committed.hidden)
                else:
                    own = view(committed, draft, rows[part.name])
            part.session.observe(own)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        """See `protocols.DraftSession.propose`."""
        names = [part.name for part in self._parts]
        if budget.drafter is not None and budget.drafter not in names:
            raise ContractViolation(
                f"the controller asked for drafter {budget.drafter!r}; there are {', '.join(names)}"
            )
        limits = [limit for limit in (budget.max_nodes, *self._limits) if limit is not None]
        left = min(limits) if limits else None
        asked = [p for p in self._parts if budget.drafter in (None, p.name)]
        own = budget._replace(drafter=None, fallback=None)
        for part in self._parts:
            part.draft = None
        for number, part in enumerate(asked):
            share = None if left is None else -(-left // (len(asked) - number))
            if own.num_draft_tokens > 0 and share != 0:
                proposal = part.session.propose(own._replace(max_nodes=share), warp, noise)
                part.draft = yield from steps_of(proposal)
                left = None if left is None else left - len(part.draft)
        self._merged = merge([part.draft for part in self._parts if part.draft is not None])
        draft = self._merged.draft
        if not len(draft) and draft.aux is None and budget.fallback is not None:
            return (yield from self.propose(budget.fallback, warp, noise))
        return draft

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        close_all([part.session for part in self._parts])
