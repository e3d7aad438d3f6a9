"""A draft model: a smaller model with the same tokenizer proposes a chain, token by token.

Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318. The entropy bound is AdaEDL
(2410.18351), the confidence threshold that of `transformers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.checks import require_finite
from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Steps, Target, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN, DRAWN_CHAIN, KindsByTemperature, drawn_or_chosen
from paceline.drafting.model import DraftModel, Stop, check_params, draw_chain, own_params
from paceline.sampling.warp import SamplingWarp


@dataclass(frozen=True, slots=True)
class ModelDrafter(KindsByTemperature):
    """Draft with a model of one's own.

    Args:
        model: the draft model, a target like any other.
        params: sampling options of the draft, `SamplingParams` or a mapping of some of them; None
            follows the target's, which accepts most. At temperature 0 the draft is a point mass,
            whatever the target's temperature is.
        min_confidence: stop after a token whose probability under q is below this. The token
            is kept: dropping it would bias the output distribution.
        entropy_bound: stop before a token whose acceptance is estimated below this, by
            1 - sqrt(entropy_factor * H(q)) (AdaEDL).
        entropy_factor: see `entropy_bound`.

    At temperature 0, where q is a point mass, both bounds look at the softmax of the draft
    model's logits instead.

    Raises:
        InvalidInput: a setting outside its range, or of the wrong type.
    """

    name: ClassVar[str] = "model"
    needs: ClassVar[frozenset[Need]] = frozenset()
    needs_draft_model: ClassVar[bool] = True

    model: Target = field(repr=False)
    params: SamplingParams | None = None
    min_confidence: float = 0.0
    entropy_bound: float = 0.0
    entropy_factor: float = 0.2

    def __post_init__(self) -> None:
        require_finite(self, "min_confidence", self.min_confidence, low=0.0, high=1.0)
        require_finite(self, "entropy_bound", self.entropy_bound, low=0.0, high=1.0)
        require_finite(self, "entropy_factor", self.entropy_factor, low=0.0)
        object.__setattr__(self, "params", own_params(self.params))

    def _kinds(self, *, is_greedy: bool) -> DraftKinds:
        return drawn_or_chosen(self.params, DRAWN_CHAIN, CHOSEN_CHAIN, is_greedy=is_greedy)

    def open(self, target: TargetView, capacity: int) -> ModelSession:
        """See `protocols.Drafter.open`."""
        check_params(self.params, target.info, self.name)
        return ModelSession(self, capacity, target.info.vocab_size)


class ModelSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: ModelDrafter, capacity: int, vocab_size: int) -> None:
        self._drafter = drafter
        self._model = DraftModel(drafter.model, capacity, vocab_size)
        self._warp = None if drafter.params is None else SamplingWarp(drafter.params)

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._model.observe(committed.tokens)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        """See `protocols.DraftSession.propose`."""
        model, warp = self._model, self._warp or warp
        if not (length := model.reach(budget)):
            return Draft()
        stop = Stop(
            max(budget.min_confidence, self._drafter.min_confidence),
            budget.min_path_confidence,
            max(budget.entropy_bound, self._drafter.entropy_bound),
            self._drafter.entropy_factor,
        )
        return (
            yield from draw_chain(
                model.start,
                model.feed,
                position=len(model.committed),
                length=length,
                warp=warp,
                noise=noise,
                stop=stop,
            )
        )

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        self._model.close()
