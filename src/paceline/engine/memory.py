"""What a request takes of memory, and how to tell that there was not enough."""

from __future__ import annotations

from typing import Any

import torch

from paceline.core.protocols import Target
from paceline.core.traits import models_of, traits_of
from paceline.engine.request import Request

SCORED_ROWS = 16
"""The rows of logits, and of distributions made of them, that a request is counted with."""

_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")
"""How torch says it, where it raises a plain RuntimeError."""


def num_bytes(request: Request, length: int, target: Target) -> int:
    """The memory that a request takes when it is `length` tokens long, prompt and answer together.

    The target's state, the drafter's, and the logits of a round. A slot of the caller's is there
    already.
    """
    slot = 0 if request.slot is not None else target.slot_bytes(length)
    logits = 2 * SCORED_ROWS * target.info.vocab_size * torch.float32.itemsize
    return slot + session_bytes(request.drafter, length, target) + logits


def session_bytes(drafter: Any, length: int, target: Target) -> int:
    """The memory that a drafter's session takes: the states of its models and heads.

    A head's layers are counted as layers of the target. Texts and tokens are not counted.
    """
    traits = traits_of(drafter)
    if traits.combines:
        return sum(session_bytes(part, length, target) for part in drafter.drafters)
    if traits.needs_draft_head:
        layers = traits_of(drafter.head).num_cached_layers
        return target.slot_bytes(length) * layers // max(target.info.num_layers, 1)
    models: list[Target] = models_of(drafter)
    return sum(model.slot_bytes(min(length, model.info.max_length or length)) for model in models)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says that memory did not suffice.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("out of memory"))
    (True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    return any(sign in text for sign in _NO_MEMORY)
