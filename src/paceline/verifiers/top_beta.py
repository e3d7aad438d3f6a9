"""Top-beta acceptance: a token passes if it is among the best and not far below the best.

Source: SpecDec, Xia et al. 2203.16487, section 3.2; with beta alone, Stern et al. 1811.03115,
section 5.1. Lossy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.checks import require_finite, require_int
from paceline.sampling.siblings import most_probable
from paceline.verifiers.passing import PassingVerifier


@dataclass(frozen=True, slots=True)
class TopBetaVerifier(PassingVerifier):
    """NOT EXACT. Accept draft token x if it is in the top beta and log p_max - log p(x) <= tau.

    The longest path that passes is accepted, and the most probable token follows it. Nothing is
    drawn, so the answer is not a sample of p. With beta = 1 it is the greedy answer at any
    temperature. At temperature 0, where p is a point mass, it is greedy for any beta: to let near
    misses pass, set the temperature to 1, at which log p is the model's own score. Takes trees of
    any scheme.

    Args:
        beta: how many of the most probable tokens may pass; ties are broken by token id.
        tau: how far below the best score a token may be, in nats.
    """

    beta: int = 5
    tau: float = 3.0

    name: ClassVar[str] = "top-beta"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_int("beta", self.beta, low=1)
        require_finite(self, "tau", self.tau, low=0.0)

    def passing(self, law: Tensor) -> Callable[[int], bool]:
        """See `passing.PassingVerifier.passing`."""
        return near_the_top(law, self.beta, self.tau).__contains__


def near_the_top(p: Tensor, beta: int, tau: float) -> frozenset[int]:
    """The tokens that pass: the beta most probable ones, without those more than tau below.

    >>> import torch
    >>> sorted(near_the_top(torch.tensor([.5, .3, .15, .05]), 3, 1.0))
    [0, 1]
    """
    floor = float(p.amax()) * math.exp(-tau)
    return frozenset(token for token in most_probable(p, beta) if float(p[token]) >= floor)
