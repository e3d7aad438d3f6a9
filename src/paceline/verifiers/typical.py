"""Typical acceptance: a token passes if it is probable enough for how uncertain the target is.

Source: Medusa 2401.10774, section 2.3.1. Lossy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.checks import require_finite
from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose


@dataclass(frozen=True, slots=True)
class TypicalVerifier:
    """NOT EXACT. Accept draft token x if p(x) > min(epsilon, delta exp(-H(p))).

    The longest path that passes is accepted (of several, the one with the largest product of p),
    and the next token is drawn from the p after it. A token that passes is accepted without a
    random test, so the drafter biases the answer: the tokens it favours occur more often than under
    p. At temperature 0, where p is a point mass, the answer is greedy. Takes trees of any scheme.

    Args:
        epsilon: a token more probable than this always passes; from 0 to 1.
        delta: the share of exp(-H) that suffices; H is the entropy of p in nats. At least 0.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    name: ClassVar[str] = "typical"
    exact: ClassVar[bool] = False
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme)
    needs_chain: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_finite(self, "epsilon", self.epsilon, low=0.0, high=1.0)
        require_finite(self, "delta", self.delta, low=0.0)

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""

        def passing(law: Tensor) -> Callable[[int], bool]:
            threshold = typical_threshold(law, self.epsilon, self.delta)
            return lambda token: float(law[token]) > threshold

        path = longest_passing_path(draft, p, passing)
        law = p(path[-1] if path else ROOT)
        return Verdict(path, noise.sample(law, position + len(path), Purpose.TARGET))


def typical_threshold(p: Tensor, epsilon: float, delta: float) -> float:
    """min(epsilon, delta exp(-H)), H = -sum p log(p + 1e-5).

    >>> import torch
    >>> round(typical_threshold(torch.full((100,), .01), .09, .3), 4)
    0.003
    """
    entropy = -float((p * (p + 1e-5).log()).sum())
    return min(epsilon, delta * math.exp(-entropy))


def longest_passing_path(
    draft: Draft,
    p: Callable[[int], Tensor],
    passing: Callable[[Tensor], Callable[[int], bool]],
) -> tuple[int, ...]:
    """The longest path all of whose tokens pass under the law after their parent.

    Ties go to the largest product of p, then to the first path.

    Args:
        draft, p: as in `protocols.Verifier.verify`.
        passing: from a law to its test for tokens; a token without mass fails.
    """
    assert draft.parents is not None
    best: tuple[int, float, int] = (0, 0.0, ROOT)
    reached: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}
    tests: dict[int, Callable[[int], bool]] = {}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent not in reached:
            continue
        law = p(parent)
        if parent not in tests:
            tests[parent] = passing(law)
        if (mass := float(law[token])) > 0 and tests[parent](token):
            depth, score = reached[parent]
            reached[node] = depth + 1, score + math.log(mass)
            if reached[node] > best[:2]:
                best = *reached[node], node
    return draft.path(best[2])
