"""Lossy rules and drafters that real code has had, as negative examples: each must show.

The wrong law that each has is known exactly; tests/verifiers/test_token.py holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.verifiers.token import TokenVerifier, acceptance_probability, residual

P = Callable[[int], Tensor]


def dropping(q: Tensor, dropped: Container[int]) -> Callable[[Noise], Draft]:
    """Draws one token from q and drops it where it is one of `dropped`.

    (DSpark, 2607.05147, section 3.2.2, says why that is lossy.)
    """

    def draft(noise: Noise) -> Draft:
        token = noise.sample(q, 0, Purpose.DRAFT)
        return Draft() if token in dropped else Draft((token,), probs=(q,))

    return draft


def argmax_with_soft_law(q: Tensor) -> Callable[[Noise], Draft]:
    """Takes the most probable token and says that q drew it (Draft & Verify, 2309.08168)."""
    return lambda noise: Draft((int(q.argmax()),), probs=(q,))


def match_and_redraw(draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
    """Accepts where a sample of the target matches, but then draws again.

    (Samplers of Medusa, 2401.10774, and REST, 2311.08252.)
    """
    if noise.sample(p(ROOT), position, Purpose.TARGET) == draft.tokens[0]:
        return Verdict((0,), noise.sample(p(0), position + 1, Purpose.TARGET))
    return Verdict((), noise.sample(p(ROOT), position, Purpose.TARGET))


def match_each_path_and_redraw(draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
    """The same with a separate sample for each child of the root."""
    for child in draft.children(ROOT):
        if noise.sample(p(ROOT), position, Purpose.TARGET) == draft.tokens[child]:
            return Verdict((child,), noise.sample(p(child), position + 1, Purpose.TARGET))
    return Verdict((), noise.sample(p(ROOT), position, Purpose.TARGET))


def longest_beam(draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
    """Tests every beam with a number of its own, scored with q, and takes the best.

    (ReDrafter, 2403.09919.)
    """
    for child in draft.children(ROOT):
        probability = acceptance_probability(p(ROOT), draft.law(child), draft.tokens[child])
        if noise.accept(probability, position):
            return Verdict((child,), noise.sample(p(child), position + 1, Purpose.TARGET))
    return Verdict((), noise.sample(p(ROOT), position, Purpose.TARGET))


def correction_from_target(draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
    """Draws the correction from p rather than from the residual."""
    if noise.accept(acceptance_probability(p(ROOT), draft.law(0), draft.tokens[0]), position):
        return Verdict((0,), noise.sample(p(0), position + 1, Purpose.TARGET))
    return Verdict((), noise.sample(p(ROOT), position, Purpose.TARGET))


def residual_of_another_context(other: Tensor) -> Callable[[Draft, P, Noise, int], Verdict]:
    """Tests a padding row (token 0, q = 1), and on rejection subtracts a q of elsewhere.

    (SWIFT, 2410.06916.)
    """

    def verify(draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
        target = p(ROOT)
        if noise.accept(float(target[0]), position):
            return Verdict((), 0)
        return Verdict((), noise.sample(residual(target, other, 0), position, Purpose.TARGET))

    return verify


class OneNumber:
    """A noise that accepts with one and the same number in every test of a round.

    It is lossy: each decision needs its own number (Leviathan et al., 2211.17192, algorithm 1).
    """

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._low, self._high = 0.0, 1.0

    def accept(self, probability: float, position: int) -> bool:
        """Whether the number, of which only an interval is known so far, is below."""
        if not self._low < probability < self._high:
            return probability >= self._high
        share = (probability - self._low) / (self._high - self._low)
        if accepted := self._noise.accept(share, position):
            self._high = probability
        else:
            self._low = probability
        return accepted

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        return self._noise.sample(law, position, purpose)

    def race(self, law: Tensor, position: int) -> int:
        return self._noise.race(law, position)


def one_number_for_all(draft: Draft, p: P, noise: Noise, position: int) -> Verdict:
    """Token verification with one uniform number for all tests."""
    return TokenVerifier().verify(draft, p, OneNumber(noise), position)


def two_children(first: int, second: int, q: Tensor | None = None) -> Draft:
    """Two chosen siblings, with q as the law that is told of them."""
    return Draft((first, second), parents=(ROOT, ROOT), probs=None if q is None else (q, q))
