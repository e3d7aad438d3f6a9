"""What the engine tells: the one stream that every way in consumes, and its JSON form."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from torch import Tensor


class FinishReason(StrEnum):
    """Why a sequence ended, in the words of the OpenAI API."""

    STOP = "stop"
    """An end-of-sequence token, a stop token, a stop string or a stopping rule."""
    LENGTH = "length"
    """`max_tokens`, or the context of the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """The prompt of request `id` is in the cache, all but its last token."""

    id: int
    num_prompt_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of request `id`: draft, score, verify, commit.

    Args:
        tokens: what became final: the accepted draft tokens, then the correction or bonus.
            Shorter where a stop or a limit fell inside the block.
        num_draft_tokens: the drafted nodes that the target scored.
        num_accepted_tokens: how many of `tokens` were drafted.
        max_path_length: the length of the longest drafted path.
        draft_seconds, target_seconds, verify_seconds: host time of each part. The target's part
            is that of the whole pass, shared by all sequences in it.
        num_sequences: how many sequences shared the pass.
        num_rows: the rows of this sequence in it: the root, the nodes, the auxiliary rows.
        drafter: which one made the draft.
        logits: the target's logits behind each of `tokens`, `[len(tokens), V]`; None unless
            asked for.
        scores: the same after processors and sampling options; None unless asked for.
        logprobs: the log-probability of each of `tokens` under the target's own softmax; None
            unless asked for.
        top_logprobs: for each of `tokens` the most probable ids and their log-probabilities.
    """

    id: int
    number: int
    tokens: tuple[int, ...]
    num_draft_tokens: int
    num_accepted_tokens: int
    max_path_length: int
    draft_seconds: float
    target_seconds: float
    verify_seconds: float
    num_sequences: int = 1
    num_rows: int = 1
    drafter: str = ""
    logits: Tensor | None = None
    scores: Tensor | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Sequence `index` has ended. No event of that request follows."""

    id: int
    reason: FinishReason
    num_tokens: int


Event = Prefilled | Round | Finished


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON values; tensors are left out.

    >>> to_json(Finished(id=0, reason=FinishReason.STOP, num_tokens=3))
    {'event': 'finished', 'id': 0, 'reason': 'stop', 'num_tokens': 3}
    """
    values = {item.name: getattr(event, item.name) for item in fields(event)}
    kept = {
        name: _plain(value)
        for name, value in values.items()
        if value is not None and not isinstance(value, Tensor)
    }
    return {"event": type(event).__name__.lower(), **kept}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # the log-probability of a token that cannot come; JSON has no infinity
    return value.value if isinstance(value, StrEnum) else value
