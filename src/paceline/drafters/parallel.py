"""PARD: a draft model that was trained to guess several tokens in one pass.

After the committed tokens stand tokens that mean "not known yet"; the logits at each are those of
the token after it. So a draft of k tokens takes one pass of the draft model in place of k.

Source: PARD, An et al. 2504.18583.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from paceline.checks import require_int
from paceline.core.drafts import Budget, Draft
from paceline.core.passes import done
from paceline.core.protocols import Noise, Steps, Target, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN, DRAWN_CHAIN, KindsByTemperature, drawn_or_chosen
from paceline.drafting.model import DraftModel, Stop, check_params, draw_chain, own_params
from paceline.errors import InvalidInput
from paceline.sampling.warp import SamplingWarp


@dataclass(frozen=True, slots=True)
class ParallelDrafter(KindsByTemperature):
    """Draft several tokens in one pass of a model that was trained for it.

    Every token is drawn from its own place's distribution, which knows where it stands but not
    which tokens were drawn before it.

    Args:
        model: the draft model, a target like any other.
        mask_token: the token that stands for one not known yet; None is what the model's
            configuration names (`pard_token`).
        params: sampling options of the draft, `SamplingParams` or a mapping of some of them; None
            follows the target's.

    Raises:
        InvalidInput: a setting outside its range, or a model that names no such token.
    """

    name: ClassVar[str] = "parallel"
    needs: ClassVar[frozenset[Need]] = frozenset()
    needs_draft_model: ClassVar[bool] = True

    model: Target = field(repr=False)
    mask_token: int | None = None
    params: SamplingParams | None = None

    def __post_init__(self) -> None:
        info = self.model.info
        if self.mask_token is None and info.mask_token is None:
            raise InvalidInput(
                f"drafter 'parallel' needs a draft model that was trained to guess several tokens "
                f"in one pass, and {info.name} names no token for those not known yet (pard_token "
                "in its config.json); name it by mask_token, or use drafter 'model'"
            )
        if self.mask_token is not None:
            require_int("mask_token", self.mask_token, low=0, high=info.vocab_size - 1)
        object.__setattr__(self, "params", own_params(self.params))

    def _kinds(self, *, is_greedy: bool) -> DraftKinds:
        return drawn_or_chosen(self.params, DRAWN_CHAIN, CHOSEN_CHAIN, is_greedy=is_greedy)

    def open(self, target: TargetView, capacity: int) -> ParallelSession:
        """See `protocols.Drafter.open`."""
        check_params(self.params, target.info, self.name)
        return ParallelSession(self, capacity, target.info.vocab_size)


class ParallelSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: ParallelDrafter, capacity: int, vocab_size: int) -> None:
        self._model = DraftModel(drafter.model, capacity, vocab_size)
        self._warp = None if drafter.params is None else SamplingWarp(drafter.params)
        mask = drafter.mask_token
        self._mask = drafter.model.info.mask_token if mask is None else mask

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._model.observe(committed.tokens)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        """See `protocols.DraftSession.propose`."""
        model = self._model
        limits = (model.reach(budget), budget.max_nodes, _rows(model.model))
        length = min(limit for limit in limits if limit is not None)
        if length < 1:
            return Draft()
        rows: Iterator[Tensor] = iter((yield from self._rows(length)))
        return (
            yield from draw_chain(
                lambda: done(next(rows)),
                lambda token: done(next(rows)),
                position=len(model.committed),
                length=length,
                warp=self._warp or warp,
                noise=noise,
                stop=Stop(budget.min_confidence, budget.min_path_confidence, budget.entropy_bound),
            )
        )

    def _rows(self, length: int) -> Steps[Tensor]:
        """The logits `[length, V]` of the next tokens."""
        assert self._mask is not None
        return (yield from self._model.score((), Draft((self._mask,) * (length - 1))))

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        self._model.close()


def _rows(model: Target) -> int | None:
    """The most tokens of a draft: the rows of a pass of the model, which one token has as well."""
    most = model.info.max_draft_tokens
    return None if most is None else most + 1
