"""Several drafters for one sequence, of which one drafts in each round.

Cheap drafters that know little combine well with expensive ones that know more: n-grams where the
text repeats itself, a draft model elsewhere. The controller chooses the drafter (`Budget.drafter`);
if it leaves that open, the first one that has something to propose drafts.

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
from paceline.drafting.kinds import KindsByTemperature
from paceline.errors import ContractViolation


@dataclass(frozen=True, slots=True)
class CascadeDrafter(KindsByTemperature):
    """Draft with one of several drafters: the chosen one, or else the first with a proposal.

    Whether a drafter has a proposal depends only on the text so far, so going on to the next
    drafter does not bias the output distribution.

    Args:
        drafters: in order of preference, with distinct names. By name: a list of names, or one
            text with commas between them, as in "ngram,model".

    Raises:
        InvalidInput: there is none, or two have one name.
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
        """Everything that any of them needs."""
        return needs_of(self.drafters)

    @property
    def default_verifier(self) -> str:
        """The first rule other than "token" that one of them names."""
        rules = [traits_of(drafter).default_verifier for drafter in self.drafters]
        return next((rule for rule in rules if rule != "token"), "token")

    def _kinds(self, *, is_greedy: bool) -> DraftKinds:
        return either(kinds_of(self.drafters, is_greedy=is_greedy))

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
    """One drafter's session. A lazy one observes the text only when it has to draft.

    A draft model that is not used for a while then observes everything that it missed at once, and
    no drafts of others.
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
    """The drafters to try, in order, and the budget of each; none for a length of 0.

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
