"""Several drafters beside one sequence, of which one drafts in each round.

Cheap drafters that know little go well with dear ones that know more: n-grams where the text
repeats itself, a draft model elsewhere. Which of them is asked is the controller's choice
(`Budget.drafter`); where it leaves that open, the first that has something drafts.

Source: the order of drafters in "cascade speculative drafting", Chen et al. 2312.11462, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from paceline.core.drafts import Budget, Draft
from paceline.core.hidden import Hidden
from paceline.core.passes import steps_of
from paceline.core.protocols import Drafter, DraftSession, Noise, Steps, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds, traits_of
from paceline.core.view import TargetView
from paceline.drafting.combined import (
    check_names,
    close_all,
    either,
    kinds_of,
    needs_of,
    open_all,
)
from paceline.errors import ContractViolation


@dataclass(frozen=True, slots=True)
class CascadeDrafter:
    """Draft with one of several drafters: the one asked for, else the first that has something.

    Whether a drafter has something follows from the text so far, so a round that goes on to the
    next bends no law.

    Args:
        drafters: in the order in which they are asked, of different names. By name: a list of
            names, or one text with commas between them, as in "ngram,model".

    Raises:
        InvalidInput: none, or two of one name.
    """

    name: ClassVar[str] = "cascade"
    needs_draft_model: ClassVar[bool] = False
    combines: ClassVar[bool] = True

    drafters: tuple[Drafter, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "drafters", tuple(self.drafters))
        check_names(self.drafters, "cascade", least=1)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the drafters, in their order."""
        return tuple(drafter.name for drafter in self.drafters)

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """What any of them needs."""
        return needs_of(self.drafters)

    @property
    def default_verifier(self) -> str:
        """The first rule that one of them names other than "token"."""
        rules = [traits_of(drafter).default_verifier for drafter in self.drafters]
        return next((rule for rule in rules if rule != "token"), "token")

    @property
    def drafts(self) -> DraftKinds:
        """The kinds of drafts that it makes; see `core.traits`."""
        return either(kinds_of(self.drafters, is_greedy=False))

    @property
    def greedy_drafts(self) -> DraftKinds:
        """The same when the target's temperature is 0."""
        return either(kinds_of(self.drafters, is_greedy=True))

    def open(self, target: TargetView, capacity: int) -> CascadeSession:
        """See `protocols.Drafter.open`."""
        sessions = open_all(self.drafters, target, capacity)
        return CascadeSession(
            {
                drafter.name: _Part(
                    sessions[drafter.name],
                    traits_of(drafter).needs_draft_model and not drafter.needs,
                )
                for drafter in self.drafters
            }
        )


class _Part:
    """One drafter's session. A lazy one hears of the text when it is asked.

    A draft model that is not asked for a while so hears of what it missed at once, and of no
    drafts but its own.
    """

    def __init__(self, session: DraftSession, lazy: bool) -> None:
        self.session, self._lazy = session, lazy
        self._missed: list[int] = []

    def observe(self, committed: Committed) -> None:
        if self._lazy:
            self._missed += committed.tokens
        else:
            self.session.observe(committed)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft | Steps[Draft]:
        if self._missed:
            missed, self._missed = tuple(self._missed), []
            self.session.observe(Committed(missed))
        return self.session.propose(budget, warp, noise)


class CascadeSession:
    """See `protocols.DraftSession`."""

    def __init__(self, parts: Mapping[str, _Part]) -> None:
        self._parts = parts

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        for part in self._parts.values():
            part.observe(committed)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        """See `protocols.DraftSession.propose`."""
        for name, own in plan(budget, tuple(self._parts)):
            draft = yield from steps_of(self._parts[name].propose(own, warp, noise))
            if len(draft) or draft.aux is not None:
                return replace(draft, drafter=draft.drafter or name)
        return Draft()

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        close_all([part.session for part in self._parts.values()])


def plan(budget: Budget, names: Sequence[str]) -> Iterator[tuple[str, Budget]]:
    """Who is asked, in which order, and how far it may go; a length of 0 asks nobody.

    Raises:
        ContractViolation: the budget asks for a drafter that is not there.

    Example:
        >>> [(name, b.num_draft_tokens) for name, b in plan(Budget(4), ("ngram", "model"))]
        [('ngram', 4), ('model', 4)]
        >>> asked = Budget(8, drafter="ngram", fallback=Budget(3, drafter="model"))
        >>> [(name, b.num_draft_tokens) for name, b in plan(asked, ("ngram", "model"))]
        [('ngram', 8), ('model', 3)]
    """
    own: Budget | None = budget
    while own is not None:
        if own.drafter is not None and own.drafter not in names:
            raise ContractViolation(
                f"the controller asked for drafter {own.drafter!r}; there are {', '.join(names)}"
            )
        if own.num_draft_tokens > 0:
            for name in names if own.drafter is None else (own.drafter,):
                yield name, own._replace(drafter=None, fallback=None)
        own = own.fallback
