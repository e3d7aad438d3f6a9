"""What chat, text completions and responses tell alike of a finished answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.generate.async_engine import Member
from paceline.generate.results import Generation
from paceline.server.metrics import of_request
from paceline.server.service import Service

_REASONS = {"timeout": "length"}
"""Our words for why an answer ended that OpenAI's interface does not have."""


def finish_reason(generation: Generation) -> str:
    """Why an answer ended, in OpenAI's words."""
    return _REASONS.get(generation.finish_reason, generation.finish_reason)


def usage(
    prompt_tokens: int,
    generations: Sequence[Generation],
    *,
    cached: int = 0,
    predicted: bool = False,
) -> dict[str, Any]:
    """The tokens of prompts and answers.

    Args:
        prompt_tokens: those of the prompts, each counted once.
        generations: the answers.
        cached: how many of the prompts' tokens had been read for others.
        predicted: whether their drafts came from the client's prediction. Accepted are the answer's
            tokens that were drafted from it, rejected the drafted ones that the model did not take.
    """
    answered = sum(len(generation.token_ids) for generation in generations)
    accepted = drafted = 0
    if predicted:
        accepted = sum(g.metrics.counts.num_accepted_tokens for g in generations)
        drafted = sum(g.metrics.num_draft_tokens for g in generations)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answered,
        "total_tokens": prompt_tokens + answered,
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
            "reasoning_tokens": 0,
        },
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def request_metrics(service: Service, members: Sequence[Member]) -> dict[str, Any]:
    """The key `metrics` of a response, if the server tells it and there is one answer."""
    if not service.settings.request_metrics or len(members) != 1:
        return {}
    return {"metrics": of_request(members[0])}


def usage_so_far(prompt_tokens: int, answered: int) -> dict[str, Any]:
    """The same within a stream."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answered,
        "total_tokens": prompt_tokens + answered,
    }


def shown_tokens(tokens: tuple[int, ...], ends: frozenset[int]) -> tuple[int, ...]:
    """The tokens of an answer, or of its last part, without one that ended it.

    >>> shown_tokens((5, 7, 2), frozenset({2}))
    (5, 7)
    """
    return tokens[:-1] if tokens and tokens[-1] in ends else tokens
