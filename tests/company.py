"""Requests in company: what each heard, what it gets alone, and what is open meanwhile."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.controllers.fixed import FixedController
from paceline.core.events import Event, Prefilled, Round
from paceline.core.protocols import Drafter, Target, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Scores
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.engine.loop import Engine, decode
from paceline.engine.request import Request
from paceline.sampling.noise import SeededNoise
from paceline.testing.table import TableSlot, TableTarget
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import markov

VOCAB = 13


@dataclass
class Heard:
    """The events of one request."""

    tokens: tuple[int, ...] = ()
    rounds: list[Round] = field(default_factory=list)
    end: Event | None = None

    def take(self, event: Event) -> None:
        assert self.end is None, "an event after the last"
        if isinstance(event, Round):
            self.tokens += event.tokens
            self.rounds.append(event)
        elif not isinstance(event, Prefilled):
            self.end = event


def request(prompt: Sequence[int], drafter: Drafter, seed: int = 0, **options: Any) -> Request:
    given: dict[str, Any] = {
        "controller": FixedController(3),
        "verifier": TreeVerifier(),
        "noise": SeededNoise(seed),
        "params": SamplingParams(temperature=1.0),
        "max_tokens": 12,
    }
    return Request(prompt=prompt, drafter=drafter, **{**given, **options})


def fresh(asked: Request) -> Request:
    """The same with its noise as it was: the original is never decoded."""
    return replace(asked, noise=copy.deepcopy(asked.noise))


def alone(target: Target, asked: Request) -> Heard:
    heard = Heard()
    for event in decode(target, [fresh(asked)]):
        heard.take(event)
    return heard


def run_out(engine: Engine, heard: dict[int, Heard]) -> None:
    while engine.is_busy:
        for event in engine.step():
            heard[event.id].take(event)


class Counting(TableTarget):
    """Notes what each pass holds, and what is open."""

    def __init__(self, seed: int) -> None:
        super().__init__(markov(VOCAB, seed)._law, vocab_size=VOCAB)
        self.passes: list[list[Work]] = []
        self.open_slots: list[TableSlot] = []

    def open(self, capacity: int) -> TableSlot:
        slot = super().open(capacity)
        self.open_slots.append(slot)
        return slot

    def close(self, slot: TableSlot) -> None:
        self.open_slots.remove(slot)
        super().close(slot)

    def score(self, work: Sequence[Work]) -> list[Scores]:
        self.passes.append(list(work))
        return super().score(work)


def drafters(draft: Target) -> list[Drafter]:
    return [
        ModelDrafter(draft),
        NgramDrafter(),
        TreeDrafter(draft, max_nodes=6, top_k=2),
        NoDrafter(),
        CascadeDrafter((NgramDrafter(), ModelDrafter(draft))),
    ]
