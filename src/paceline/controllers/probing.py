"""Drafts that are not expected to pay, made to see whether they have come to: what they may cost.

Two beliefs may be wrong while nothing is drafted. Acceptance may have risen: a probe of one token
finds out. Or the price was disturbed: the clock spoke of slow drafts while the machine was busy.
Where drafting would pay at the price that it had before, the price is in doubt, and a draft of the
usual length is timed again soon, and then ever more rarely.
"""

from __future__ import annotations

FIRST_CREDIT = 0.25
"""Passes that probes of each drafter may lose before anything was gained: 2 % of 13 tokens."""

MOST_SAVED = 2.0
"""The most passes that probes may come to lose; a more expensive probe is never made."""

GAINED = 0.015
"""The share of what drafting gained that probes may lose again."""

FREE_READING = 0.25
"""Reading what was missed may take this share of the time of probes besides."""

MOST_READING = 1.0
"""Reading counts as this many passes at most, so that a wrong price of it is found out."""

LEAST_COST = 0.01
"""A probe counts at least as this many passes, so that a free drafter waits its turn as well."""

REMEMBERED_EVERY = 8
"""Prices at which drafting pays are remembered once in this number of rounds."""

HOPE_RISE = 1.05
"""By how much a remembered price rises each time at most."""

PRICE_GAP = 2
"""Rounds until a price for which nothing is drafted is timed again: as long as it is wrong, all
that drafting gains is lost."""
LENGTH_GAP = 6
"""Rounds until another length than the best is timed: the best is worth something too."""
_GAP_GROWTH = 2.0
"""How the rounds in between grow with each timing that confirms it."""
_DOUBT = 0.5
"""The odds that a price in doubt is wrong: by so much less does it cost to time it again."""


class Account:
    """The passes that probes may lose: a share of the time, and of what drafting gained.

    Args:
        share: of the time.
        num_drafters: which share it.
    """

    def __init__(self, share: float, num_drafters: int) -> None:
        self._share = share
        self.balance = FIRST_CREDIT * num_drafters if share else 0.0

    def allows(self, cost: float) -> bool:
        """Whether a probe may be made."""
        return cost <= self.balance

    def earn(self, passes: float, gained: float) -> None:
        """Take in a round that is no probe: its time, and the passes that drafting saved."""
        # What drafting gained may be lost again in part, and the whole is still faster.
        self.balance = min(self.balance + self._share * passes + GAINED * gained, MOST_SAVED)

    def spend(self, passes: float) -> None:
        """Take in a probe; one that paid spends less than nothing."""
        self.balance = min(self.balance - passes, MOST_SAVED)


class Doubt:
    """Whether the price for which a drafter or a length is left out is to be timed again.

    Args:
        first_gap: rounds until it is for the first time.
    """

    def __init__(self, first_gap: int) -> None:
        self._first_gap = self._gap = float(first_gap)
        self._rounds = 0

    def wait(self) -> None:
        """A round went by."""
        self._rounds += 1

    @property
    def is_due(self) -> bool:
        """Whether it is time."""
        return self._rounds >= self._gap

    @staticmethod
    def cost(believed: float, hoped: float) -> float:
        """The passes that timing it again is expected to lose.

        Args:
            believed: if the price is right.
            hoped: if it is wrong.
        """
        return max(_DOUBT * believed + (1 - _DOUBT) * hoped, LEAST_COST)

    def settle(self, confirmed: bool) -> None:
        """It was timed again."""
        self._rounds = 0
        self._gap = self._gap * _GAP_GROWTH if confirmed else 1.0

    def reset(self) -> None:
        """It pays, so that nothing is in doubt."""
        self._rounds, self._gap = 0, self._first_gap
