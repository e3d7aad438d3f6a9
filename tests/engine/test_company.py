"""Two hundred requests of every kind, sixteen at once: each answer is what it is alone."""

from __future__ import annotations

import random
from typing import Any

from paceline.controllers.auto import AutoController
from paceline.controllers.fixed import FixedController
from paceline.core.events import Finished
from paceline.core.protocols import Controller, Drafter
from paceline.core.sampling import SamplingParams
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.engine.loop import Engine
from paceline.engine.scheduler import Load
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.verifiers.coupling import CouplingVerifier
from tests.company import Heard, alone, fresh, request, run_out
from tests.tiny_models import build, tokens_of

NUM_REQUESTS, AT_ONCE = 200, 16
COSTS = {"target": {1: 1.0, 8: 1.2, 64: 4.0}, "draft": 0.05}


def test_200_requests_16_at_once_are_token_for_token_what_they_are_alone() -> None:
    """Float32, sampled by the seeded rule and greedy; prompts with common beginnings in chunks,
    drafters, lengths, stops, arrivals, cancels and a budget of memory by chance (seed 12)."""
    chance = random.Random(12)
    target = CachedTarget(HFDecoder(build("llama")))
    draft = CachedTarget(HFDecoder(build("llama", num_hidden_layers=1)))
    kinds: list[Drafter] = [
        ModelDrafter(draft),
        NgramDrafter(),
        NoDrafter(),
        TreeDrafter(draft, max_nodes=5, top_k=2),
        CascadeDrafter((NgramDrafter(), ModelDrafter(draft))),
    ]
    texts = [tokens_of(50, seed) for seed in range(4)]

    def one(number: int) -> Any:
        controller: Controller = FixedController(chance.randrange(5))
        if number % 3 == 0:
            controller = AutoController(num_draft_tokens=5, costs=COSTS)
        return request(
            chance.choice(texts)[: chance.randrange(1, 50)],
            kinds[number % len(kinds)],
            number,
            controller=controller,
            verifier=CouplingVerifier(),
            params=SamplingParams(temperature=chance.choice([0.0, 0.7, 1.2]), top_k=40),
            max_tokens=chance.randrange(1, 16),
            stop_token_ids=frozenset(chance.sample(range(60), chance.choice([0, 3, 8]))),
        )

    asked = [one(number) for number in range(NUM_REQUESTS)]
    expected = [alone(target, item) for item in asked]
    for model in (target, draft):
        model.prefixes.resize(model.slot_bytes(400))
    engine = Engine(
        target,
        prefill_rows=16,
        max_sequences=AT_ONCE,
        memory=12 * (target.slot_bytes(80) + draft.slot_bytes(80)),
    )
    heard: dict[int, Heard] = {}
    cancelled: set[int] = set()
    most = 0
    for item in asked:
        heard[engine.add(fresh(item))] = Heard()
        if chance.random() < 0.3:
            for event in engine.step():
                heard[event.id].take(event)
        most = max(most, engine.load.num_running)
        if chance.random() < 0.1:
            victim = chance.choice(list(heard)[-12:])
            if engine.cancel(victim):
                cancelled.add(victim)
    run_out(engine, heard)
    assert engine.load == Load()
    assert 10 <= most <= AT_ONCE
    assert len(cancelled) > 5
    for number, solo in enumerate(expected):
        own = heard[number]
        if number in cancelled:
            assert own.tokens == solo.tokens[: len(own.tokens)]
            continue
        assert own.tokens == solo.tokens, number
        assert isinstance(own.end, Finished)
        assert isinstance(solo.end, Finished)
        assert own.end.reason is solo.end.reason
