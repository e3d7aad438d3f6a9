"""Passes of a target, run one by one: the plain way beside the engine's shared ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from paceline.core.drafts import Draft
from paceline.core.protocols import Steps, Target, Work

T = TypeVar("T")


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


def drive(proposal: Draft | Steps[Draft]) -> Draft:
    """The draft that a session proposes, each pass that it asks for run by itself.

    Example:
        >>> drive(Draft((5, 7))).tokens
        (5, 7)
    """
    return proposal if isinstance(proposal, Draft) else run(proposal)


def run(steps: Steps[T]) -> T:
    """The result of steps, each pass that they ask for run by itself."""
    try:
        ask = next(steps)
        while True:
            (answer,) = ask.model.score([ask.work])
            ask = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def steps_of(proposal: Draft | Steps[Draft]) -> Steps[Draft]:
    """What a session proposes, as steps: for drafters that pass on what others ask."""
    if isinstance(proposal, Draft):
        return proposal
    return (yield from proposal)


def done(value: T) -> Steps[T]:
    """Steps that ask for nothing, for what is known already."""
    yield from ()
    return value
