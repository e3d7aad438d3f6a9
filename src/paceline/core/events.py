"""What the engine reports: the stream of events that every interface consumes; its JSON form."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from torch import Tensor


class FinishReason(StrEnum):
    """Why a sequence ended; `stop` and `length` are the terms of the OpenAI API."""

    STOP = "stop"
    """An end-of-sequence token, a stop token, a stop string or a stopping rule."""
    LENGTH = "length"
    """`max_tokens`, or the target's context length."""
    TIMEOUT = "timeout"
    """The request's own `timeout`. The answer is what was decided before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """The prompt of request `id` is in the cache, all but its last token.

    `seconds` is host time; a pass that was shared counts by its share of the rows.
    `num_cached_tokens` of the prompt were in the slot already, or taken from another sequence.
    """

    id: int
    num_prompt_tokens: int
    seconds: float
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRecord:
    """The draft of a round as it was decided: what `Round`, which counts, does not say.

    Args:
        tokens: the n drafted tokens, parents before children; empty in a plain round.
        parents: the index of each token's parent; -1 is the last token before the round.
        path: the accepted nodes from the first level down, before a stop or a limit cut the block.
        token: the token that the rule added: the bonus if the path ends where the draft does, else
            the correction.
        p: the target's probability of each token after its parent, sampling options included; None
            where the rule never asked for the distribution there, as after a refused token.
        q: the probability with which each token was drawn; None for one that was not drawn but
            chosen, a point mass. Of siblings drawn without replacement, that of the first draw.

    Example:
        >>> DraftRecord(tokens=(5,), parents=(-1,), path=(), token=7, p=(0.25,), q=(0.5,)).token
        7
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    token: int
    p: tuple[float | None, ...]
    q: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of request `id`: draft, score, verify, commit.

    Args:
        tokens: the tokens that became final: the accepted draft tokens, then the correction or
            bonus. Fewer if a stop or a limit fell within the block.
        num_draft_tokens: the drafted nodes that the target scored.
        num_accepted_tokens: how many of `tokens` were drafted.
        max_path_length: the length of the longest drafted path.
        draft_seconds, target_seconds, verify_seconds: host time of each part. The target's part
            is that of the whole pass, shared by all sequences in it.
        num_sequences: how many sequences had a draft, or nothing drafted, scored in the pass.
        num_rows: the rows of this sequence in the pass: the root, the nodes, the auxiliary rows.
        pass_rows: the rows of the whole pass, over all sequences.
        prefill_rows: how many of these were prompts of other sequences.
        drafter: the name of the drafter that made the draft.
        logits: the target's logits from which each of `tokens` was decided, `[len(tokens), V]`;
            None unless requested.
        scores: the same after processors and sampling options; None unless requested.
        logprobs: the log-probability of each of `tokens` under the target's own softmax; None
            unless requested.
        top_logprobs: for each of `tokens` the most probable ids and their log-probabilities.
        draft: the draft and its verdict, token by token; None unless requested.
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
    pass_rows: int = 1
    prefill_rows: int = 0
    drafter: str = ""
    logits: Tensor | None = None
    scores: Tensor | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None
    draft: DraftRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Request `id` has ended. No further event of that request follows."""

    id: int
    reason: FinishReason
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Request `id` has ended by an error that is its own. No event of that request follows.

    Args:
        error: what was raised: by its drafter, its rule, its controller, a processor or a stop
            rule, or by a pass that failed with this request alone in it.
        num_tokens: the answer's tokens that were emitted before.
    """

    id: int
    error: Exception
    num_tokens: int


Event = Prefilled | Round | Finished | Failed


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON values; tensors are left out.

    >>> to_json(Finished(id=0, reason=FinishReason.STOP, num_tokens=3))
    {'event': 'finished', 'id': 0, 'reason': 'stop', 'num_tokens': 3}
    """
    return {"event": type(event).__name__.lower(), **_fields(event)}


def _fields(record: Event | DraftRecord) -> dict[str, Any]:
    values = {item.name: getattr(record, item.name) for item in fields(record)}
    return {
        name: _plain(value)
        for name, value in values.items()
        if value is not None and not isinstance(value, Tensor)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, DraftRecord):
        return _fields(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, float) and not math.isfinite(value):
        return None  # the log-probability of an impossible token; JSON has no infinity
    return value.value if isinstance(value, StrEnum) else value
