"""Jacobi decoding: guess several tokens and refine them with the target's own argmax.

Source: Santilli et al. 2305.10427; as the starting point of lookahead decoding, Fu et al.
2402.02057, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN
from paceline.sampling.candidates import largest_of_rows


@dataclass(frozen=True, slots=True)
class JacobiDrafter:
    """Draft the target's own argmax of the last pass at each of the next positions.

    A pass over the guesses y[1..m] gives the most probable token after each of them, and these are
    the guesses of the next pass: one step of the Jacobi iteration on the greedy equations y[i] =
    argmax p(. | y[1..i-1]). Each pass makes at least one more guess after the correct prefix
    correct. The number of guesses is the draft length. Guesses that no pass has reached yet start
    as copies of the last token. Each guess is a point mass, so the method is exact under every
    rule.
    """

    name: ClassVar[str] = "jacobi"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS})
    needs_draft_model: ClassVar[bool] = False
    drafts: ClassVar[DraftKinds] = CHOSEN_CHAIN

    def open(self, target: TargetView, capacity: int) -> JacobiSession:
        """See `protocols.Drafter.open`."""
        return JacobiSession()


class JacobiSession:
    """See `protocols.DraftSession`."""

    def __init__(self) -> None:
        self._last = 0
        self._guesses: list[int] = []

    def observe(self, committed: Committed) -> None:
        """Take the target's argmax after every guess that is still ahead."""
        self._last = committed.tokens[-1]
        self._guesses = []
        draft, logits, accepted = committed.draft, committed.logits, len(committed.path)
        if draft is None or logits is None or not draft.is_chain:
            return
        # Row i follows the i-th guess; the first row that is ahead follows the first wrong guess.
        ahead = logits[accepted + 1 : len(draft) + 1]
        if len(ahead):
            self._guesses = [t for t in largest_of_rows(ahead, 1).flatten().tolist() if t >= 0]

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        count = budget.num_draft_tokens
        if budget.max_nodes is not None:
            count = min(count, budget.max_nodes)
        start = [self._last] * (count - len(self._guesses))
        return Draft(tuple((self._guesses + start)[:count]))

    def close(self) -> None:
        """Nothing to free."""
