"""Top-k selection: a token passes if it is among the k that the target finds most probable.

Source: Stern et al. 1811.03115, section 5.1. Lossy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.checks import require_int
from paceline.sampling.siblings import most_probable
from paceline.verifiers.passing import PassingVerifier


@dataclass(frozen=True, slots=True)
class TopKVerifier(PassingVerifier):
    """NOT EXACT. Accept draft token x if it is among the k most probable under p.

    The longest path that passes is accepted, and the most probable token follows it. Nothing is
    drawn, so the answer is not a sample of p. With k = 1 it is the greedy answer at any
    temperature. At temperature 0, where p is a point mass, it is greedy for any k: to let near
    misses pass, set the temperature to 1. Takes trees of any scheme. It is `top-beta` without its
    second bound.

    Args:
        k: how many of the most probable tokens may pass; ties are broken by token id.
    """

    k: int = 2

    name: ClassVar[str] = "top-k"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_int("k", self.k, low=1)

    def passing(self, law: Tensor) -> Callable[[int], bool]:
        """See `passing.PassingVerifier.passing`."""
        return frozenset(most_probable(law, self.k)).__contains__
