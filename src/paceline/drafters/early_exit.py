"""Draft with the target's first layers and its own head; verification resumes after them.

Source: Elhoushi et al., LayerSkip, arXiv 2404.16710, section 4.3 (self-speculative decoding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.checks import require_finite, require_int
from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need, SkipSet
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN, DRAWN_CHAIN
from paceline.drafting.self_draft import SelfDraft, layers_of
from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EarlyExitDrafter:
    """Draft with the first layers, the last norm and the head of the target.

    The target's pass then runs the rows that were drafted from only through the remaining layers.

    Args:
        exit_layer: how many layers a draft runs; None means a quarter of them.
        min_confidence: a draft ends after a token whose probability under q is below this; the
            token is kept. At temperature 0 q is the softmax of the logits.

    Raises:
        InvalidInput: a setting is outside its range.
    """

    name: ClassVar[str] = "early-exit"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LAYERS})
    drafts: ClassVar[DraftKinds] = DRAWN_CHAIN
    greedy_drafts: ClassVar[DraftKinds] = CHOSEN_CHAIN

    exit_layer: int | None = None
    min_confidence: float = 0.0

    def __post_init__(self) -> None:
        if self.exit_layer is not None:
            require_int("exit_layer", self.exit_layer, low=1)
        require_finite(self, "min_confidence", self.min_confidence, low=0.0, high=1.0)

    def open(self, target: TargetView, capacity: int) -> EarlyExitSession:
        """See `protocols.Drafter.open`.

        Raises:
            InvalidInput: the target does not have more layers than a draft would run.
        """
        layers = layers_of(target, self.name)
        layer = self.exit_layer or max(1, layers.num_layers // 4)
        if layer >= layers.num_layers:
            raise InvalidInput(
                f"exit_layer must be below the {layers.num_layers} layers of {target.info.name}; "
                f"it is {layer}"
            )
        return EarlyExitSession(SelfDraft(layers), SkipSet.after(layer, layers.num_layers), self)


class EarlyExitSession:
    """See `protocols.DraftSession`."""

    def __init__(self, draft: SelfDraft, skip: SkipSet, drafter: EarlyExitDrafter) -> None:
        self._draft, self._skip, self._drafter = draft, skip, drafter

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._draft.observe(committed.tokens)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        return self._draft.chain(self._skip, budget, warp, noise, self._drafter.min_confidence)

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
