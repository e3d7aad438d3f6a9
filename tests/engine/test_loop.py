"""The loop: R0 with rigged drafters, limits, stops, failures, company, and exact laws.

Issue numbers are those of the public reports of the same kind of fault elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Budget, Draft, Scheme, Verdict
from paceline.core.events import Event, Finished, FinishReason, Prefilled, Round
from paceline.core.protocols import Drafter, Noise, Verifier, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Scores
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import Request, decode
from paceline.errors import ContextOverflow, ContractViolation, InvalidInput, ModelError
from paceline.sampling.noise import SeededNoise
from paceline.testing.table import TableSlot, TableTarget
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from tests.rigged import (
    Branches,
    Line,
    Run,
    assert_r0,
    flip,
    markov,
    oracle,
    ragged,
    run,
    wrong,
)

VOCAB = 12
PROMPT = (3, 1, 4)
ALL = {"keep_logits": True, "keep_scores": True, "logprobs": 3}


def target(seed: int = 0, max_length: int | None = None) -> TableTarget:
    return markov(VOCAB, seed, max_length=max_length)


# ---------------------------------------------------------------- greedy: R0


@pytest.mark.parametrize("prompt", [(5,), (3, 1), (3, 1, 4, 1, 5, 9, 2, 6)], ids=len)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_drafts_right_for_j_tokens_change_nothing(prompt: tuple[int, ...], k: int) -> None:
    """One-token prompts too (transformers #30042); a cache that keeps rejected drafts shows.

    `run` holds cached = committed - 1 after every round (mlx-lm #1109).
    """
    model = target()
    plain = run(model, prompt, max_tokens=18, **ALL)
    assert plain.reason is FinishReason.LENGTH
    text = (*prompt, *plain.tokens)
    for j in range(k + 1):
        found = run(model, prompt, flip(text, VOCAB, j), k=k, max_tokens=18, **ALL)
        assert_r0(found, plain)
        # Each round but the last yields the j right tokens and the correction.
        lengths = [len(r.tokens) for r in found.rounds]
        assert lengths[:-1] == [j + 1] * (len(lengths) - 1)
    found = run(model, prompt, oracle(text), k=k, max_tokens=18, **ALL)
    assert_r0(found, plain)
    assert len(found.rounds) == math.ceil(18 / (k + 1))


def test_a_different_length_of_acceptance_in_each_round_changes_nothing() -> None:
    model = target()
    plain = run(model, PROMPT, max_tokens=40, **ALL)
    text = (*PROMPT, *plain.tokens)
    found = run(model, PROMPT, ragged(text, VOCAB, [3, 0, 5, 1, 1, 4]), k=5, max_tokens=40, **ALL)
    assert_r0(found, plain)
    assert [len(r.tokens) for r in found.rounds[:4]] == [4, 1, 6, 2]


@pytest.mark.parametrize("seed", range(3))
def test_random_prompts_and_all_draft_lengths(seed: int) -> None:
    """ngram and a draft model, on prompts that repeat and prompts that do not.

    (vLLM #41758, mlx-lm #1470.)
    """
    model = target(seed)
    generator = torch.Generator().manual_seed(seed)
    prompts = [tuple(torch.randint(VOCAB, (6,), generator=generator).tolist()), (4, 4, 4, 4)]
    for prompt in prompts:
        plain = run(model, prompt, max_tokens=20)
        for k in range(9):
            for drafter in (NgramDrafter(), ModelDrafter(target(seed + 1))):
                assert_r0(run(model, prompt, drafter, k=k, max_tokens=20), plain)


@pytest.mark.parametrize("j", [0, 1, 2, 4])
def test_a_tree_of_two_branches_changes_nothing(j: int) -> None:
    """Greedy and sampled, under the rule that takes trees (EAGLE #50)."""
    model = target()
    rule = CouplingVerifier()
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        options: dict[str, Any] = {"max_tokens": 20, "params": params, **ALL}
        plain = run(model, PROMPT, verifier=rule, seed=2, **options)
        drafter = Branches((*PROMPT, *plain.tokens), VOCAB, j)
        found = run(model, PROMPT, drafter, k=4, verifier=rule, seed=2, **options)
        assert_r0(found, plain)
        assert [r.num_accepted_tokens for r in found.rounds][:-1] == [j] * (len(found.rounds) - 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_coupled_runs_are_the_same_whatever_is_drafted(temperature: float) -> None:
    model = target()
    options: dict[str, Any] = {
        "max_tokens": 20,
        "params": SamplingParams(temperature=temperature, top_p=0.9),
        "verifier": CouplingVerifier(),
        **ALL,
    }
    for seed in range(3):
        plain = run(model, PROMPT, seed=seed, **options)
        text = (*PROMPT, *plain.tokens)
        drafters: list[Drafter] = [
            oracle(text),
            wrong(text, VOCAB),
            flip(text, VOCAB, 2),
            NgramDrafter(),
            ModelDrafter(target(9)),
        ]
        for drafter in drafters:
            assert_r0(run(model, PROMPT, drafter, seed=seed, **options), plain)
        same_model = run(model, PROMPT, ModelDrafter(model), seed=seed, **options)
        assert all(r.num_accepted_tokens == r.num_draft_tokens for r in same_model.rounds)


# ---------------------------------------------------------------- lengths and ends


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("max_tokens", range(6))
def test_the_answer_has_the_length_that_was_asked_for(max_tokens: int, k: int) -> None:
    """Whatever is accepted, to the token; a limit of 0 yields no round.

    (transformers #46993, ik_llama.cpp #2358.)
    """
    model = target()
    text = (*PROMPT, *run(model, PROMPT, max_tokens=12).tokens)
    for drafter in (oracle(text), wrong(text, VOCAB), flip(text, VOCAB, 1), NgramDrafter()):
        found = run(model, PROMPT, drafter, k=k, max_tokens=max_tokens)
        assert found.tokens == text[3 : 3 + max_tokens]
        assert found.reason is FinishReason.LENGTH
        # One token of each round is never drafted, so no pass goes beyond the limit.
        assert all(r.num_draft_tokens < max_tokens for r in found.rounds)
        assert bool(found.rounds) == bool(max_tokens)


@pytest.mark.parametrize("i", range(16))
def test_an_end_token_at_any_offset_of_a_block_ends_the_answer(i: int) -> None:
    """Token i of the plain answer is declared the end (transformers #47912)."""
    model = target(3)
    plain = run(model, PROMPT, max_tokens=16)
    text = (*PROMPT, *plain.tokens)
    end = plain.tokens[i]
    expected = plain.tokens[: plain.tokens.index(end) + 1]
    options: dict[str, Any] = {"max_tokens": 16, "stop_token_ids": frozenset({end}), **ALL}
    stopped = run(model, PROMPT, **options)
    assert stopped.tokens == expected
    assert stopped.reason is FinishReason.STOP
    for drafter in (oracle(text), flip(text, VOCAB, 3), wrong(text, VOCAB)):
        assert_r0(run(model, PROMPT, drafter, k=8, **options), stopped)


def test_the_first_of_several_end_tokens_ends_the_answer() -> None:
    model = target(3)
    plain = run(model, PROMPT, max_tokens=16)
    text = (*PROMPT, *plain.tokens)
    for first, second in itertools.combinations(sorted(set(plain.tokens)), 2):
        ends = frozenset({first, second, 10**6})  # one beyond the vocabulary does no harm
        found = run(model, PROMPT, oracle(text), k=8, max_tokens=16, stop_token_ids=ends)
        cut = min(plain.tokens.index(first), plain.tokens.index(second))
        assert found.tokens == plain.tokens[: cut + 1]
        assert found.reason is FinishReason.STOP


def test_an_end_token_where_the_limit_is_counts_as_a_stop() -> None:
    model = target(3)
    plain = run(model, PROMPT, max_tokens=16)
    last = plain.tokens.index(plain.tokens[4])
    found = run(model, PROMPT, max_tokens=last + 1, stop_token_ids=frozenset({plain.tokens[4]}))
    assert found.reason is FinishReason.STOP


def test_without_a_limit_of_its_own_the_answer_goes_on_to_an_end_token() -> None:
    """An unlimited length crashed on an empty draft elsewhere (mlx-lm #1591)."""
    model = target(3, max_length=64)
    plain = run(model, PROMPT)
    assert len(PROMPT) + len(plain.tokens) == 64
    assert plain.reason is FinishReason.LENGTH
    text = (*PROMPT, *plain.tokens)
    assert_r0(run(model, PROMPT, oracle(text), k=8), plain)
    end = frozenset({plain.tokens[7]})
    assert run(model, PROMPT, oracle(text), k=8, stop_token_ids=end).reason is FinishReason.STOP


def test_a_minimum_length_holds_end_tokens_and_stop_rules_back() -> None:
    model = target(3)
    plain = run(model, PROMPT, max_tokens=16)
    end = frozenset({plain.tokens[1], 10**6})
    for minimum in (1, 2, 5, 9):
        options: dict[str, Any] = {"stop_token_ids": end, "min_tokens": minimum, "max_tokens": 16}
        found = run(model, PROMPT, **options)
        assert not end & set(found.tokens[: minimum - 1])
        text = (*PROMPT, *found.tokens, *plain.tokens)
        for drafter in (oracle(text), oracle((*PROMPT, *plain.tokens)), flip(text, VOCAB, 2)):
            assert_r0(run(model, PROMPT, drafter, k=6, **options), found)

        def rule(answer: Sequence[int], above: int) -> int | None:
            return above + 1

        ruled = run(model, PROMPT, stop_rules=[rule], min_tokens=minimum, max_tokens=16)
        assert ruled.tokens == plain.tokens[:minimum]
        assert ruled.reason is FinishReason.STOP


# ---------------------------------------------------------------- stop rules


def contains(pattern: Sequence[int]) -> Callable[[Sequence[int], int], int | None]:
    """Ends the answer with the first occurrence of a pattern that ends above `above`."""
    n = len(pattern)

    def rule(answer: Sequence[int], above: int) -> int | None:
        ends = range(max(above + 1, n), len(answer) + 1)
        return next((e for e in ends if list(answer[e - n : e]) == list(pattern)), None)

    return rule


@pytest.mark.parametrize("end", range(2, 17))
def test_a_pattern_that_ends_at_any_offset_of_a_block_ends_the_answer(end: int) -> None:
    """Two tokens, the block borders anywhere (transformers #48039)."""
    model = target(4)
    plain = run(model, PROMPT, max_tokens=20)
    text = (*PROMPT, *plain.tokens)
    rule = contains(plain.tokens[end - 2 : end])
    stopped = run(model, PROMPT, max_tokens=20, stop_rules=[rule], **ALL)
    assert len(stopped.tokens) <= end
    assert stopped.tokens[-2:] == plain.tokens[end - 2 : end]
    assert stopped.reason is FinishReason.STOP
    for k in (1, 3, 15):
        found = run(model, PROMPT, oracle(text), k=k, max_tokens=20, stop_rules=[rule], **ALL)
        assert_r0(found, stopped)
        assert sum(len(r.logprobs or ()) for r in found.rounds) == len(stopped.tokens)


def test_of_several_stops_the_earliest_counts() -> None:
    model = target(4)
    plain = run(model, PROMPT, max_tokens=20)
    text = (*PROMPT, *plain.tokens)
    rules = [contains(plain.tokens[8:10]), contains(plain.tokens[4:6]), lambda answer, above: None]
    found = run(model, PROMPT, oracle(text), k=15, max_tokens=20, stop_rules=rules)
    first = min(
        next(e for e in range(2, 21) if plain.tokens[e - 2 : e] == pattern)
        for pattern in (plain.tokens[8:10], plain.tokens[4:6])
    )
    assert found.tokens == plain.tokens[:first]


@pytest.mark.parametrize("cut", [0, -1, 99])
def test_a_stop_rule_that_cuts_elsewhere_is_refused(cut: int) -> None:
    with pytest.raises(ContractViolation, match="stop rule"):
        run(target(), PROMPT, max_tokens=5, stop_rules=[lambda answer, above: cut])


# ---------------------------------------------------------------- limits of the context


@pytest.mark.parametrize("k", [1, 5, 8, 40])
def test_the_context_is_used_to_the_last_token_and_no_further(k: int) -> None:
    """The target would fail on a position beyond its limit (exllamav2 #274)."""

    class Bounded(TableTarget):
        def score(self, work: Sequence[Work]) -> list[Scores]:
            for item in work:
                new = len(item.tokens) + item.draft.max_path_length
                assert len(item.slot.tokens) + new <= 32
            return super().score(work)

    inner = target(5)
    model = Bounded(inner._law, vocab_size=VOCAB, max_length=32)
    plain = run(model, PROMPT)
    assert len(PROMPT) + len(plain.tokens) == 32
    text = (*PROMPT, *plain.tokens, 0, 0, 0, 0)
    for drafter in (oracle(text), wrong(text, VOCAB), NgramDrafter()):
        assert_r0(run(model, PROMPT, drafter, k=k), plain)
        assert_r0(run(model, PROMPT, drafter, k=k, max_tokens=1000), plain)
    full = tuple(range(31 % VOCAB)) + (1,) * (31 - 31 % VOCAB)
    assert len(run(model, full).tokens) == 1


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    model = target(max_length=8)
    for length in (8, 9):
        with pytest.raises(ContextOverflow, match=f"{length} tokens and table takes 8"):
            run(model, (1,) * length)


def test_no_more_is_drafted_than_one_pass_takes() -> None:
    model = target()
    model.info = replace(model.info, max_draft_tokens=3)
    plain = run(model, PROMPT, max_tokens=20)
    found = run(model, PROMPT, oracle((*PROMPT, *plain.tokens)), k=8, max_tokens=20)
    assert_r0(found, plain)
    assert max(r.num_draft_tokens for r in found.rounds) == 3


@pytest.mark.parametrize("prompt_length", [3, 14, 15, 16, 17, 20])
def test_a_draft_model_with_a_shorter_context_stops_drafting(
    prompt_length: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Decoding goes on plainly, and one warning says so (vLLM #57941)."""
    model, draft_model = target(max_length=64), target(max_length=16)
    prompt = (3, 1, 4, 1, 5) * 4
    prompt = prompt[:prompt_length]
    found = run(model, prompt, ModelDrafter(draft_model), k=4)
    assert_r0(found, run(model, prompt))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    length = prompt_length
    for round_ in found.rounds:
        # The last draft token is not fed, so the draft may end one beyond the draft's context.
        assert length + round_.num_draft_tokens <= max(17, length)
        length += len(round_.tokens)
    assert any(r.num_draft_tokens for r in found.rounds) == (prompt_length <= 16)


# ---------------------------------------------------------------- prompts


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_prompts_about_as_long_as_an_ngram(length: int) -> None:
    """1, n - 1, n and more tokens; 0 is refused."""
    model = target()
    for prompt in ((2,) * length, tuple(range(length))):
        plain = run(model, prompt, max_tokens=12)
        for match in ("newest", "oldest"):
            drafter = NgramDrafter(max_ngram=3, match=match)
            assert_r0(run(model, prompt, drafter, k=4, max_tokens=12), plain)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ((), "prompt is empty"),
        ((0, VOCAB), "outside the vocabulary"),
        ((-1,), "outside the vocabulary"),
        ((1.5,), "sequence of token ids"),
        ("ab", "sequence of token ids"),
        (None, "sequence of token ids"),
    ],
)
def test_a_prompt_that_is_no_prompt_is_refused(prompt: Any, message: str) -> None:
    request = Request(
        prompt=prompt,
        drafter=NoDrafter(),
        controller=FixedController(),
        verifier=TokenVerifier(),
        noise=SeededNoise(0),
        max_tokens=3,
    )
    with pytest.raises(InvalidInput, match=message):
        list(decode(target(), [request]))


def test_a_prompt_may_be_a_tensor() -> None:
    plain = run(target(), PROMPT, max_tokens=8)
    found = run(target(), torch.tensor(PROMPT), NgramDrafter(), max_tokens=8)  # type: ignore[arg-type]
    assert found.tokens == plain.tokens
    assert all(type(token) is int for token in found.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2.0}, "max_tokens"),
        ({"max_tokens": None}, "give max_tokens"),
        ({"max_tokens": 4, "min_tokens": -1}, "min_tokens"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens must be at most max_tokens"),
        ({"max_tokens": 4, "logprobs": -1}, "logprobs"),
        ({"max_tokens": 4, "logprobs": VOCAB + 1}, "logprobs"),
        ({"max_tokens": 4, "params": SamplingParams(logit_bias={VOCAB: 1.0})}, "ids from 0 to"),
        (
            {"max_tokens": 4, "params": SamplingParams(banned_token_ids=frozenset({-1}))},
            "ids from 0 to",
        ),
        (
            {"max_tokens": 4, "params": SamplingParams(allowed_token_ids=frozenset({99}))},
            "ids from 0 to",
        ),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_before_the_first_event(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        next(iter(_decode(target(), NoDrafter(), **options)))


def _decode(
    model: TableTarget, drafter: Drafter, *, verifier: Verifier | None = None, **options: Any
) -> Iterator[Event]:
    request = Request(
        **{
            "prompt": PROMPT,
            "drafter": drafter,
            "controller": FixedController(4),
            "verifier": verifier or TokenVerifier(),
            "noise": SeededNoise(0),
            **options,
        }
    )
    return decode(model, [request])


# ---------------------------------------------------------------- failures and early ends


class Failing(TableTarget):
    """Fails in the n-th call of one of its methods, and counts what is open."""

    def __init__(self, method: str, at: int) -> None:
        inner = target()
        super().__init__(inner._law, vocab_size=VOCAB)
        self.method, self.left = method, at
        self.opened = self.closed = 0
        self.scored = False

    def _maybe(self, method: str) -> None:
        if method == self.method:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("planted")

    def open(self, capacity: int) -> TableSlot:
        self.opened += 1
        return super().open(capacity)

    def close(self, slot: TableSlot) -> None:
        self.closed += 1
        super().close(slot)

    def score(self, work: Sequence[Work]) -> list[Scores]:
        self.scored = any(item.logits for item in work)
        if self.scored:
            self._maybe("score")
        if not all(item.logits for item in work):
            self._maybe("prefill")
        return super().score(work)

    def commit(self, slot: TableSlot, path: Sequence[int]) -> None:
        if self.scored:
            self._maybe("commit")
        super().commit(slot, path)


class FailingVerifier(TokenVerifier):
    calls: ClassVar[list[int]] = []
    at: ClassVar[int] = 0

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        self.calls.append(position)
        if len(self.calls) > self.at:
            raise RuntimeError("planted")
        return super().verify(draft, p, noise, position)


def _follow(events: Iterator[Event], told: list[int]) -> None:
    for event in events:
        if isinstance(event, Round):
            told += event.tokens


def _cached_is_what_was_told(model: TableTarget, slot: TableSlot, told: list[int]) -> None:
    """The cache of a caller's slot is the text that the caller knows, all but the last token."""
    known = [*PROMPT, *told]
    assert slot.tokens == known[: len(slot.tokens)]
    assert model.length(slot) == len(known) - 1
    # And so it can be used again.
    again = run(model, known, slot=slot, max_tokens=6)
    assert again.tokens == run(model, known, max_tokens=6).tokens


@pytest.mark.parametrize("drafter", [NgramDrafter(), NoDrafter()], ids=["ngram", "none"])
@pytest.mark.parametrize("stop_after", range(8))
def test_closing_the_generator_after_any_event_leaves_the_cache_at_what_was_told(
    drafter: Drafter, stop_after: int
) -> None:
    """Elsewhere an abort cut a stale number of tokens (mlx-lm #1528)."""
    model = Failing("", 0)
    slot = model.open(64)
    told: list[int] = []
    events = _decode(model, drafter, slot=slot, max_tokens=12)
    for event in itertools.islice(events, stop_after):
        if isinstance(event, Round):
            told += event.tokens
    events.close()  # type: ignore[attr-defined]
    if stop_after:
        _cached_is_what_was_told(model, slot, told)
    assert model.closed == 0  # the slot is the caller's


@pytest.mark.parametrize("where", ["score", "commit", "verify", "propose", "observe"])
@pytest.mark.parametrize("at", range(4))
def test_a_failure_in_any_round_leaves_the_cache_at_what_was_told(where: str, at: int) -> None:
    """Injected in each part of each round; the session is closed once, and the slot not."""
    model = Failing(where, at)
    slot = model.open(64)
    plain = run(target(), PROMPT, max_tokens=20)
    line = flip((*PROMPT, *plain.tokens), VOCAB, 1)
    drafter: Any = line
    if where in ("propose", "observe"):
        drafter = _FailingDrafter(line, where, at)
    FailingVerifier.calls.clear()
    FailingVerifier.at = at
    rule = FailingVerifier() if where == "verify" else TokenVerifier()
    told: list[int] = []
    with pytest.raises(RuntimeError, match="planted"):
        _follow(_decode(model, drafter, verifier=rule, slot=slot, max_tokens=20), told)
    assert told == list(plain.tokens[: len(told)])
    assert line.log.opened == line.log.closed == 1
    model.method = ""
    if where == "observe" and at == 0:
        return  # the prompt could not be observed: nothing was told, nothing is known
    _cached_is_what_was_told(model, slot, told)


class _FailingDrafter:
    name = "failing"
    needs: frozenset[str] = frozenset()

    def __init__(self, inner: Line, where: str, at: int) -> None:
        self.inner, self.where, self.left = inner, where, at

    def open(self, target: Any, capacity: int) -> _FailingDrafter:
        self.session = self.inner.open(target, capacity)
        return self

    def _maybe(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("planted")

    def observe(self, committed: Any) -> None:
        self._maybe("observe")
        self.session.observe(committed)

    def propose(self, budget: Budget, warp: Any, noise: Noise) -> Draft:
        self._maybe("propose")
        return self.session.propose(budget, warp, noise)

    def close(self) -> None:
        self.session.close()


@pytest.mark.parametrize("where", ["prefill", "score", "commit"])
def test_slots_and_sessions_opened_here_are_closed_once_whatever_happens(where: str) -> None:
    for at in range(3):  # once for each prompt, or in three rounds
        model = Failing(where, at)
        lines = [Line(lambda text, _, k: [0] * k) for _ in range(3)]
        requests = [_request(line, max_tokens=8) for line in lines]
        with pytest.raises(RuntimeError, match="planted"):
            list(decode(model, requests, prefill_rows=1))
        assert model.opened == model.closed == 3
        assert [(line.log.opened, line.log.closed) for line in lines] == [(1, 1)] * 3


def test_one_close_that_fails_does_not_keep_the_others_open() -> None:
    class Stubborn(Line):
        def open(self, target: Any, capacity: int) -> Any:
            session = super().open(target, capacity)
            session.close = self._refuse  # type: ignore[method-assign]
            return session

        def _refuse(self) -> None:
            raise RuntimeError("will not close")

    def rule(text: tuple[int, ...], number: int, k: int) -> list[int]:
        return [0] * k

    model = Failing("", 0)
    lines = [Line(rule), Stubborn(rule), Line(rule)]
    events = decode(model, [_request(line, max_tokens=8) for line in lines])
    next(events)
    with pytest.raises(RuntimeError, match="will not close"):
        events.close()  # type: ignore[attr-defined]
    assert model.opened == model.closed == 3
    assert [line.log.closed for line in lines] == [1, 0, 1]


def _request(drafter: Drafter, **options: Any) -> Request:
    defaults: dict[str, Any] = {
        "prompt": PROMPT,
        "controller": FixedController(3),
        "verifier": TokenVerifier(),
        "noise": SeededNoise(0),
    }
    return Request(drafter=drafter, **{**defaults, **options})


def test_a_request_that_is_refused_is_refused_before_anything_is_opened() -> None:
    model = Failing("", 0)
    line = Line(lambda text, _, k: [0] * k)
    hungry = Line(lambda text, _, k: [0] * k)
    with pytest.raises(InvalidInput, match="prompt is empty"):
        list(
            decode(
                model,
                [_request(line, max_tokens=3), _request(hungry, prompt=(), max_tokens=3)],
            )
        )
    assert model.opened == model.closed == line.log.opened == 0


def test_a_drafter_that_cannot_open_closes_what_was_opened_before_it() -> None:
    class Refusing(Line):
        def open(self, target: Any, capacity: int) -> Any:
            raise InvalidInput("cannot draft for this target")

    model = Failing("", 0)
    line = Line(lambda text, _, k: [0] * k)
    requests = [_request(line, max_tokens=3), _request(Refusing(line.rule), max_tokens=3)]
    with pytest.raises(InvalidInput, match="cannot draft for this target"):
        next(decode(model, requests))
    assert (model.opened, model.closed) == (2, 2)
    assert line.log.opened == line.log.closed == 1


# ---------------------------------------------------------------- reuse of a slot


def test_three_calls_and_a_second_turn_in_one_slot_are_as_if_fresh() -> None:
    """The same prompt again, a prompt that shares a part, a prompt that goes on.

    (Text Generation Inference #2711, TensorRT-LLM #2263.)
    """
    model = target()
    slot = model.open(128)
    fresh = run(model, PROMPT, NgramDrafter(), max_tokens=10)
    for _ in range(3):
        again = run(model, PROMPT, NgramDrafter(), slot=slot, max_tokens=10)
        assert_r0(again, fresh)
        model.rollback(slot, len(PROMPT))  # the caller says what is still a prefix
    chat = (*PROMPT, *fresh.tokens, 7, 7)
    model.rollback(slot, 1)
    run(model, PROMPT, NgramDrafter(), slot=slot, max_tokens=10)
    turn = run(model, chat, NgramDrafter(), slot=slot, max_tokens=10, **ALL)
    assert_r0(turn, run(model, chat, max_tokens=10, **ALL))


def test_what_a_slot_holds_is_not_fed_again() -> None:
    fed: list[list[int]] = []

    class Recording(TableTarget):
        def score(self, work: Sequence[Work]) -> list[Scores]:
            fed.extend(list(item.tokens) for item in work if not item.logits)
            return super().score(work)

    model = Recording(target()._law, vocab_size=VOCAB)
    slot = model.open(64)
    first = run(model, PROMPT, slot=slot, max_tokens=4)
    run(model, (*PROMPT, *first.tokens, 8, 9), slot=slot, max_tokens=2)
    assert fed == [[3, 1], [first.tokens[-1], 8]]


def test_settings_do_not_change_from_call_to_call() -> None:
    """Elsewhere a draft length outlived its call (transformers #28759)."""
    drafter, controller = NgramDrafter(), FixedController(3)
    params = SamplingParams(temperature=0.7, logit_bias={1: 2.0})
    before = repr((drafter, controller, params))
    results = []
    for k in (3, 5, 3):
        controller = FixedController(k)
        results.append(run(target(), PROMPT, drafter, k=k, max_tokens=9, params=params))
    assert repr((drafter, FixedController(3), params)) == before
    assert results[0].tokens == results[2].tokens


# ---------------------------------------------------------------- in company


def _by_index(events: Iterator[Event], count: int) -> list[Run]:
    runs = [Run() for _ in range(count)]
    for event in events:
        found = runs[event.id]
        assert found.reason is None, "an event after the last"
        found.events.append(event)
        if isinstance(event, Round):
            found.rounds.append(event)
            found.tokens += event.tokens
        elif isinstance(event, Finished):
            found.reason = event.reason
    return runs


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", [TokenVerifier(), CouplingVerifier()], ids=lambda r: r.name)
def test_in_company_each_answer_is_as_alone(temperature: float, rule: Verifier) -> None:
    """Other prompts, drafters, draft lengths, limits and ends beside it.

    (vLLM #6038 and #58080, EAGLE #250, llama.cpp #28286.)
    """
    model = target(6)
    long = run(model, PROMPT, max_tokens=30)
    text = (*PROMPT, *long.tokens)
    params = SamplingParams(temperature=temperature, top_p=0.95, frequency_penalty=0.1)
    rows: list[dict[str, Any]] = [
        {"prompt": PROMPT, "drafter": oracle(text), "max_tokens": 30},
        {"prompt": (1,), "drafter": ModelDrafter(target(7)), "max_tokens": 17},
        {"prompt": (*range(12), 1, 2, 3), "drafter": NgramDrafter(), "max_tokens": 25},
        {"prompt": PROMPT, "drafter": NoDrafter(), "max_tokens": 4},
        {"prompt": PROMPT, "drafter": flip(text, VOCAB, 1), "max_tokens": 0},
        {
            "prompt": PROMPT,
            "drafter": ragged(text, VOCAB, [0, 3, 1]),
            "max_tokens": 30,
            "stop_token_ids": frozenset({text[10]}),
        },
    ]

    def requests() -> list[Request]:
        return [
            _request(
                controller=FixedController(k + 1),
                verifier=rule,
                noise=SeededNoise(k),
                params=params,
                **row,
            )
            for k, row in enumerate(rows)
        ]

    together = _by_index(decode(model, requests()), len(rows))
    for index, request in enumerate(requests()):
        (alone,) = _by_index(decode(model, [request]), 1)
        assert together[index].tokens == alone.tokens
        assert together[index].reason == alone.reason
        assert [
            (r.tokens, r.num_draft_tokens, r.num_accepted_tokens) for r in together[index].rounds
        ] == [(r.tokens, r.num_draft_tokens, r.num_accepted_tokens) for r in alone.rounds]
    assert max(r.num_sequences for run_ in together for r in run_.rounds) == 5


def test_one_pass_serves_all_and_the_finished_drop_out() -> None:
    widths: list[int] = []

    class Counting(TableTarget):
        def score(self, work: Sequence[Work]) -> list[Scores]:
            if scored := sum(item.logits for item in work):
                widths.append(scored)
            return super().score(work)

    model = Counting(target()._law, vocab_size=VOCAB)
    requests = [_request(NoDrafter(), max_tokens=n) for n in (1, 3, 0, 2)]
    events = list(decode(model, requests))
    assert widths == [3, 2, 1]
    kinds = [type(event) for event in events]
    assert kinds.count(Prefilled) == kinds.count(Finished) == 4
    assert list(decode(model, [])) == []


def test_the_same_seed_gives_the_same_text_and_other_seeds_others() -> None:
    """Elsewhere the seed of a request was ignored (vLLM #6038)."""
    model = target(6)
    params = SamplingParams(temperature=2.0)
    options: dict[str, Any] = {"max_tokens": 12, "params": params, "k": 3}
    texts = [run(model, PROMPT, NgramDrafter(), seed=seed, **options).tokens for seed in range(10)]
    again = [run(model, PROMPT, NgramDrafter(), seed=seed, **options).tokens for seed in range(10)]
    assert texts == again
    assert len(set(texts)) >= 9
    streams = {
        run(model, PROMPT, noise=SeededNoise(0, stream), **options).tokens for stream in range(5)
    }
    assert len(streams) == 5


# ---------------------------------------------------------------- sampling options


@pytest.mark.parametrize("frequency", [2.0, -2.0])
@pytest.mark.parametrize("repetition", [1.0, 1.3])
def test_penalties_see_earlier_draft_tokens(frequency: float, repetition: float) -> None:
    """With and without drafts the same, and the penalty does something (vLLM #18902)."""
    model = target(8)
    prompt = (5, 5, 5, 2)
    params = SamplingParams(frequency_penalty=frequency, repetition_penalty=repetition)
    plain = run(model, prompt, max_tokens=24, params=params, **ALL)
    free = run(model, prompt, max_tokens=24)
    assert plain.tokens != free.tokens
    texts = ((*prompt, *plain.tokens), (*prompt, *free.tokens))
    drafters = [oracle(texts[0]), oracle(texts[1]), flip(texts[0], VOCAB, 2), NgramDrafter()]
    for drafter in drafters:
        found = run(model, prompt, drafter, k=6, max_tokens=24, params=params, **ALL)
        assert_r0(found, plain)


def test_a_banned_token_never_comes_out_even_where_it_is_drafted() -> None:
    """The greedy token is banned; an oracle of the free text proposes it everywhere.

    (vLLM #42744, SGLang #10617.)
    """
    model = target(8)
    free = run(model, PROMPT, max_tokens=20)
    text = (*PROMPT, *free.tokens)
    for token in free.tokens[:4]:
        for params in (
            SamplingParams(banned_token_ids=frozenset({token})),
            SamplingParams(logit_bias={token: -100.0}),
            SamplingParams(allowed_token_ids=frozenset(range(VOCAB)) - {token}),
        ):
            plain = run(model, PROMPT, max_tokens=20, params=params)
            found = run(model, PROMPT, oracle(text), k=8, max_tokens=20, params=params)
            assert token not in found.tokens
            assert_r0(found, plain)


@pytest.mark.parametrize("j", [0, 1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_sees_each_position_once_with_the_true_prefix(
    j: int, temperature: float
) -> None:
    """And so a processor with a state of its own works (SGLang #26330, mlx-lm #1175)."""
    model = target(8)
    seen: list[tuple[int, ...]] = []
    calls = [0]

    def stateful(history: Sequence[int], scores: Tensor) -> Tensor:
        seen.append(tuple(history))
        calls[0] += 1
        scores[calls[0] % VOCAB] += 3.0  # in place, and by the number of the call
        return scores

    params = SamplingParams(temperature=temperature)
    options: dict[str, Any] = {"max_tokens": 20, "params": params, "keep_logits": True}
    plain = run(model, PROMPT, processors=[stateful], **options)
    seen.clear()
    calls[0] = 0
    text = (*PROMPT, *plain.tokens)
    found = run(
        model,
        PROMPT,
        flip(text, VOCAB, j),
        k=8,
        processors=[stateful],
        verifier=CouplingVerifier() if temperature else None,
        **options,
    )
    if not temperature:
        assert_r0(found, plain)
    answer = (*PROMPT, *found.tokens)
    assert seen == [answer[:n] for n in range(len(PROMPT), len(answer))]


def test_logits_are_the_targets_own_and_scores_are_after_the_options() -> None:
    """Log-probabilities too: of the target's own law, one for each token delivered.

    (llama.cpp #27972.)
    """
    model = target(8)
    params = SamplingParams(temperature=0.5, top_k=3)
    found = run(model, PROMPT, NgramDrafter(), max_tokens=12, params=params, **ALL)
    text = (*PROMPT, *found.tokens)
    at = 0
    for round_ in found.rounds:
        assert round_.logits is not None
        assert round_.scores is not None
        assert round_.logprobs is not None
        assert round_.top_logprobs is not None
        assert len(round_.tokens) == len(round_.logits) == len(round_.scores)
        for row, token in enumerate(round_.tokens):
            law = model._law(text[: len(PROMPT) + at])
            torch.testing.assert_close(round_.logits[row], law.log())
            kept = round_.scores[row] > -math.inf
            assert int(kept.sum()) == 3
            torch.testing.assert_close(round_.scores[row][kept], law.log()[kept] / 0.5)
            assert round_.logprobs[row] == pytest.approx(float(law[token].log()), abs=1e-9)
            best = law.log().topk(3)
            assert [i for i, _ in round_.top_logprobs[row]] == best.indices.tolist()
            assert [v for _, v in round_.top_logprobs[row]] == pytest.approx(
                best.values.tolist(), abs=1e-9
            )
            at += 1


def test_logprobs_of_0_alternatives_and_none() -> None:
    found = run(target(), PROMPT, max_tokens=4, logprobs=0)
    assert [r.top_logprobs for r in found.rounds] == [((),)] * 4
    assert len(found.logprobs) == 4
    silent = run(target(), PROMPT, max_tokens=4).rounds[0]
    assert (silent.logits, silent.scores, silent.logprobs, silent.top_logprobs) == (None,) * 4


def test_a_model_that_gives_nan_is_refused() -> None:
    model = TableTarget(lambda tokens: torch.full((3,), math.nan), vocab_size=3)
    with pytest.raises(ModelError, match="NaN at position 3"):
        run(model, (0, 1, 2), max_tokens=3)


# ---------------------------------------------------------------- contracts


class Returning:
    """A drafter that returns one draft whatever is asked."""

    name = "returning"
    needs: frozenset[str] = frozenset()

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def open(self, target: Any, capacity: int) -> Returning:
        return self

    def observe(self, committed: Any) -> None:
        pass

    def propose(self, budget: Budget, warp: Any, noise: Noise) -> Draft:
        return self.draft

    def close(self) -> None:
        pass


UNIFORM = torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float64)


@pytest.mark.parametrize(
    ("draft", "error", "message"),
    [
        (Draft((0,) * 5), ContractViolation, "path of 5 tokens; the budget was 4"),
        (Draft((0, VOCAB)), ContractViolation, f"proposed token {VOCAB}"),
        (Draft((-1,)), ContractViolation, "proposed token -1"),
        (Draft((0,), probs=(UNIFORM[:-1],)), ContractViolation, "law of shape"),
        (Draft((0,), probs=(torch.eye(VOCAB)[1],)), ContractViolation, "actually drawn from"),
        (Draft((0, 1), parents=(-1, -1)), InvalidInput, "a tree"),
        (Draft((0,), scheme=Scheme.IID), InvalidInput, "scheme 'iid'"),
    ],
)
def test_a_draft_that_breaks_the_contract_is_refused(
    draft: Draft, error: type[Exception], message: str
) -> None:
    """A token outside the vocabulary is refused and not indexed (transformers #45307)."""
    with pytest.raises(error, match=message):
        list(_decode(target(), Returning(draft), max_tokens=9))


@pytest.mark.parametrize(
    "law",
    [
        [0.1, 0.8, -0.9],
        [0.1, 1.0, -0.1],
        [0.1, 1.0, -9.0],
        [float("nan"), 0.6, 0.4],
        [0.6, 1.8, 0.6],
        [0.1, 0.2, 0.1],
        [float("inf"), 0.5, 0.5],
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_law_that_is_no_distribution_is_refused(law: list[float], temperature: float) -> None:
    """It would bend the output, greedy output too, under a rule that says that it is exact."""
    drafter = Returning(Draft((1,), probs=(torch.tensor(law),)))
    small = TableTarget(torch.tensor([0.5, 0.3, 0.2]))
    params = SamplingParams(temperature=temperature)
    with pytest.raises(ContractViolation, match="gave token 1 a law that is not a distribution"):
        list(_decode(small, drafter, prompt=(0,), max_tokens=2, params=params))


def test_a_distribution_may_round() -> None:
    law = torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float32) * (1 + 1e-5)
    events = list(_decode(target(), Returning(Draft((1,), probs=(law,))), max_tokens=2))
    assert events[-1].num_tokens == 2


def test_a_tree_may_have_more_nodes_than_the_budget_but_no_longer_path() -> None:
    draft = Draft((0, 1, 2, 3, 4, 5), parents=(-1, -1, -1, 0, 1, 2), scheme=Scheme.CHOSEN)
    events = _decode(
        target(),
        Returning(draft),
        verifier=CouplingVerifier(),
        controller=FixedController(2),
        max_tokens=9,
    )
    _, first = itertools.islice(events, 2)
    assert isinstance(first, Round)
    assert first.num_draft_tokens == 6
    assert first.max_path_length == 2


def test_a_drafter_that_needs_what_the_target_lacks_is_refused() -> None:
    class Hungry(NoDrafter):
        needs: ClassVar[frozenset[str]] = frozenset({"hidden states", "embedding"})

    with pytest.raises(InvalidInput, match="needs embedding, hidden states of the target"):
        list(_decode(target(), Hungry(), max_tokens=3))


@pytest.mark.parametrize(
    "change",
    [
        lambda scores: scores[:-1],
        lambda scores: [*scores, scores[0]],
        lambda scores: [Scores(scores[0].logits[:-1])],
        lambda scores: [Scores(scores[0].logits[:, :-1])],
    ],
    ids=["too few", "too many", "a row short", "a token short"],
)
def test_a_target_that_returns_other_shapes_is_refused(
    change: Callable[[list[Scores]], list[Scores]],
) -> None:
    class Wrong(TableTarget):
        def score(self, work: Sequence[Work]) -> list[Scores]:
            return change(super().score(work))

    model = Wrong(target()._law, vocab_size=VOCAB)
    with pytest.raises(ContractViolation, match="logits of shape"):
        run(model, PROMPT, NgramDrafter(), max_tokens=3)


@pytest.mark.parametrize("path", [(1,), (0, 2), (5,), (-1,), (1, 0)])
def test_a_rule_that_accepts_no_path_is_refused(path: tuple[int, ...]) -> None:
    class Wrong(TokenVerifier):
        def verify(
            self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
        ) -> Verdict:
            return Verdict(path, 0)

    drafter = Line(lambda text, _, k: [0] * k)
    with pytest.raises(ContractViolation, match="no path from the root"):
        list(_decode(target(), drafter, verifier=Wrong(), max_tokens=9))


def test_scores_are_there_for_a_rule_that_never_looks_at_the_target() -> None:
    class Blind(TokenVerifier):
        exact: ClassVar[bool] = False

        def verify(
            self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
        ) -> Verdict:
            return Verdict(tuple(range(len(draft))), 0)

    drafter = Line(lambda text, _, k: [1] * k)
    found = run(target(), PROMPT, drafter, verifier=Blind(), max_tokens=5, **ALL)
    assert found.tokens == (1, 1, 1, 1, 0)
    assert found.rounds[0].scores is not None
    assert found.rounds[0].scores.shape == (5, VOCAB)


def test_what_a_session_is_told() -> None:
    """The prompt once, then each round's tokens once, the last ones too."""
    model = target()
    plain = run(model, PROMPT, max_tokens=10)
    line = flip((*PROMPT, *plain.tokens), VOCAB, 2)
    found = run(model, PROMPT, line, k=4, max_tokens=10)
    rounds = [r.tokens for r in found.rounds]
    assert line.log.observed == [PROMPT, *rounds]
    assert (line.log.opened, line.log.closed) == (1, 1)
    # A round that has room for one token only asks for no draft.
    assert len(line.log.proposed) == sum(r.num_draft_tokens > 0 for r in found.rounds)


def test_a_draft_length_of_0_is_plain_decoding() -> None:
    model = target()
    line = Line(lambda text, _, k: [0] * k)
    found = run(model, PROMPT, line, k=0, max_tokens=6)
    assert_r0(found, run(model, PROMPT, max_tokens=6))
    assert line.log.proposed == []
    assert {len(r.tokens) for r in found.rounds} == {1}
