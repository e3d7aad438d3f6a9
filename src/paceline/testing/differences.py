"""Where a plain and a speculative greedy answer diverge, and whether rounding explains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

ROUNDING = 40.0
"""How large a deviation of a pass rounding explains, in machine epsilons of the model's dtype.

Between passes of different shapes SmolLM2-135M in bfloat16 had deviations up to 23 epsilons, in 8
answers of 50 tokens; with a wrong mask they were 95 and more, in a tiny random model 47 and more.
"""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token at which two greedy answers to one prompt differ.

    Args:
        position: of that token in the answers, from 0.
        gap: the difference of the two largest logits of the plain pass there; infinite if one
            answer has ended.
        pass_difference: the largest logit difference between the two passes there.
        deviation: the root mean square of that difference over the vocabulary, as a share of the
            spread (standard deviation) of the plain logits.
        tolerance: the largest deviation that rounding explains.
    """

    position: int
    gap: float
    pass_difference: float
    deviation: float
    tolerance: float

    @property
    def label(self) -> Literal["tie", "fault"]:
        """Whether it is a near-tie that rounding decides, or a fault.

        A tie needs both: the two best tokens are close enough for the difference of the passes to
        swap them, and that difference is explained by rounding. The first condition alone is not
        enough, since a wrong mask that changes the best token moves the logits as far as that
        takes.
        """
        swapped = self.gap <= 2 * self.pass_difference
        return "tie" if swapped and self.deviation <= self.tolerance else "fault"


def first_difference(
    plain: Sequence[int],
    plain_logits: Sequence[Tensor],
    speculative: Sequence[int],
    speculative_logits: Sequence[Tensor],
    *,
    dtype: torch.dtype,
) -> Parting | None:
    """Find where two greedy answers to one prompt diverge; None if they are equal.

    Args:
        plain, speculative: the tokens of the answers.
        plain_logits, speculative_logits: the logits `[V]` from which each token was chosen, as the
            engine's rounds report them with `keep_logits`.
        dtype: the dtype in which the model computes; rounding explains deviations up to `ROUNDING`
            times its epsilon.

    Example:
        >>> near = torch.tensor([1.000, 1.001, -1.0]), torch.tensor([1.001, 1.000, -1.0])
        >>> first_difference([1], near[:1], [0], near[1:], dtype=torch.bfloat16).label
        'tie'
    """
    tolerance = ROUNDING * torch.finfo(dtype).eps
    for position, (one, other) in enumerate(zip(plain, speculative, strict=False)):
        if one != other:
            ours, theirs = plain_logits[position].double(), speculative_logits[position].double()
            best, second = ours.topk(2).values.tolist()
            apart = torch.where(ours == theirs, 0.0, (ours - theirs).abs())
            known = ours.isfinite()
            deviation = float(apart[known].square().mean().sqrt() / ours[known].std())
            return Parting(position, best - second, float(apart.max()), deviation, tolerance)
    if len(plain) == len(speculative):
        return None
    return Parting(min(len(plain), len(speculative)), math.inf, 0.0, 0.0, tolerance)
