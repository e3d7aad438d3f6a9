"""Distance-based selection: a token passes if its id is near that of the most probable one.

Source: Stern et al. 1811.03115, section 5.2. Lossy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.checks import require_int
from paceline.sampling.candidates import Blocks
from paceline.verifiers.passing import PassingVerifier


@dataclass(frozen=True, slots=True)
class DistanceVerifier(PassingVerifier):
    """NOT EXACT. Accept draft token x if |x - argmax p| <= epsilon, as numbers.

    For models whose token ids are a scale, such as the intensities of pixels; in a vocabulary of
    words, ids that are near each other mean nothing. The longest path that passes is accepted, and
    the most probable token follows it. Nothing is drawn, so the answer is not a sample of p. With
    epsilon = 0 it is the greedy answer at any temperature. At temperature 0, where p is a point
    mass, it is greedy for any epsilon, since a token without mass never passes: set the temperature
    to 1. Takes trees of any scheme.

    Args:
        epsilon: how far the id may be from that of the most probable token.
    """

    epsilon: int = 2

    name: ClassVar[str] = "distance"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_int("epsilon", self.epsilon, low=0)

    def passing(self, law: Tensor) -> Callable[[int], bool]:
        """See `passing.PassingVerifier.passing`."""
        best = Blocks(law).argmax()
        return lambda token: abs(token - best) <= self.epsilon
