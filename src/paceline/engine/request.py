"""A request to decode one sequence, and how long the sequence can become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline import checks
from paceline.checks import require_int, require_seconds
from paceline.core.protocols import Constraint, Controller, Drafter, Noise, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import TargetInfo
from paceline.errors import ContextOverflow, InvalidInput
from paceline.sampling.warp import Processor

StopRule = Callable[[Sequence[int], int], int | None]
"""Takes the answer's tokens and the number of leading ones that cannot be its last; called once a
round. Returns the length to cut the answer to, greater than that number, or None if the answer goes
on."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to decode.

    Args:
        prompt: token ids, at least one.
        drafter, controller: how to draft, and how far.
        verifier: the rule that accepts or rejects.
        noise: this sequence's own source of randomness.
        params: how a token is drawn from the target's logits.
        max_tokens: the longest answer; None goes on to the end of the context.
        min_tokens: the answer cannot end before this length.
        stop_token_ids: the answer ends with, and includes, the first of these.
        stop_rules: further stopping rules.
        processors: further steps from logits to the distribution (see
            `sampling.warp.SamplingWarp`).
        draft_processors: the processors that may run on draft logits too: stateless functions of
            tokens and logits only.
        constraint: what the answer may say, such as a grammar; None for anything.
        logprobs: report log-probabilities, and those of the `logprobs` most probable tokens.
        keep_logits, keep_scores: report the logits and the processed scores of each token.
        keep_draft: report each round's draft, with what the rule saw and decided of it.
        timeout: the most seconds from `Engine.add` to the end, time in the queue included. The
            answer then ends between two rounds with what it has, for the reason `timeout`; None has
            no limit.
        priority: of the requests that wait, those with the lowest number come first; among equals,
            those that came first.
        slot: a slot owned by the caller whose cached tokens are a prefix of the prompt; it is left
            open. None opens one and closes it at the end.
    """

    prompt: Sequence[int]
    drafter: Drafter
    controller: Controller
    verifier: Verifier
    noise: Noise
    params: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    stop_rules: Sequence[StopRule] = ()
    processors: Sequence[Processor] = ()
    draft_processors: Sequence[Processor] = ()
    constraint: Constraint | None = None
    logprobs: int | None = None
    keep_logits: bool = False
    keep_scores: bool = False
    keep_draft: bool = False
    timeout: float | None = None
    priority: int = 0
    slot: Any = None


def token_ids(prompt: Sequence[int]) -> list[int]:
    """The prompt as plain integers; tensors and arrays are accepted too."""
    return list(checks.token_ids("the prompt must be a sequence of token ids", prompt))


def length_limit(request: Request, prompt: Sequence[int], info: TargetInfo) -> int:
    """The maximum length, prompt and answer together; raises if the request is invalid."""
    length = len(prompt)
    if not length:
        raise InvalidInput(
            "the prompt is empty; give at least one token (a start token, for example)"
        )
    if not all(0 <= token < info.vocab_size for token in prompt):
        raise InvalidInput(
            f"the prompt holds token ids outside the vocabulary of {info.name} "
            f"(0 to {info.vocab_size - 1}); was it encoded with another tokenizer?"
        )
    require_int("min_tokens", request.min_tokens, low=0)
    require_int("priority", request.priority, low=-(2**63), high=2**63 - 1)
    if request.timeout is not None:
        require_seconds("timeout", request.timeout)
    if request.logprobs is not None:
        require_int("logprobs", request.logprobs, low=0, high=info.vocab_size)
    if info.max_length is not None and length >= info.max_length:
        raise ContextOverflow(
            f"the prompt has {length} tokens and {info.name} takes {info.max_length}, prompt and "
            "answer together; shorten the prompt"
        )
    limits = [info.max_length] if info.max_length is not None else []
    if request.max_tokens is not None:
        require_int("max_tokens", request.max_tokens, low=0)
        if request.min_tokens > request.max_tokens:
            raise InvalidInput(
                f"min_tokens must be at most max_tokens, which is {request.max_tokens}; it is "
                f"{request.min_tokens}"
            )
        limits.append(length + request.max_tokens)
    if not limits:
        raise InvalidInput(f"{info.name} has no context limit: give max_tokens")
    params = request.params
    named = {*params.logit_bias, *params.banned_token_ids, *(params.allowed_token_ids or ())}
    if outside := sorted(t for t in named if not 0 <= t < info.vocab_size):
        raise InvalidInput(
            f"logit_bias, allowed_token_ids and banned_token_ids take ids from 0 to "
            f"{info.vocab_size - 1}; got {outside[0]}"
        )
    return min(limits)
