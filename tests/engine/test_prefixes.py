"""Requests that begin the same: one pass reads it for all, and each answer is as alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from paceline.core.events import Prefilled
from paceline.core.protocols import Drafter, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Scores
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.engine.loop import Engine
from paceline.errors import ModelError
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.verifiers.coupling import CouplingVerifier
from tests.company import Heard, alone, fresh, request, run_out
from tests.recurrent import Recurrent
from tests.tiny_models import build, tokens_of

ROWS = 16
PROMPT = tokens_of(45)


class Watched(CachedTarget):
    """Counts the rows of prompts that passes read."""

    rows_read = 0

    def score(self, work: Sequence[Work]) -> list[Scores]:
        self.rows_read += sum(item.num_rows for item in work if not item.logits)
        return super().score(work)


def models() -> tuple[Watched, Watched]:
    target = Watched(HFDecoder(build("llama")))
    draft = Watched(HFDecoder(build("llama", num_hidden_layers=1)))
    for model in (target, draft):
        model.prefixes.resize(1 << 24)
    return target, draft


def coupled(prompt: Sequence[int], drafter: Drafter, seed: int) -> Any:
    return request(
        prompt,
        drafter,
        seed,
        verifier=CouplingVerifier(),
        params=SamplingParams(temperature=0.9, top_p=0.95),
    )


def run_all(engine: Engine, asked: Sequence[Any]) -> tuple[list[Heard], dict[int, Prefilled]]:
    heard = {engine.add(fresh(one)): Heard() for one in asked}
    prefilled = {}
    while engine.is_busy:
        for event in engine.step():
            heard[event.id].take(event)
            if isinstance(event, Prefilled):
                prefilled[event.id] = event
    return [heard[number] for number in sorted(heard)], prefilled


def expected_of(asked: Sequence[Any], target: Any) -> list[tuple[int, ...]]:
    """Alone, with nothing kept of others."""
    target.prefixes.resize(0)
    found = [alone(target, one).tokens for one in asked]
    target.prefixes.resize(1 << 24)
    return found


@pytest.mark.parametrize("kind", ["model", "tree"])
def test_answers_to_one_prompt_read_it_once(kind: str) -> None:
    target, draft = models()
    drafter = ModelDrafter(draft) if kind == "model" else TreeDrafter(draft, max_nodes=5, top_k=2)
    asked = [coupled(PROMPT, drafter, seed) for seed in range(4)]
    expected = expected_of(asked, target)
    target.rows_read = draft.rows_read = 0
    draft.prefixes.resize(0)
    draft.prefixes.resize(1 << 24)
    heard, prefilled = run_all(Engine(target, prefill_rows=ROWS), asked)
    assert [one.tokens for one in heard] == expected
    assert target.rows_read == len(PROMPT) - 1
    # A draft model reads a text that it shares to its last token.
    assert draft.rows_read == len(PROMPT) - 1
    cached = [prefilled[number].num_cached_tokens for number in range(4)]
    assert cached == [0, *[len(PROMPT) - 1] * 3]


def test_arrivals_by_chance_with_common_beginnings_are_as_alone() -> None:
    """Prompts cut from two texts at random lengths, cancelled at random, within a small limit."""
    target, draft = models()
    chance = random.Random(3)
    texts = [tokens_of(60, seed) for seed in range(2)]
    kinds: list[Drafter] = [ModelDrafter(draft), NgramDrafter()]
    asked = [
        coupled(chance.choice(texts)[: chance.randrange(2, 60)], kinds[number % 2], number)
        for number in range(14)
    ]
    expected = expected_of(asked, target)
    target.rows_read = 0
    target.prefixes.resize(target.slot_bytes(90))
    engine = Engine(target, prefill_rows=ROWS, max_sequences=3)
    heard: dict[int, Heard] = {}
    cancelled = set()
    for one in asked:
        heard[engine.add(fresh(one))] = Heard()
        for event in engine.step():
            heard[event.id].take(event)
        victim = chance.choice(list(heard))
        if chance.random() < 0.2 and engine.cancel(victim):
            cancelled.add(victim)
    run_out(engine, heard)
    for number, tokens in enumerate(expected):
        assert heard[number].tokens == tokens[: len(heard[number].tokens)]
        if number not in cancelled:
            assert heard[number].tokens == tokens
    assert target.prefixes.num_bytes <= target.slot_bytes(90)
    assert target.rows_read < sum(len(one.prompt) - 1 for one in asked)


def test_a_model_whose_state_cannot_be_cut_shares_by_the_same_means() -> None:
    target = Watched(Recurrent(200, "end"))
    target.prefixes.resize(1 << 20)
    asked = [coupled(PROMPT, NgramDrafter(), seed) for seed in range(3)]
    expected = expected_of(asked, target)
    target.rows_read = 0
    heard, _ = run_all(Engine(target, prefill_rows=ROWS), asked)
    assert [one.tokens for one in heard] == expected
    assert target.rows_read == len(PROMPT) - 1


def test_those_that_wait_for_a_pass_that_fails_read_by_themselves() -> None:
    """The first is at fault; the second waited for its chunk."""
    target, _ = models()
    score = target.score
    poison: list[Any] = []

    def failing(work: Sequence[Work]) -> list[Scores]:
        if not poison:
            poison.append(work[0].slot)
        if any(item.slot is poison[0] for item in work):
            raise ModelError("planted")
        return score(work)

    asked = [coupled(PROMPT, NgramDrafter(), seed) for seed in range(2)]
    expected = expected_of(asked, target)
    target.score = failing  # type: ignore[method-assign]
    heard, _ = run_all(Engine(target, prefill_rows=ROWS), asked)
    assert heard[1].tokens == expected[1]
    assert not heard[0].tokens


def test_where_nothing_is_kept_nobody_waits() -> None:
    target, _ = models()
    target.prefixes.resize(0)
    asked = [coupled(PROMPT, NgramDrafter(), seed) for seed in range(2)]
    heard, prefilled = run_all(Engine(target, prefill_rows=64), asked)
    assert [one.tokens for one in heard] == expected_of(asked, target)
    assert [prefilled[n].num_cached_tokens for n in range(2)] == [0, 0]
    assert target.rows_read >= 2 * (len(PROMPT) - 1)
