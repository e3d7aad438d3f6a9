"""Target passes outside a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paceline.core.hidden import Hidden
from paceline.core.protocols import Target, Work
from paceline.core.target import Committed

PART = 512
"""The number of prompt tokens whose hidden states are passed on at a time."""


def prefill(target: Target, slot: Any, tokens: Sequence[int]) -> None:
    """Append final tokens to the cache of a slot; no logits are computed.

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


def prefill_hidden(
    target: Target, slot: Any, prompt: Sequence[int], hidden: Hidden
) -> Iterator[Committed]:
    """Process all but the last token of a prompt in an empty slot, part by part.

    Yields what a drafter that needs hidden states observes of each part (see `Committed`): the
    tokens that follow its rows and, in the first part, the token before them.
    """
    tokens, last = tuple(prompt), len(prompt) - 1
    if not last:
        yield Committed(tokens)
    for start in range(0, last, PART):
        end = min(start + PART, last)
        (scores,) = target.score([Work(slot, tokens[start:end], logits=False, hidden=hidden)])
        target.commit(slot, ())
        yield Committed(tokens[start + 1 if start else 0 : end + 1], hidden=scores.hidden)
