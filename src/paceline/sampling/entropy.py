"""A lower bound on the acceptance of a draft token, from the entropy of its distribution.

Source: AdaEDL, Agrawal et al. 2410.18351.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def acceptance_bound(q: Tensor, factor: float = 0.2) -> float:
    """1 - sqrt(factor * H(q)), H in nats; below 0 where q is very flat.

    Args:
        q: the distribution of a draft token, `[V]`.
        factor: the paper's gamma, fitted there.

    Example:
        >>> round(acceptance_bound(torch.full((4,), 0.25)), 4)
        0.4734
    """
    return 1 - math.sqrt(factor * float(torch.special.entr(q).sum()))
