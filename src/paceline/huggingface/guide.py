"""A drafter whose law follows the library's own processors, and leaves the user's alone."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.math.noise import Noise
from paceline.math.warp import Processor, SamplingWarp
from paceline.protocols import Drafter, DraftSession, Warp
from paceline.types import Budget, Committed, Draft, SamplingParams, TargetInfo


@dataclass(frozen=True, slots=True)
class GuidedDrafter:
    """Hands a drafter another law than the target's: one that may be asked at any draft position.

    Args:
        drafter: what drafts.
        params: how it draws.
        processor: from draft logits to scores.
    """

    drafter: Drafter
    params: SamplingParams
    processor: Processor

    @property
    def name(self) -> str:
        """See `protocols.Drafter.name`."""
        return self.drafter.name

    @property
    def needs(self) -> frozenset[str]:
        """See `protocols.Drafter.needs`."""
        return self.drafter.needs

    def open(self, target: TargetInfo, capacity: int) -> GuidedSession:
        """See `protocols.Drafter.open`."""
        warp = SamplingWarp(self.params, processors=[self.processor])
        return GuidedSession(self.drafter.open(target, capacity), warp)


class GuidedSession:
    """See `protocols.DraftSession`."""

    def __init__(self, session: DraftSession, warp: SamplingWarp) -> None:
        self._session, self._warp = session, warp

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._warp.observe(committed.tokens)
        self._session.observe(committed)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        return self._session.propose(budget, self._warp, noise)

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        self._session.close()
