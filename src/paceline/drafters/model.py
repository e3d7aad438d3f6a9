"""A draft model: a smaller model with the same tokenizer proposes a chain, token by token.

Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318. The entropy bound is AdaEDL
(2410.18351), the confidence threshold that of `transformers`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import InvalidInput, NoTokenLeft, UnknownName
from paceline.math.noise import Noise, Purpose
from paceline.math.warp import SamplingWarp
from paceline.protocols import Target, Warp, Work
from paceline.types import (
    Budget,
    Committed,
    Draft,
    SamplingParams,
    TargetInfo,
    require_finite,
)

log = logging.getLogger("paceline")

_CATCH_UP = 16
"""Up to this many tokens are caught up within the first scoring pass, more in a prefill."""


@dataclass(frozen=True, slots=True)
class ModelDrafter:
    """Draft with a model of one's own.

    Args:
        model: the draft model, a target like any other.
        params: sampling options of the draft, `SamplingParams` or a mapping of some of them; None
            follows the target's, which accepts most. At temperature 0 the draft is a point mass,
            whatever the target's temperature is.
        min_confidence: stop after a token whose probability under q is below this. The token
            is kept: to drop it would bend the law of the output.
        entropy_bound: stop before a token whose acceptance is estimated below this, by
            1 - sqrt(entropy_factor * H(q)) (AdaEDL).
        entropy_factor: see `entropy_bound`.

    At temperature 0, where q is a point mass, both bounds look at the softmax of the draft
    model's logits instead.

    Raises:
        InvalidInput: a setting outside its range, or of the wrong type.
    """

    name: ClassVar[str] = "model"
    needs: ClassVar[frozenset[str]] = frozenset()
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
        object.__setattr__(self, "params", _sampling_params(self.params))
        if self.params is not None and self.params.has_penalties:
            raise InvalidInput(
                "the draft's own sampling options take no penalties; leave params out and the "
                "draft follows the target's, penalties included"
            )
        if self.params is not None and self.params.seed is not None:
            raise InvalidInput(
                "the draft draws from the noise of its sequence and has no seed of its own; leave "
                "seed out of its params"
            )

    def open(self, target: TargetInfo, capacity: int) -> ModelSession:
        """See `protocols.Drafter.open`."""
        own = self.params or SamplingParams()
        named = {*own.logit_bias, *own.banned_token_ids, *(own.allowed_token_ids or ())}
        if outside := [token for token in named if not 0 <= token < target.vocab_size]:
            raise InvalidInput(
                f"the sampling options of drafter 'model' name token {outside[0]}; the vocabulary "
                f"of {target.name} is 0 to {target.vocab_size - 1}"
            )
        limit = self.model.info.max_length
        room = capacity if limit is None else min(capacity, limit)
        return ModelSession(self, self.model.open(room), room, target)


class ModelSession:
    """See `protocols.DraftSession`. The draft cache holds a prefix of `committed`, then drafts."""

    def __init__(self, drafter: ModelDrafter, slot: Any, room: int, target: TargetInfo) -> None:
        self._drafter, self._model, self._slot, self._room = drafter, drafter.model, slot, room
        self._target = target
        self._warp = None if drafter.params is None else SamplingWarp(drafter.params)
        self._committed: list[int] = []
        self._cached: list[int] = []
        self._told = False

    def observe(self, committed: Committed) -> None:
        """Cut the draft cache to what became final; a prompt is taken in at once."""
        old = len(self._committed)
        self._committed += committed.tokens
        self._keep_cached(min(old, len(self._cached)))
        missing = self._committed[len(self._cached) : self._room]
        if len(missing) > _CATCH_UP:
            self._prefill(missing[:-1])

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        position = len(self._committed)
        # The last draft token is not fed, so the draft may reach one token past the room.
        length = min(budget.num_draft_tokens, self._room - position + 1)
        if length <= 0:
            if budget.num_draft_tokens:
                self._tell_once()
            return Draft()
        self._keep_cached(min(position, len(self._cached)))
        warp = self._warp or warp
        tokens: list[int] = []
        laws: list[Tensor] = []
        logits = self._feed(self._committed[len(self._cached) :])
        while True:
            try:
                q = warp.law(logits, tokens)
            except NoTokenLeft:
                break  # what the target may say, the draft model cannot
            belief = self._belief(q, logits, warp)
            if belief is not None and self._too_uncertain(belief):
                break
            token = noise.sample(q, position + len(tokens), Purpose.DRAFT)
            tokens.append(token)
            laws.append(q)
            if len(tokens) == length or (
                belief is not None and float(belief[token]) < self._drafter.min_confidence
            ):
                break
            logits = self._feed([token])
        return Draft(tuple(tokens), probs=None if warp.is_greedy else tuple(laws))

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        self._model.close(self._slot)

    def _keep_cached(self, right: int) -> None:
        """Cut the draft cache to a prefix of the committed tokens; the first `right` agree."""
        # The last committed token is always fed again: its logits start the next draft.
        most = min(len(self._cached), len(self._committed) - 1)
        right = min(right, most)
        while right < most and self._cached[right] == self._committed[right]:
            right += 1
        del self._cached[right:]
        self._model.rollback(self._slot, right)

    def _feed(self, tokens: Sequence[int]) -> Tensor:
        """Append tokens to the draft cache; the logits `[V]` behind the last, as the target's."""
        info = self._model.info
        most = _CATCH_UP if info.max_draft_tokens is None else info.max_draft_tokens + 1
        if len(tokens) > min(_CATCH_UP, most):
            self._prefill(tokens[:-1])
            tokens = tokens[-1:]
        root, *rest = self._known(tokens)
        scores = self._model.score([Work(self._slot, root, Draft(tuple(rest)))])[0]
        self._model.commit(self._slot, range(len(rest)))
        self._cached += tokens
        return fit(scores.logits[-1], self._target.vocab_size)

    def _prefill(self, tokens: Sequence[int]) -> None:
        self._model.prefill(self._slot, self._known(tokens))
        self._cached += tokens

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Ids that only the target has are padding of its vocabulary; any id stands for them."""
        vocab = self._model.info.vocab_size
        return [token if token < vocab else 0 for token in tokens]

    def _belief(self, q: Tensor, logits: Tensor, warp: Warp) -> Tensor | None:
        """What the draft model thinks of the next token; None where nobody asks."""
        if not self._drafter.entropy_bound and not self._drafter.min_confidence:
            return None
        return logits.softmax(dim=-1) if warp.is_greedy else q

    def _too_uncertain(self, belief: Tensor) -> bool:
        if not self._drafter.entropy_bound:
            return False
        entropy = float(torch.special.entr(belief).sum())
        bound = 1 - math.sqrt(self._drafter.entropy_factor * entropy)
        return bound < self._drafter.entropy_bound

    def _tell_once(self) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "the draft model %s takes %d tokens; from here on decoding is plain",
                self._model.info.name,
                self._room,
            )


def _sampling_params(given: Any) -> SamplingParams | None:
    """Settings that come from a command line or from JSON are mappings."""
    if given is None or isinstance(given, SamplingParams):
        return given
    known = SamplingParams.__dataclass_fields__
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"params must be sampling options, as in {{'temperature': 0.5}}; it is {given!r:.80}"
        )
    for name in given:
        if name not in known:
            raise UnknownName.among("sampling option", str(name), known)
    return SamplingParams(**given)


def fit(logits: Tensor, vocab_size: int) -> Tensor:
    """Cut or pad a row of draft logits to the target's vocabulary; padding is -inf.

    >>> import torch
    >>> fit(torch.tensor([1.0, 2.0]), 3)
    tensor([1., 2., -inf])
    """
    missing = vocab_size - logits.shape[-1]
    return functional.pad(logits, (0, missing), value=-math.inf) if missing else logits
