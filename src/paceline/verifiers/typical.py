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
from paceline.core.protocols import Noise, Purpose
from paceline.verifiers.passing import PassingVerifier


@dataclass(frozen=True, slots=True)
class TypicalVerifier(PassingVerifier):
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

    def __post_init__(self) -> None:
        require_finite(self, "epsilon", self.epsilon, low=0.0, high=1.0)
        require_finite(self, "delta", self.delta, low=0.0)

    def passing(self, law: Tensor) -> Callable[[int], bool]:
        """See `passing.PassingVerifier.passing`."""
        threshold = typical_threshold(law, self.epsilon, self.delta)
        return lambda token: float(law[token]) > threshold

    def following(self, law: Tensor, noise: Noise, position: int) -> int:
        """A sample of the distribution."""
        return noise.sample(law, position, Purpose.TARGET)


def typical_threshold(p: Tensor, epsilon: float, delta: float) -> float:
    """min(epsilon, delta exp(-H)), H = -sum p log(p + 1e-5).

    >>> import torch
    >>> round(typical_threshold(torch.full((100,), .01), .09, .3), 4)
    0.003
    """
    entropy = -float((p * (p + 1e-5).log()).sum())
    return min(epsilon, delta * math.exp(-entropy))
