"""From logits to the distribution that a token is drawn from.

Greedy decoding is a point mass, not a second code path.

The functions take one row `[V]` or many `[..., V]`, keep the dtype and never change their
argument. The order and each step are those of `transformers` (generation/logits_process.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from paceline.core.protocols import ConstraintSession
from paceline.core.sampling import SamplingParams
from paceline.errors import ModelError, NoTokenLeft
from paceline.sampling.candidates import Blocks, cool, truncated_law
from paceline.sampling.history import TokenCounts

Processor = Callable[[Sequence[int], Tensor], Tensor]
"""Takes the token ids so far (prompt, answer, draft path) and logits `[V]`; returns logits."""


def penalize(
    logits: Tensor,
    *,
    repetition: Tensor | None = None,
    repetition_penalty: float = 1.0,
    counts: tuple[Tensor, Tensor] | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> Tensor:
    """Penalise tokens that came before.

    Args:
        logits: `[V]`.
        repetition: the distinct ids in prompt and answer (`[m]`).
        repetition_penalty: divides positive, multiplies negative logits (Keskar et al.
            1909.05858, section 4.1).
        counts: the distinct ids in the answer and how often each occurred (`[m]`, `[m]`).
        presence_penalty, frequency_penalty: as in the OpenAI API.
    """
    logits = logits.clone()
    if repetition is not None and repetition_penalty != 1.0:
        seen = logits[repetition]
        logits[repetition] = torch.where(
            seen > 0, seen / repetition_penalty, seen * repetition_penalty
        )
    if counts is not None:
        ids, times = counts
        logits[ids] -= presence_penalty + frequency_penalty * times.to(logits.dtype)
    return logits


def restrict(
    logits: Tensor, *, allowed: Tensor | None = None, banned: Tensor | None = None
) -> Tensor:
    """Set the logits of tokens that must not be generated to -inf. Ids `[m]`, logits `[..., V]`."""
    if allowed is not None:
        kept = torch.full_like(logits, -torch.inf)
        kept[..., allowed] = logits[..., allowed]
        logits = kept
    if banned is not None:
        logits = logits.clone()
        logits[..., banned] = -torch.inf
    return logits


def keep_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Keep the k largest logits and those that tie with the last of them; 0 keeps all."""
    if not 0 < top_k < logits.shape[-1]:
        return logits
    last = logits.topk(top_k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < last, -torch.inf)


def keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most probable tokens whose mass reaches `top_p`; at least one.

    A token stays if the mass of those before it, in descending order, is below `top_p`. Ties are
    broken by token id (`transformers` leaves that to an unstable sort).
    """
    if top_p >= 1:
        return logits
    probs, ids = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probs.cumsum(dim=-1) - probs
    drop = torch.empty_like(before, dtype=torch.bool).scatter_(-1, ids, before >= top_p)
    return logits.masked_fill(drop, -torch.inf)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Keep tokens of at least `min_p` times the largest probability."""
    if min_p <= 0:
        return logits
    probs = logits.softmax(dim=-1)
    least = min_p * probs.max(dim=-1, keepdim=True).values
    return logits.masked_fill(probs < least, -torch.inf)


def point_mass(logits: Tensor) -> Tensor:
    """All mass on the largest logit (the first if several tie); one row `[V]`."""
    law = torch.zeros_like(logits)
    law[Blocks(logits).argmax()] = 1
    return law


def truncate(logits: Tensor, params: SamplingParams) -> Tensor:
    """Temperature, top-k, top-p, min-p, in this order; params.temperature must be above 0.

    The simple form, which a caller sees as scores; `candidates.truncated_law` computes their
    softmax faster.
    """
    logits = cool(logits, params.temperature)
    logits = keep_top_k(logits, params.top_k)
    logits = keep_top_p(logits, params.top_p)
    return keep_min_p(logits, params.min_p)


class SamplingWarp:
    """The sampling options of one sequence, and the history that its penalties look at.

    Args:
        params: the options.
        prompt: the tokens of the prompt.
        processors: further steps, run before the options in the order given. Under a rule that
            walks (all of `verifiers` that do not declare `looks_ahead`) each sees every position
            once, in order, with a history that is a prefix of the output.
        min_tokens: the tokens in `hold_back` are banned until the answer has this many tokens.
        hold_back: the tokens that would end the answer. Processors are not called for what
            follows one of them in a draft, which cannot come out: a grammar has no state there.
        constraint: what the answer may say; the last step, for drafts too.

    Example:
        >>> SamplingWarp(SamplingParams()).law(torch.tensor([1.0, 3.0, 2.0]))
        tensor([0., 1., 0.])
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        *,
        processors: Sequence[Processor] = (),
        min_tokens: int = 0,
        hold_back: Iterable[int] = (),
        constraint: ConstraintSession | None = None,
    ) -> None:
        self.params = params
        self._tokens = list(prompt)
        self._prompt_length = len(self._tokens)
        self._seen = TokenCounts(self._tokens if params.has_penalties else ())
        self._answer = TokenCounts()
        self._processors = tuple(processors)
        self._constraint = constraint
        self._whose = "the logits"
        self._min_tokens = min_tokens
        self._bias = (
            _ids(params.logit_bias),
            torch.tensor(list(params.logit_bias.values()), dtype=torch.float64),
        )
        self._allowed = None if params.allowed_token_ids is None else _ids(params.allowed_token_ids)
        self._banned = _ids(params.banned_token_ids)
        self._ends = frozenset(hold_back)
        self._banned_at_first = _ids(params.banned_token_ids.union(self._ends))

    @property
    def is_greedy(self) -> bool:
        """See `protocols.Warp.is_greedy`."""
        return self.params.is_greedy

    def for_drafts(self, processors: Sequence[Processor] = ()) -> SamplingWarp:
        """The same options and history with other processors: the warp that a drafter gets.

        A processor that counts its calls or keeps state must only see the text itself, so none runs
        on draft logits unless it is named here. That costs acceptance, never correctness.
        """
        drafting = copy.copy(self)
        drafting._processors = tuple(processors)
        drafting._whose = "the draft model's logits"
        return drafting

    def observe(self, tokens: Sequence[int]) -> None:
        """Take final tokens of the answer into the history."""
        self._tokens += tokens
        if self._constraint is not None:
            self._constraint.observe(tokens)
        if self.params.has_penalties:
            self._seen.add(tokens)
            self._answer.add(tokens)

    def law(self, logits: Tensor, path: Sequence[int] = ()) -> Tensor:
        """See `protocols.Warp.law`.

        Raises:
            NoTokenLeft: the options leave no token.
            ModelError: the logits hold NaN or +infinity.
        """
        return self.law_of(self.process(logits, path))

    def process(self, logits: Tensor, path: Sequence[int] = ()) -> Tensor:
        """All steps before temperature, in order.

        They are processors, penalties, bias, allowed and banned tokens, the constraint.

        Raises: see `law`.
        """
        scores = logits
        if self._processors and self._ends.isdisjoint(path):
            # A processor that writes in place, as many do, must not change the target's logits.
            scores = logits.clone()
            for processor in self._processors:
                scores = processor((*self._tokens, *path), scores)
        if self.params.has_penalties:
            scores = penalize(
                scores,
                repetition=self._seen.with_path(path)[0],
                repetition_penalty=self.params.repetition_penalty,
                counts=self._answer.with_path(path),
                presence_penalty=self.params.presence_penalty,
                frequency_penalty=self.params.frequency_penalty,
            )
        ids, bias = self._bias
        if len(ids):
            scores = scores.index_add(-1, ids, bias.to(scores.dtype))
        length = len(self._tokens) - self._prompt_length + len(path)
        banned = self._banned_at_first if length < self._min_tokens else self._banned
        if self._allowed is not None or len(banned):
            scores = restrict(scores, allowed=self._allowed, banned=banned)
        if self._constraint is not None and self._ends.isdisjoint(path):
            scores = scores.masked_fill(~self._constraint.allowed(path), -torch.inf)
        _check(float(scores.amax()), position=len(self._tokens) + len(path), whose=self._whose)
        return scores

    def law_of(self, processed: Tensor) -> Tensor:
        """The law `[V]` of what `process` returned."""
        return point_mass(processed) if self.is_greedy else truncated_law(processed, self.params)

    def scores_of(self, processed: Tensor) -> Tensor:
        """What `transformers` calls scores. Above temperature 0 their softmax is the law."""
        return processed if self.is_greedy else truncate(processed, self.params)


def _check(best: float, *, position: int, whose: str) -> None:
    """Refuse processed logits that define no distribution; `best` is the largest of them."""
    if best == -torch.inf:
        raise NoTokenLeft(
            f"the sampling options leave no token at position {position}: every one is banned; "
            "allow more tokens"
        )
    if best != best or best == torch.inf:
        raise ModelError(
            f"{whose} hold {'NaN' if best != best else 'infinity'} at position "
            f"{position}; the weights of the model, its dtype (float16 on a CPU, say) or a logits "
            "processor are at fault: load it in float32 or bfloat16"
        )


def _ids(tokens: Iterable[int]) -> Tensor:
    return torch.tensor(list(tokens), dtype=torch.long)
