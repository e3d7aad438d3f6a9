"""Faults that other systems had: rules that start in mid-block, state that outlives its call, cost.

Issue numbers are those of the public reports.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.events import Round
from paceline.core.protocols import Drafter, Target, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Scores
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import Request, decode
from paceline.sampling.noise import SeededNoise
from paceline.testing.table import TableTarget
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from tests.rigged import assert_r0, flip, markov, oracle, ragged, run, wrong
from tests.tiny_models import VOCAB, build, lean_target, tiny, tokens_of

# ---------------------------------------------------------------- a grammar switched on

SIZE = 12
PROMPT = (3, 1, 4)
COMMA, CLOSE = 4, 5


class ListOfDigits:
    """Behind token X at some place of the answer: digit, comma, digit, ..., close; then free again.

    Args:
        switch: X.
        place: the first place where X counts.
        digits: what counts as digits.
    """

    def __init__(self, switch: int, place: int, digits: Sequence[int]) -> None:
        self.switch, self.place, self.digits = switch, place, digits

    def allowed(self, answer: Sequence[int]) -> Sequence[int] | None:
        """What may come behind an answer; None is anything."""
        behind = list(answer)[self.place :]
        if self.switch not in behind:
            return None
        inside = behind[behind.index(self.switch) + 1 :]
        if CLOSE in inside:
            return None
        return (COMMA, CLOSE) if len(inside) % 2 else self.digits

    def __call__(self, history: Sequence[int], scores: Tensor) -> Tensor:
        allowed = self.allowed(list(history)[len(PROMPT) :])
        if allowed is None:
            return scores
        kept = torch.full_like(scores, -torch.inf)
        kept[list(allowed)] = scores[list(allowed)]
        return kept


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("offset", range(9))
def test_a_grammar_may_be_switched_on_at_any_offset_of_a_block(
    offset: int, temperature: float
) -> None:
    """Drafts that break it come in the same block (vLLM #36138, #44993 and #27969).

    The rule couples where tokens are drawn, so that the answer is one and the same.
    """
    model = markov(SIZE, 8 + offset)
    options: dict[str, Any] = {
        "max_tokens": 24,
        "params": SamplingParams(temperature=temperature),
        "verifier": CouplingVerifier() if temperature else TokenVerifier(),
        "keep_logits": True,
    }
    free = run(model, PROMPT, **options)
    # What would come behind the switch is no digit, so that the grammar changes the answer there.
    switch, then = free.tokens[offset : offset + 2]
    digits = [token for token in range(SIZE) if token not in (COMMA, CLOSE, then)][:4]
    grammar = ListOfDigits(switch, offset, digits)
    guided = {**options, "processors": [grammar]}
    plain = run(model, PROMPT, **guided)
    assert plain.tokens[: offset + 1] == free.tokens[: offset + 1]
    assert plain.tokens[offset + 1] in digits
    for n, token in enumerate(plain.tokens):
        allowed = grammar.allowed(plain.tokens[:n])
        assert allowed is None or token in allowed
    text, unguided = (*PROMPT, *plain.tokens), (*PROMPT, *free.tokens)
    drafters: list[Drafter] = [
        oracle(text),
        oracle(unguided),  # right up to the switch, and then it breaks the grammar
        wrong(text, SIZE),
        ragged(text, SIZE, [2, 0, 5]),
        NgramDrafter(),
        ModelDrafter(markov(SIZE, 3)),
    ]
    for drafter in drafters:
        for k in (3, 8):
            assert_r0(run(model, PROMPT, drafter, k=k, **guided), plain)
            told = {**guided, "draft_processors": [grammar]}
            assert_r0(run(model, PROMPT, drafter, k=k, **told), plain)


# ---------------------------------------------------------------- one slot, again and again


@pytest.mark.parametrize("kind", ["flip", "ngram", "model"])
@pytest.mark.parametrize("num_rounds", range(7))
def test_what_is_cancelled_and_sent_again_is_as_a_fresh_run(kind: str, num_rounds: int) -> None:
    """The same slot, cut to what the caller still wants of it, after every round.

    Elsewhere drafts outlived their request, and a stale count met a reused id (vLLM #30916,
    #31944 and #39012).
    """
    target, prompt = lean_target(tiny("llama")), tokens_of(6) * 2
    options: dict[str, Any] = {"max_tokens": 14, "keep_logits": True}
    fresh = run(target, prompt, **options)
    text = (*prompt, *fresh.tokens)
    drafters: dict[str, Drafter] = {
        "flip": flip(text, VOCAB, 1),
        "ngram": NgramDrafter(),
        "model": ModelDrafter(target),
    }
    drafter = drafters[kind]
    slot = target.open(64)
    told = cancelled(target, slot, prompt, drafter, num_rounds)
    assert told == fresh.tokens[: len(told)]
    # Sent again as it was, then cancelled once more and carried on, then another prompt.
    target.rollback(slot, len(prompt) - 1)
    assert_r0(run(target, prompt, drafter, k=3, slot=slot, **options), fresh, atol=1e-4)
    target.rollback(slot, len(prompt) - 1)
    told = cancelled(target, slot, prompt, drafter, num_rounds)
    rest = run(target, (*prompt, *told), drafter, k=3, slot=slot, max_tokens=14 - len(told))
    assert told + rest.tokens == fresh.tokens
    other = tokens_of(9, seed=3)
    target.rollback(slot, 0)
    found = run(target, other, drafter, k=3, slot=slot, **options)
    assert_r0(found, run(target, other, **options), atol=1e-4)


def cancelled(
    target: Target, slot: Any, prompt: Sequence[int], drafter: Drafter, num_rounds: int
) -> tuple[int, ...]:
    """Decode in a slot, and close the generator behind some rounds; the tokens so far."""
    request = Request(
        prompt=prompt,
        drafter=drafter,
        controller=FixedController(3),
        verifier=TokenVerifier(),
        noise=SeededNoise(0),
        slot=slot,
        max_tokens=14,
    )
    events = decode(target, [request])
    told: tuple[int, ...] = ()
    for event in itertools.islice(events, 1 + num_rounds):
        told += event.tokens if isinstance(event, Round) else ()
    events.close()
    return told


# ---------------------------------------------------------------- what a call leaves behind


def num_live_tensors() -> int:
    gc.collect()
    # By type: to ask a lazy module or a proxy for its class has effects of its own.
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def test_turning_speculation_on_and_off_leaves_no_tensors_behind() -> None:
    """300 calls, by turns with each drafter and with none (vLLM #15506)."""
    target, draft_model = (
        lean_target(tiny("llama")),
        lean_target(build("llama", num_hidden_layers=1)),
    )
    drafters = (NoDrafter(), NgramDrafter(), ModelDrafter(draft_model))
    prompt = tokens_of(4) * 2
    counts = []
    for number in range(300):
        run(target, prompt, drafters[number % 3], k=number % 4, max_tokens=4)
        if number % 60 == 59:
            counts.append(num_live_tensors())
    assert counts == counts[:1] * 5


# ---------------------------------------------------------------- what it costs at worst


class Counting(TableTarget):
    """Counts its passes, and the rows of each."""

    def __init__(self, table: Any, vocab_size: int) -> None:
        super().__init__(table, vocab_size=vocab_size)
        self.rows: list[int] = []

    def score(self, work: Sequence[Work]) -> list[Scores]:
        if rows := sum(item.num_scored for item in work):
            self.rows.append(rows)
        return super().score(work)


@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_drafter_that_is_never_right_costs_no_more_passes_than_plain_decoding(k: int) -> None:
    """One pass a token, of 1 + k rows at most (vLLM #21278, LookaheadDecoding #19)."""
    law = markov(SIZE, 2)._law
    plain = run(TableTarget(law, vocab_size=SIZE), PROMPT, max_tokens=20)
    model = Counting(law, SIZE)
    found = run(model, PROMPT, wrong((*PROMPT, *plain.tokens), SIZE), k=k, max_tokens=20)
    assert_r0(found, plain)
    assert len(model.rows) == 20
    # The last rounds draft no more than there is room for.
    assert model.rows == [1 + min(k, 19 - n) for n in range(20)]


@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_draft_model_that_is_never_right_costs_a_pass_of_its_own_a_draft_token(k: int) -> None:
    law = markov(SIZE, 2)._law

    def next_best(tokens: tuple[int, ...]) -> Tensor:
        """The law with its tokens renamed, so that the most probable one is always another."""
        return law(tokens).roll(1)

    model, draft_model = Counting(law, SIZE), Counting(next_best, SIZE)
    found = run(model, PROMPT, ModelDrafter(draft_model), k=k, max_tokens=20)
    assert not any(r.num_accepted_tokens for r in found.rounds)
    assert len(model.rows) == 20
    assert len(draft_model.rows) == sum(min(k, 19 - n) for n in range(20))
