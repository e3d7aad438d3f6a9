"""The loop: draft, score, verify, commit. Contracts in, events out; no plug-in has a name here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from paceline.errors import ContextOverflow, ContractViolation, InvalidInput
from paceline.events import Event, Finished, FinishReason, Prefilled, Round
from paceline.math.noise import CoupledNoise, Noise
from paceline.math.warp import Processor, SamplingWarp
from paceline.protocols import Controller, Drafter, Target, Verifier, Work
from paceline.types import (
    ROOT,
    Committed,
    Draft,
    SamplingParams,
    Scores,
    TargetInfo,
    Verdict,
    require_int,
)

StopRule = Callable[[Sequence[int], int], int | None]
"""Takes the answer's tokens and how many of them cannot be its last; called once a round. Returns
the length to cut the answer to, above that number, or None where the answer goes on."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to decode.

    Args:
        prompt: token ids, at least one.
        drafter, controller: how to draft, and how far.
        noise: the source of chance, this sequence's own.
        params: how a token is drawn from the target's logits.
        max_tokens: the longest answer; None goes on to the end of the context.
        min_tokens: before this length the answer cannot end.
        stop_token_ids: the answer ends with, and includes, the first of these.
        stop_rules: further reasons to end.
        processors: further steps from logits to law (see `math.warp.SamplingWarp`).
        logprobs: report log-probabilities, and those of this many of the most probable tokens.
        keep_logits, keep_scores: report the logits and the processed scores of each token.
        slot: a slot of the caller's whose cached tokens are a prefix of the prompt; it is left
            open. None opens one and closes it.
    """

    prompt: Sequence[int]
    drafter: Drafter
    controller: Controller
    noise: Noise
    params: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    stop_rules: Sequence[StopRule] = ()
    processors: Sequence[Processor] = ()
    logprobs: int | None = None
    keep_logits: bool = False
    keep_scores: bool = False
    slot: Any = None


def decode(target: Target, verifier: Verifier, requests: Sequence[Request]) -> Generator[Event]:
    """Decode the requests together, one target pass a round for all of them.

    Yields `Prefilled` for each sequence, then its `Round`s, then `Finished`. Closing the
    generator, or an exception anywhere, closes the slots and sessions that were opened here and
    leaves a slot of the caller's at the tokens that were told: all but the last are cached.

    Raises:
        InvalidInput: a request that cannot be served; raised before the first event.
        ContractViolation: a plug-in broke its contract.
    """
    with ExitStack() as stack:
        sequences = []
        for index, request in enumerate(requests):
            sequences.append(_Sequence(index, request, target, verifier))
            stack.callback(sequences[-1].close)
        for sequence in sequences:
            yield sequence.prefill()
            if sequence.reason is not None:
                yield sequence.finish()
        while live := [sequence for sequence in sequences if sequence.reason is None]:
            work = [Work(s.slot, s.tokens[-1], s.propose()) for s in live]
            start = perf_counter()
            all_scores = target.score(work)
            seconds = perf_counter() - start
            _check_scores(all_scores, work, target.info)
            for sequence, (_, _, draft), scores in zip(live, work, all_scores, strict=True):
                yield sequence.advance(draft, scores, seconds, len(live))
                if sequence.reason is not None:
                    yield sequence.finish()


class _Sequence:
    """The state of one request: its tokens, its sessions, its place in the cache."""

    def __init__(self, index: int, request: Request, target: Target, verifier: Verifier) -> None:
        self.index, self.request, self.target, self.verifier = index, request, target, verifier
        self.tokens = _token_ids(request.prompt)
        self.num_prompt_tokens = len(self.tokens)
        self.limit = _limit(request, self.tokens, target.info)
        self.reason: FinishReason | None = None
        self.rounds = 0
        self.told: int | None = None
        self.draft_noise = CoupledNoise(request.noise) if verifier.couples else request.noise
        self.warp = SamplingWarp(
            request.params,
            self.tokens,
            processors=request.processors,
            min_tokens=request.min_tokens,
            # Models name end tokens beyond their own vocabulary; these cannot come out anyway.
            hold_back=[t for t in request.stop_token_ids if 0 <= t < target.info.vocab_size],
        )
        if missing := request.drafter.needs - target.info.gives:
            raise InvalidInput(
                f"drafter {request.drafter.name!r} needs {', '.join(sorted(missing))} of the "
                f"target, which {target.info.name} does not give; choose another drafter"
            )
        self.controller = request.controller.open()
        self.slot = target.open(self.limit) if request.slot is None else request.slot
        try:
            self.session = request.drafter.open(target.info, self.limit)
        except BaseException:
            self._close_slot()
            raise
        self.closed = False

    def prefill(self) -> Prefilled:
        """Bring all of the prompt but its last token into the cache."""
        start = perf_counter()
        prompt = self.tokens
        self.told = len(prompt)
        cached = min(self.target.length(self.slot), len(prompt) - 1)
        self.target.rollback(self.slot, cached)
        if new := prompt[cached:-1]:
            self.target.prefill(self.slot, new)
        self.session.observe(Committed(tuple(prompt)))
        if len(self.tokens) == self.limit:
            self.reason = FinishReason.LENGTH
        return Prefilled(
            index=self.index, num_prompt_tokens=len(prompt), seconds=perf_counter() - start
        )

    def propose(self) -> Draft:
        """Ask for a draft that leaves room for the token that every round adds."""
        start = perf_counter()
        budget = self.controller.budget()
        room = self.limit - len(self.tokens) - 1
        if (most := self.target.info.max_draft_tokens) is not None:
            room = min(room, most)
        budget = budget._replace(num_draft_tokens=min(budget.num_draft_tokens, room))
        draft = Draft()
        if budget.num_draft_tokens > 0:
            draft = self.session.propose(budget, self.warp, self.draft_noise)
            _check(draft, budget.num_draft_tokens, self.request.drafter, self.verifier, self.target)
        self.draft_seconds = perf_counter() - start
        return draft

    def advance(self, draft: Draft, scores: Scores, target_seconds: float, shared: int) -> Round:
        """Verify the draft, cut the block where the answer ends, commit it, tell it."""
        start = perf_counter()
        laws = _Laws(self.warp, scores.logits, draft, self.request.keep_scores)
        verdict = self.verifier.verify(draft, laws, self.request.noise, len(self.tokens))
        _check_verdict(verdict, draft, self.verifier)
        block = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        kept, self.reason = self._cut(block)
        verify_seconds = perf_counter() - start

        # The last kept token is the next root and so stays out of the cache.
        self.target.commit(self.slot, verdict.path[: kept - 1])
        committed = tuple(block[:kept])
        self.tokens += committed
        self.warp.observe(committed)
        self.controller.observe(draft, verdict)
        start = perf_counter()
        if self.reason is None:
            self.session.observe(Committed(committed))
        observe_seconds = perf_counter() - start
        self.rounds += 1
        event = Round(
            index=self.index,
            number=self.rounds,
            tokens=committed,
            num_draft_tokens=len(draft),
            num_accepted_tokens=min(kept, len(verdict.path)),
            max_path_length=draft.max_path_length,
            draft_seconds=self.draft_seconds + observe_seconds,
            target_seconds=target_seconds,
            verify_seconds=verify_seconds,
            num_sequences=shared,
            **self._diagnostics(scores.logits, laws, (ROOT, *verdict.path)[:kept], committed),
        )
        self.told = len(self.tokens)
        return event

    def finish(self) -> Finished:
        """Close the sequence and say why."""
        assert self.reason is not None
        self.close()
        answer = len(self.tokens) - self.num_prompt_tokens
        return Finished(index=self.index, reason=self.reason, num_tokens=answer)

    def close(self) -> None:
        """Free what was opened. Safe to call twice."""
        if not self.closed:
            self.closed = True
            try:
                self.session.close()
            finally:
                self._close_slot()

    def _close_slot(self) -> None:
        if self.request.slot is None:
            self.target.close(self.slot)
        elif self.told is not None and self.target.length(self.slot) >= self.told:
            # A round failed after its commit: nobody has heard of those tokens.
            self.target.rollback(self.slot, self.told - 1)

    def _cut(self, block: list[int]) -> tuple[int, FinishReason | None]:
        """How many tokens of the block to keep, and whether the answer ends with the last."""
        request, old = self.request, len(self.tokens) - self.num_prompt_tokens
        ends = [old + i + 1 for i, token in enumerate(block) if token in request.stop_token_ids]
        if request.stop_rules and old + len(block) >= request.min_tokens:
            answer = [*self.tokens[self.num_prompt_tokens :], *block]
            above = max(old, request.min_tokens - 1)
            cuts = [rule(answer, above) for rule in request.stop_rules]
            ends += [cut for cut in cuts if cut is not None]
            if wrong := [cut for cut in ends if not old < cut <= len(answer)]:
                raise ContractViolation(
                    f"a stop rule cut the answer to {wrong[0]} tokens; it had to be above {above} "
                    f"and at most {len(answer)}"
                )
        if ends:
            return min(ends) - old, FinishReason.STOP
        full = len(self.tokens) + len(block) == self.limit
        return len(block), FinishReason.LENGTH if full else None

    def _diagnostics(
        self, logits: Tensor, laws: _Laws, nodes: Sequence[int], tokens: Sequence[int]
    ) -> dict[str, Any]:
        """What the request wants to know beyond the tokens; `nodes` are the tokens' parents."""
        request, rows = self.request, [node + 1 for node in nodes]
        found: dict[str, Any] = {}
        if request.keep_logits:
            found["logits"] = logits[rows]
        if request.keep_scores:
            found["scores"] = laws.scores(nodes)
        if request.logprobs is not None:
            logprobs = logits[rows].log_softmax(dim=-1)
            found["logprobs"] = tuple(
                float(row[token]) for row, token in zip(logprobs, tokens, strict=True)
            )
            values, ids = logprobs.topk(request.logprobs, dim=-1)
            found["top_logprobs"] = tuple(
                tuple(zip(row_ids, row, strict=True))
                for row_ids, row in zip(ids.tolist(), values.tolist(), strict=True)
            )
        return found


class _Laws:
    """The target's law behind each node, computed when a rule first asks for it."""

    def __init__(self, warp: SamplingWarp, logits: Tensor, draft: Draft, keep: bool) -> None:
        self._warp, self._logits, self._draft, self._keep = warp, logits, draft, keep
        self._laws: dict[int, Tensor] = {}
        self._processed: dict[int, Tensor] = {}

    def __call__(self, node: int) -> Tensor:
        if node not in self._laws:
            path = [self._draft.tokens[i] for i in self._draft.path(node)]
            processed = self._warp.process(self._logits[node + 1], path)
            if self._keep:
                self._processed[node] = processed
            self._laws[node] = self._warp.law_of(processed)
        return self._laws[node]

    def scores(self, nodes: Sequence[int]) -> Tensor:
        """The processed scores behind the nodes, `[len(nodes), V]`."""
        for node in nodes:
            self(node)  # a rule need not have asked for it
        return torch.stack([self._warp.scores_of(self._processed[node]) for node in nodes])


def _token_ids(prompt: Sequence[int]) -> list[int]:
    """The prompt as plain integers, from a tensor or an array too."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise InvalidInput(
            f"the prompt must be a sequence of token ids; it is {prompt!r:.80}"
        ) from None


def _limit(request: Request, prompt: Sequence[int], info: TargetInfo) -> int:
    """The longest the sequence can become, prompt and answer together; raises if it cannot be."""
    length = len(prompt)
    if not length:
        raise InvalidInput("the prompt is empty; give at least one token (a start token, say)")
    if not all(0 <= token < info.vocab_size for token in prompt):
        raise InvalidInput(
            f"the prompt holds token ids outside the vocabulary of {info.name} "
            f"(0 to {info.vocab_size - 1}); was it encoded with another tokenizer?"
        )
    require_int("min_tokens", request.min_tokens, low=0)
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


def _check(draft: Draft, budget: int, drafter: Drafter, verifier: Verifier, target: Target) -> None:
    """Hold a draft against the contract before it costs a target pass."""
    if draft.scheme not in verifier.schemes or (verifier.needs_chain and not draft.is_chain):
        raise InvalidInput(
            f"the rule {verifier.name!r} does not take what drafter {drafter.name!r} drafts "
            f"(scheme {draft.scheme.value!r}{'' if draft.is_chain else ', a tree'}); choose a rule "
            f"that does"
        )
    vocab = target.info.vocab_size
    if bad := [token for token in draft.tokens if not 0 <= token < vocab]:
        raise ContractViolation(
            f"drafter {drafter.name!r} proposed token {bad[0]}; the vocabulary of the target is "
            f"0 to {vocab - 1}"
        )
    if draft.max_path_length > budget:
        raise ContractViolation(
            f"drafter {drafter.name!r} proposed a path of {draft.max_path_length} tokens; the "
            f"budget was {budget}"
        )
    if bad_laws := [law for law in draft.probs or () if law is not None and law.shape != (vocab,)]:
        raise ContractViolation(
            f"drafter {drafter.name!r} gave a law of shape {tuple(bad_laws[0].shape)}; it must be "
            f"({vocab},), the vocabulary of the target"
        )


def _check_scores(all_scores: list[Scores], work: Sequence[Work], info: TargetInfo) -> None:
    """Hold what a target pass returned against the contract."""
    expected = [(len(item.draft) + 1, info.vocab_size) for item in work]
    came = [tuple(scores.logits.shape) for scores in all_scores]
    if came != expected:
        raise ContractViolation(
            f"target {info.name} returned logits of shape {came} for the pass; expected {expected}"
        )


def _check_verdict(verdict: Verdict, draft: Draft, verifier: Verifier) -> None:
    """Hold a verdict against the contract: its path must start at the root and skip nothing."""
    if not draft.is_path(verdict.path):
        raise ContractViolation(
            f"the rule {verifier.name!r} accepted the nodes {verdict.path}, which are no path from "
            "the root"
        )


__all__ = ["Request", "StopRule", "decode"]
