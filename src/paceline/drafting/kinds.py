"""The kinds of drafts that drafters declare in their traits."""

from __future__ import annotations

from abc import abstractmethod

from paceline.core.drafts import Scheme
from paceline.core.sampling import SamplingParams
from paceline.core.target import Need
from paceline.core.traits import DraftKinds

CHOSEN_CHAIN = DraftKinds(frozenset({Scheme.SINGLE}))
"""Chains of point masses."""

CHOSEN_TREE = DraftKinds(frozenset({Scheme.CHOSEN}))
"""Trees of point masses."""

DRAWN_CHAIN = DraftKinds(frozenset({Scheme.SINGLE}), draws=True)
"""Chains drawn token by token."""


def drawn_or_chosen(
    params: SamplingParams | None, drawn: DraftKinds, chosen: DraftKinds, *, is_greedy: bool
) -> DraftKinds:
    """The drafts of a draft model, which draws where its temperature is above 0.

    Args:
        params: its own sampling options; None follows the target's.
        drawn, chosen: its drafts in either case.
        is_greedy: whether the target's temperature is 0.

    Example:
        >>> drawn_or_chosen(None, DRAWN_CHAIN, CHOSEN_CHAIN, is_greedy=True).draws
        False
    """
    return chosen if (is_greedy if params is None else params.is_greedy) else drawn


class KindsByTemperature:
    """A drafter whose drafts depend on the temperature declares them by `_kinds` alone."""

    __slots__ = ()

    @property
    def drafts(self) -> DraftKinds:
        """The kinds of drafts that it makes; see `core.traits`."""
        return self._kinds(is_greedy=False)

    @property
    def greedy_drafts(self) -> DraftKinds:
        """The same when the target's temperature is 0."""
        return self._kinds(is_greedy=True)

    @abstractmethod
    def _kinds(self, *, is_greedy: bool) -> DraftKinds:
        """The kinds of drafts at a temperature of 0, or above."""


class ChosenByMode:
    """A drafter of point masses that proposes a tree if its setting `mode` is "tree", else a path.

    Its default rule takes the drafts of that mode.
    """

    __slots__ = ()

    mode: str

    @property
    def needs(self) -> frozenset[Need]:
        """See `protocols.Drafter.needs`."""
        return frozenset({Need.TREE} if self.mode == "tree" else ())

    @property
    def default_verifier(self) -> str:
        """See `core.traits`."""
        return "tree" if self.mode == "tree" else "token"

    @property
    def drafts(self) -> DraftKinds:
        """The kinds of drafts that it makes; see `core.traits`."""
        return CHOSEN_TREE if self.mode == "tree" else CHOSEN_CHAIN
