"""No drafter: plain decoding, through the same loop as every other method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN


@dataclass(frozen=True, slots=True)
class NoDrafter:
    """Proposes nothing, so every round yields one token: the baseline of every speed-up."""

    name: ClassVar[str] = "none"
    needs: ClassVar[frozenset[Need]] = frozenset()
    needs_draft_model: ClassVar[bool] = False
    drafts: ClassVar[DraftKinds] = CHOSEN_CHAIN

    def open(self, target: TargetView, capacity: int) -> NoSession:
        """See `protocols.Drafter.open`."""
        return NoSession()


class NoSession:
    """See `protocols.DraftSession`."""

    def observe(self, committed: Committed) -> None:
        """Nothing to learn."""

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """An empty draft."""
        return Draft()

    def close(self) -> None:
        """Nothing to free."""
