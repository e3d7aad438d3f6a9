"""The results of a call: the pieces of an answer as they are ready, and the finished answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.core.protocols import Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import TargetInfo
from paceline.engine.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that one token added, and whether the token was drafted and accepted.

    Text may be held back until it is known not to be part of a stop string or an incomplete
    character. It then comes with a later token, or at the end in a piece that names the last token
    again.
    """

    text: str
    token_id: int
    drafted: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one round added to the text.

    Args:
        pieces: the text, a token at a time.
        tokens: the tokens of the round; none if text that was held back comes at the end.
        logprobs, top_logprobs: one for each of these tokens, if requested.
    """

    pieces: tuple[Piece, ...]
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None

    @property
    def text(self) -> str:
        """The new text."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished answer.

    Args:
        text: the text, without what ended it.
        token_ids: the tokens, including the one that ended it.
        finish_reason: "stop" or "length".
        num_prompt_tokens: the length of the prompt.
        seed: the seed used. It gives the same answer again, alone or in a batch, if the draft
            lengths do not depend on timings or the rule couples (as it does by default if a seed is
            given).
        drafter, verifier, exact: the drafter, the verification rule, and whether that rule is
            exact.
        promise: what is guaranteed about its tokens, see `promise_of`.
        metrics: the counts and times of the rounds.
        decode_seconds: from the end of the prefill (in a batch: of the last one) to the last
            token, without the time that the consumer of a stream takes.
        draft: what was chosen for the draft model, in one line; None without one.
        load_seconds: the time that loading the model took, once.
        sampling: the options that tokens were drawn with, including those of the checkpoint.
        logprobs, top_logprobs: one per token, if requested.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    num_prompt_tokens: int
    seed: int
    drafter: str
    verifier: str
    exact: bool
    promise: str
    metrics: Metrics
    decode_seconds: float
    load_seconds: float = 0.0
    draft: str | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def usage(self) -> dict[str, int]:
        """The number of tokens of prompt and answer, in the terms of the OpenAI API."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": len(self.token_ids),
        }

    @property
    def tokens_per_second(self) -> float | None:
        """Answer tokens per second of decoding, without prefill; None without any."""
        return len(self.token_ids) / self.decode_seconds if self.token_ids else None

    @property
    def spec(self) -> dict[str, Any]:
        """The speculation metrics, with vLLM's field names; rates are None without a draft."""
        return {
            "drafter": self.drafter,
            "verifier": self.verifier,
            "exact": self.exact,
            "promise": self.promise,
            "draft": self.draft,
            **self.metrics.spec(),
        }

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        metrics = self.metrics
        found: dict[str, Any] = {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "seed": self.seed,
            "sampling": dict(self.sampling),
            "spec": self.spec,
            "time": {
                "load_s": self.load_seconds,
                "prefill_s": metrics.prefill_s,
                "decode_s": self.decode_seconds,
                "draft_s": metrics.draft_s,
                "target_s": metrics.target_s,
                "verify_s": metrics.verify_s,
            },
            "tokens_per_second": self.tokens_per_second,
        }
        if self.logprobs is not None:
            found["logprobs"] = list(self.logprobs)
            found["top_logprobs"] = [
                [list(pair) for pair in row] for row in self.top_logprobs or ()
            ]
        return found


def sampling_of(params: SamplingParams) -> dict[str, float]:
    """The numeric sampling options, by name.

    >>> sampling_of(SamplingParams(temperature=0.7, top_p=0.8))["top_p"]
    0.8
    """
    names = ("temperature", "top_k", "top_p", "min_p")
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    return {name: getattr(params, name) for name in (*names, *penalties)}


def promise_of(verifier: Verifier, params: SamplingParams, target: TargetInfo) -> str:
    """What is guaranteed about the tokens whatever is drafted; each word includes those before it.

    - "none": the rule is lossy.
    - "law": each token is a sample from the target's distribution (its law) under the user's
      sampling options.
    - "law, path": they are the tokens of plain decoding with the same seed, provided that passes of
      different shapes round the same way. A rule that couples guarantees that, and so does every
      exact rule at temperature 0, where each distribution is a point mass.
    - "law, path, bits": the same whatever the rounding, since the target is in invariant mode.

    Example:
        >>> from paceline.verifiers.token import TokenVerifier
        >>> target = TargetInfo("toy", vocab_size=8)
        >>> promise_of(TokenVerifier(), SamplingParams(temperature=1.0), target)
        'law'
        >>> promise_of(TokenVerifier(), SamplingParams(), target)
        'law, path'
    """
    if not verifier.exact:
        return "none"
    if not (verifier.couples or params.is_greedy):
        return "law"
    return "law, path, bits" if target.invariant else "law, path"
