"""The faults that an audit has to find, as drafters and rules that claim to be exact.

Each is one that real code has had; tests/lossy.py says where. Drafters follow the scripted draft
model of the audit, so that they can be put before any table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import ROOT, Budget, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose, Steps, Target, Warp
from paceline.core.target import Committed
from paceline.core.view import TargetView
from paceline.drafters.model import ModelDrafter
from paceline.drafting.model import DraftModel
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier
from paceline.workbench.audit.scripts import Parts
from tests import lossy

P = Callable[[int], Tensor]


@dataclass(frozen=True)
class OneRound:
    """Drafts by a function of q and the noise, behind the tokens so far."""

    make: Callable[[Tensor, Noise], Draft]
    model: Target

    name: ClassVar[str] = "planted"
    needs: ClassVar[frozenset[str]] = frozenset()
    needs_draft_model: ClassVar[bool] = True

    def open(self, target: TargetView, capacity: int) -> OneRoundSession:
        return OneRoundSession(self, DraftModel(self.model, capacity, target.info.vocab_size))


class OneRoundSession:
    def __init__(self, drafter: OneRound, model: DraftModel) -> None:
        self._drafter, self._model = drafter, model

    def observe(self, committed: Committed) -> None:
        self._model.observe(committed.tokens)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        at = len(self._model.committed)
        logits = yield from self._model.start()
        return self._drafter.make(warp.law(logits), _At(noise, at))

    def close(self) -> None:
        self._model.close()


class _At:
    """A noise whose position 0 is that of the next token."""

    def __init__(self, noise: Noise, start: int) -> None:
        self._noise, self._start = noise, start

    def accept(self, probability: float, position: int) -> bool:
        return self._noise.accept(probability, self._start + position)

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        return self._noise.sample(law, self._start + position, purpose)

    def race(self, law: Tensor, position: int) -> int:
        return self._noise.race(law, self._start + position)


@dataclass(frozen=True)
class Claims:
    """A rule that says it is exact."""

    rule: Callable[[Draft, P, Noise, int], Verdict]

    name: ClassVar[str] = "claims"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme)
    needs_chain: ClassVar[bool] = False

    def verify(self, draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
        if not len(draft):
            return TokenVerifier().verify(draft, p, noise, position)
        return self.rule(draft, p, noise, position)


def honest(q: Tensor, noise: Noise) -> Draft:
    return Draft((noise.sample(q, 0, Purpose.DRAFT),), probs=(q,))


def last_dropped(q: Tensor, noise: Noise) -> Draft:
    return lossy.dropping(q, {len(q) - 1})(noise)


def argmax_as_soft(q: Tensor, noise: Noise) -> Draft:
    return lossy.argmax_with_soft_law(q)(noise)


def two_draws(q: Tensor, noise: Noise) -> Draft:
    tokens = tuple(noise.sample(q, 0, Purpose.DRAFT) for _ in range(2))
    return Draft(tokens, parents=(ROOT, ROOT), probs=(q, q), scheme=Scheme.IID)


def two_best(q: Tensor, noise: Noise) -> Draft:
    first, second = q.topk(2).indices.tolist()
    return Draft((first, second), parents=(ROOT, ROOT), scheme=Scheme.CHOSEN)


def padding_row(draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
    """The q of another context: here that of the draft, turned by one token."""
    other = draft.law(0)
    assert other is not None
    return lossy.residual_of_another_context(other.roll(1))(draft, p, noise, position)


def cold_bonus(draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
    """The bonus of a draft that was accepted as a whole is drawn at another temperature."""

    def law(node: int) -> Tensor:
        if node != len(draft) - 1:
            return p(node)
        heated = p(node).sqrt()
        return heated / heated.sum()

    return TokenVerifier().verify(draft, law, noise, position)


def lenient(draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
    """Lenience of one half: the draft's law counts half in the test (2211.17192, appendix A.5)."""
    q = draft.law(0)
    assert q is not None
    token = draft.tokens[0]
    if noise.accept(min(1.0, float(p(ROOT)[token]) / (0.5 * float(q[token]))), position):
        return Verdict((0,), noise.sample(p(0), position + 1, Purpose.TARGET))
    rest = (p(ROOT) - q).clamp(min=0)
    return Verdict((), noise.sample(rest, position, Purpose.TARGET))


_HALF = TableTarget(torch.tensor([0.5, 0.5], dtype=torch.float64))
"""Stands in until the audit puts its own draft model there."""


def _parts(make: Any, rule: Any = None, k: int = 2) -> Parts:
    drafter = ModelDrafter(_HALF) if make is None else OneRound(make, _HALF)
    verifier = TokenVerifier() if rule is None else Claims(rule)
    return Parts(drafter, verifier, FixedController(k))


FAULTS: dict[str, Parts] = {
    "a drawn token is dropped": _parts(last_dropped),
    "an argmax scored with a soft law": _parts(argmax_as_soft),
    "match and redraw": _parts(honest, lossy.match_and_redraw),
    "match each path and redraw": _parts(two_best, lossy.match_each_path_and_redraw),
    "the longest of several beams": _parts(two_draws, lossy.longest_beam),
    "the correction drawn from p": _parts(honest, lossy.correction_from_target),
    "a residual of another context": _parts(honest, padding_row),
    "one number for all tests": _parts(None, lossy.one_number_for_all, 3),
    "a bonus at another temperature": _parts(None, cold_bonus, 1),
    "lenience": _parts(honest, lenient),
}

RIGHT: dict[str, Parts] = {
    "one honest draft": _parts(honest),
    "a draft model": _parts(None),
}
