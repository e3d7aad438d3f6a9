"""What drafters that combine others share: sessions opened and closed as one, drafts declared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from paceline.core.drafts import Scheme
from paceline.core.hidden import Hidden
from paceline.core.protocols import Drafter, DraftSession
from paceline.core.target import Need
from paceline.core.traits import DraftKinds, traits_of
from paceline.core.view import TargetView
from paceline.errors import InvalidInput


def check_names(drafters: Sequence[Drafter], combined: str, least: int) -> None:
    """Refuse too few drafters, and two of one name: a controller asks for them by name."""
    names = [drafter.name for drafter in drafters]
    if len(names) < least or len(set(names)) < len(names):
        raise InvalidInput(
            f"a {combined} needs drafters of different names, at least "
            f"{'one' if least == 1 else 'two'}; it has {', '.join(names) or 'none'}"
        )


def needs_of(drafters: Sequence[Drafter]) -> frozenset[Need | Hidden]:
    """What any of them needs."""
    return frozenset().union(*(drafter.needs for drafter in drafters))


def kinds_of(drafters: Sequence[Drafter], *, is_greedy: bool) -> list[DraftKinds]:
    """The kinds that each drafter declares, if the target samples or is greedy."""
    return [traits_of(drafter).drafts_where(is_greedy=is_greedy) for drafter in drafters]


def either(kinds: Sequence[DraftKinds]) -> DraftKinds:
    """The kinds of drafts that come from one of several drafters; undeclared if one does not say.

    >>> from paceline.drafting.kinds import CHOSEN_CHAIN, CHOSEN_TREE
    >>> sorted(either([CHOSEN_CHAIN, CHOSEN_TREE]).schemes)
    [<Scheme.CHOSEN: 'chosen'>, <Scheme.SINGLE: 'single'>]
    >>> either([CHOSEN_CHAIN, DraftKinds()]).schemes
    frozenset()
    """
    if not all(one.schemes for one in kinds):
        return DraftKinds()
    schemes: frozenset[Scheme] = frozenset().union(*(one.schemes for one in kinds))
    return DraftKinds(schemes, any(one.draws for one in kinds))


def open_all(
    drafters: Sequence[Drafter], target: TargetView, capacity: int
) -> dict[str, DraftSession]:
    """A session of each, by name; after an error those that were opened are closed."""
    sessions: dict[str, DraftSession] = {}
    try:
        for drafter in drafters:
            sessions[drafter.name] = drafter.open(target, capacity)
    except BaseException:
        close_all(list(sessions.values()))
        raise
    return sessions


def close_all(sessions: Sequence[DraftSession]) -> None:
    """Close all of them, also where one fails; the first error is raised in the end."""
    with ExitStack() as stack:
        for session in reversed(sessions):
            stack.callback(session.close)
