"""A chain drafted by some of the target's own layers, as in self-speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.drafts import Budget, Draft
from paceline.core.passes import done, run
from paceline.core.protocols import Noise, Warp
from paceline.core.target import SkipSet
from paceline.core.view import TargetLayers, TargetView
from paceline.drafting.model import Stop, draw_chain
from paceline.errors import InvalidInput


class SelfDraft:
    """Drafts after the committed tokens of one sequence.

    Args:
        layers: the target's own layers, on that sequence.
    """

    def __init__(self, layers: TargetLayers) -> None:
        self.layers = layers
        self.committed: list[int] = []

    def observe(self, tokens: Sequence[int]) -> None:
        """Take in final tokens."""
        self.committed += tokens

    def chain(
        self, skip: SkipSet, budget: Budget, warp: Warp, noise: Noise, min_confidence: float = 0.0
    ) -> Draft:
        """Draw a chain with the layers that `skip` does not skip.

        It ends after a token whose probability is below `min_confidence` or the budget's bound; the
        token is kept (rule 2 of `protocols`). At temperature 0, where the draft is a point mass,
        both bounds of the budget apply to the softmax of the logits.
        """
        if not budget.num_draft_tokens:
            return Draft()
        stop = Stop(
            max(min_confidence, budget.min_confidence),
            budget.min_path_confidence,
            budget.entropy_bound,
        )
        self.layers.start(skip)
        chain = draw_chain(
            lambda: done(self.layers.run(self.committed[-1:])),
            lambda token: done(self.layers.run([token])),
            position=len(self.committed),
            length=budget.num_draft_tokens,
            warp=warp,
            noise=noise,
            stop=stop,
        )
        return run(chain)


def layers_of(target: TargetView, drafter: str) -> TargetLayers:
    """The target's own layers.

    Raises:
        InvalidInput: the target does not give them.
    """
    if target.layers is None:
        raise InvalidInput(
            f"drafter {drafter!r} runs the target's own layers, which {target.info.name} does not "
            "give; choose another drafter"
        )
    return target.layers


def skip_set(attention: Sequence[int], mlp: Sequence[int]) -> SkipSet:
    """A skip set from lists of layers.

    >>> skip_set([1], []).attention
    frozenset({1})
    """
    return SkipSet(frozenset(attention), frozenset(mlp))


def every_second(num_layers: int) -> SkipSet:
    """Every second layer as a whole, but not the first or last (the start of SWIFT, 2410.06916).

    >>> sorted(every_second(6).mlp)
    [1, 3]
    """
    layers = frozenset(range(1, num_layers - 1, 2))
    return SkipSet(layers, layers)
