"""Where a plain and a speculative greedy answer part, and whether rounding explains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paceline.targets.probe import TOLERANCE


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token at which two greedy answers to one prompt differ.

    Args:
        position: of that token in the answers, from 0.
        gap: how far apart the two best logits of the plain pass are there; infinite where one
            answer has ended.
        pass_difference: the largest difference of a logit between the two passes there.
        tolerance: how much of that rounding explains, in logits.
    """

    position: int
    gap: float
    pass_difference: float
    tolerance: float

    @property
    def label(self) -> Literal["tie", "fault"]:
        """Whether it is a tie that rounding decides, or a fault.

        It takes both: the two best tokens are near enough for the difference of the passes to
        swap them, and that difference is one of rounding. The first alone would not do, since a
        wrong mask that moves the best token elsewhere moves its logits as far as that takes.
        """
        swapped = self.gap <= 2 * self.pass_difference
        return "tie" if swapped and self.pass_difference <= self.tolerance else "fault"


def first_difference(
    plain: Sequence[int],
    plain_logits: Sequence[Tensor],
    speculative: Sequence[int],
    speculative_logits: Sequence[Tensor],
    *,
    dtype: torch.dtype,
) -> Parting | None:
    """Find where two greedy answers to one prompt part; None where they are equal.

    Args:
        plain, speculative: the tokens of the answers.
        plain_logits, speculative_logits: the logits `[V]` behind which each token was chosen, as
            the rounds of the engine give them with `keep_logits`.
        dtype: in which the model computes; rounding explains differences up to
            `paceline.targets.probe.TOLERANCE` of it, times the spread of the logits.

    Example:
        >>> near = torch.tensor([1.000, 1.001, -1.0]), torch.tensor([1.001, 1.000, -1.0])
        >>> first_difference([1], near[:1], [0], near[1:], dtype=torch.bfloat16).label
        'tie'
    """
    for position, (one, other) in enumerate(zip(plain, speculative, strict=False)):
        if one != other:
            ours, theirs = plain_logits[position].double(), speculative_logits[position].double()
            best, second = ours.topk(2).values.tolist()
            apart = torch.where(ours == theirs, 0.0, (ours - theirs).abs())
            spread = float(ours[ours.isfinite()].std())
            return Parting(position, best - second, float(apart.max()), TOLERANCE[dtype] * spread)
    if len(plain) == len(speculative):
        return None
    return Parting(min(len(plain), len(speculative)), math.inf, 0.0, 0.0)
