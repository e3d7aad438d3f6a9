"""A chain drafted by some of the target's own layers: what self-speculative drafters share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from paceline.draft_model import Stop
from paceline.errors import NoTokenLeft
from paceline.math.noise import Noise, Purpose
from paceline.protocols import OwnLayers, Warp
from paceline.types import Budget, Draft, SkipSet


class OwnDraft:
    """Drafts behind the committed tokens of one sequence.

    Args:
        layers: the target's own, on that sequence.
    """

    def __init__(self, layers: OwnLayers) -> None:
        self.layers = layers
        self.committed: list[int] = []

    def observe(self, tokens: Sequence[int]) -> None:
        """Take in final tokens."""
        self.committed += tokens

    def chain(
        self, skip: SkipSet, budget: Budget, warp: Warp, noise: Noise, min_confidence: float = 0.0
    ) -> Draft:
        """Draw a chain with the layers that `skip` leaves.

        It ends after a token whose probability is below `min_confidence` or that of the budget:
        the token is kept (rule 2 of `protocols`). At temperature 0, where the draft is a point
        mass, both bounds of the budget look at the softmax of the logits.
        """
        if not budget.num_draft_tokens:
            return Draft()
        stop = Stop(
            max(min_confidence, budget.min_confidence),
            budget.min_path_confidence,
            budget.entropy_bound,
        )
        tokens: list[int] = []
        laws: list[Tensor] = []
        confidence: list[float] = []
        self.layers.start(skip)
        new = self.committed[-1]
        while True:
            logits = self.layers.run([new])
            try:
                q = warp.law(logits, tokens)
            except NoTokenLeft:
                break  # a processor banned all that these layers may say
            belief = logits.softmax(dim=-1) if warp.is_greedy else q
            if stop.before(belief):
                break
            new = noise.sample(q, len(self.committed) + len(tokens), Purpose.DRAFT)
            tokens.append(new)
            laws.append(q)
            confidence.append(float(belief[new]))
            if len(tokens) == budget.num_draft_tokens or stop.after(confidence):
                break
        return Draft(
            tuple(tokens),
            probs=None if warp.is_greedy else tuple(laws),
            confidence=tuple(confidence),
        )


def skip_set(attention: Sequence[int], mlp: Sequence[int]) -> SkipSet:
    """A skip set from lists of layers.

    >>> skip_set([1], []).attention
    frozenset({1})
    """
    return SkipSet(frozenset(attention), frozenset(mlp))


def every_second(num_layers: int) -> SkipSet:
    """Every second layer as a whole, never the first nor the last (the start of SWIFT, 2410.06916).

    >>> sorted(every_second(6).mlp)
    [1, 3]
    """
    layers = frozenset(range(1, num_layers - 1, 2))
    return SkipSet(layers, layers)
