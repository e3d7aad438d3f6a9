"""Passes of a target that stand by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.core.protocols import Target, Work


def prefill(target: Target, slot: Any, tokens: Sequence[int]) -> None:
    """Append final tokens to the cache of a slot; no logits come of it.

    Example:
        >>> import torch
        >>> from paceline.testing.table import TableTarget
        >>> target = TableTarget(torch.tensor([0.5, 0.5]))
        >>> slot = target.open(8)
        >>> prefill(target, slot, [0, 1, 1])
        >>> target.length(slot)
        3
    """
    if tokens:
        target.score([Work(slot, tokens, logits=False)])
        target.commit(slot, ())
