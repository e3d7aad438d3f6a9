"""Many requests of every kind for a long time: every answer right, nothing left, memory flat.

    python benchmarks/soak.py --requests 10000 --at-once 32 [--layers 3] [--model smollm2-135m]

The model is cut to its first layers and run in float32, so that a request takes milliseconds and
a token in company has to be the token alone. Requests come with prompts that often begin the same,
lengths, seeds, drafters, stops, time limits and priorities by chance; some are cancelled, some
bring a plug-in that fails, some could never fit, and memory runs out now and then. One answer in
`--check-every` is made again alone and compared token for token. Ends with status 1 where anything
was wrong.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import psutil
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.controllers.auto import AutoController
from paceline.controllers.fixed import FixedController
from paceline.core.events import Event, Failed, Finished, FinishReason, Round
from paceline.core.protocols import Controller, Drafter, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Scores
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.engine.loop import Engine, Request, decode
from paceline.engine.scheduler import Load
from paceline.errors import InvalidInput, QueueFull
from paceline.models.finding import find_model
from paceline.sampling.noise import SeededNoise
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.targets.slot import Slot
from paceline.verifiers.coupling import CouplingVerifier

SHARES = {"cancelled": 0.08, "fails": 0.02, "too large": 0.01, "timeout": 0.05}
"""What part of the requests comes to an end of its own."""
GROWTH = 1.1
"""How much the memory may grow after the first tenth."""


class Planted(Exception):
    """What a plug-in of a request raises."""


class Watched(CachedTarget):
    """Counts its open slots, and is out of memory now and then."""

    def __init__(self, decoder: HFDecoder, fails_every: int) -> None:
        super().__init__(decoder)
        self.num_open, self._passes, self._fails_every = 0, 0, fails_every
        self.has_plenty = False
        """Whether it is never out of memory: while an answer is made alone."""

    def open(self, capacity: int) -> Slot:
        self.num_open += 1
        return super().open(capacity)

    def close(self, slot: Slot) -> None:
        self.num_open -= 1
        super().close(slot)

    def score(self, work: Sequence[Work]) -> list[Scores]:
        self._passes += 1
        # Twice in a row, so that the pass over one item alone fails as well.
        is_due = self._fails_every and self._passes % self._fails_every < 2
        if is_due and self.num_open > 1 and not self.has_plenty:
            raise MemoryError
        return super().score(work)


@dataclass
class Answer:
    """One request, and what was heard of it."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    end: Event | None = None
    cancelled: bool = False


class Requests:
    """Requests by chance, the same for the same seed."""

    def __init__(self, target: Watched, draft: Watched, seed: int) -> None:
        self._chance = random.Random(seed)
        self._vocab = target.info.vocab_size
        self._texts = [self._tokens(600) for _ in range(8)]
        self._drafters: list[Drafter] = [
            NoDrafter(),
            NgramDrafter(),
            SuffixDrafter(),
            ModelDrafter(draft),
            TreeDrafter(draft, max_nodes=6, top_k=2),
            CascadeDrafter((NgramDrafter(), ModelDrafter(draft))),
        ]

    def _tokens(self, count: int) -> list[int]:
        return [self._chance.randrange(3, self._vocab) for _ in range(count)]

    def next(self, number: int) -> Request:
        """The next one."""
        chance = self._chance
        text = chance.choice(self._texts)[: chance.choice([20, 60, 150, 600])]
        controller: Controller = FixedController(chance.randrange(6))
        if chance.random() < 0.3:
            controller = AutoController(num_draft_tokens=6)
        options: dict[str, Any] = {}
        if chance.random() < SHARES["fails"]:
            options["stop_rules"] = [_fails]
        if chance.random() < SHARES["timeout"]:
            options["timeout"] = chance.uniform(0.01, 5.0)
        return Request(
            prompt=[*text, *self._tokens(chance.randrange(1, 30))],
            drafter=chance.choice(self._drafters),
            controller=controller,
            verifier=CouplingVerifier(),
            noise=SeededNoise(number),
            params=SamplingParams(temperature=chance.choice([0.0, 0.8]), top_p=0.95),
            max_tokens=6000 if chance.random() < SHARES["too large"] else chance.randrange(1, 48),
            stop_token_ids=frozenset(chance.sample(range(self._vocab), 40)),
            priority=chance.randrange(2),
            **options,
        )

    def cancels(self) -> bool:
        """Whether the next request is cancelled some time."""
        return self._chance.random() < SHARES["cancelled"]

    def choose(self, numbers: Sequence[int]) -> int:
        """One of some."""
        return self._chance.choice(numbers)


def _fails(tokens: Sequence[int], above: int) -> int | None:
    if len(tokens) > 4:
        raise Planted
    return None


def load(name: str, layers: int, fails_every: int) -> Watched:
    """The first layers of a model, in float32."""
    folder = find_model(name).files.folder
    config = AutoConfig.from_pretrained(folder)
    config.num_hidden_layers = layers
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype="float32")
    return Watched(HFDecoder(model.eval()), fails_every)


def alone(target: CachedTarget, request: Request) -> list[int]:
    """The tokens that it gets by itself."""
    own = replace(request, noise=copy.deepcopy(request.noise), timeout=None)
    return [
        token
        for event in decode(target, [own])
        if isinstance(event, Round)
        for token in event.tokens
    ]


def check(answer: Answer, target: CachedTarget) -> str | None:
    """What is wrong with an answer, against itself alone."""
    expected = alone(target, answer.request)
    whole = isinstance(answer.end, Finished) and answer.end.reason is not FinishReason.TIMEOUT
    if answer.tokens != (expected if whole else expected[: len(answer.tokens)]):
        return f"{answer.request.drafter.name}: {answer.tokens} are not {expected}"
    return None


def main() -> int:
    """Run; 0 where all was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--check-every", type=int, default=20)
    parser.add_argument("--fails-every", type=int, default=500, help="passes; 0 never")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    target = load(given.model, given.layers, given.fails_every)
    draft = load(given.model, 1, given.fails_every)
    for model in (target, draft):
        model.prefixes.resize(model.slot_bytes(4000))
    engine = Engine(
        target,
        prefill_rows=128,
        max_sequences=given.at_once,
        max_waiting=2 * given.at_once,
        memory=given.at_once * (target.slot_bytes(200) + draft.slot_bytes(200)),
    )
    requests, seen, wrong = Requests(target, draft, given.seed), Counter[str](), list[str]()
    live: dict[int, Answer] = {}
    process, memory = psutil.Process(), list[int]()
    start = perf_counter()

    def take(events: Sequence[Event]) -> None:
        for event in events:
            answer = live[event.id]
            if isinstance(event, Round):
                answer.tokens += event.tokens
            elif isinstance(event, (Finished, Failed)):
                answer.end = event
                live.pop(event.id)
                judge(event.id, answer)

    def judge(number: int, answer: Answer) -> None:
        end = answer.end
        if isinstance(end, Failed):
            seen["failed"] += 1
            if not isinstance(end.error, Planted):
                wrong.append(f"request {number} failed: {end.error!r}")
        elif isinstance(end, Finished):
            seen[end.reason.value] += 1
        if number % given.check_every == 0 and not answer.request.stop_rules:
            seen["compared"] += 1
            target.has_plenty = draft.has_plenty = True
            if found := check(answer, target):
                wrong.append(f"request {number}: {found}")
            target.has_plenty = draft.has_plenty = False

    for number in range(given.requests):
        request = requests.next(number)
        while True:
            try:
                live_number = engine.add(replace(request, noise=copy.deepcopy(request.noise)))
            except QueueFull:
                seen["queue full"] += 1
                take(engine.step())
                continue
            except InvalidInput:
                seen["refused"] += 1
                break
            live[live_number] = Answer(request)
            break
        if live and requests.cancels():
            victim = requests.choose(list(live))
            engine.cancel(victim)
            answer = live.pop(victim)
            answer.cancelled = True
            seen["cancelled"] += 1
            judge(victim, answer)
        take(engine.step())
        if number % max(given.requests // 100, 1) == 0:
            memory.append(process.memory_info().rss)
            running, waiting, *_ = engine.load
            print(
                f"{number:6d} requests, {perf_counter() - start:6.0f} s, {running} decoded, "
                f"{waiting} wait, {memory[-1] / 1e6:,.0f} MB, {len(wrong)} wrong",
                flush=True,
            )
    while engine.is_busy:
        take(engine.step())
    set_back = engine.load.num_set_back
    if engine.load._replace(num_set_back=0) != Load() or live:
        wrong.append(f"left in the engine: {engine.load}, {len(live)} requests")
    for model, name in ((target, "target"), (draft, "draft model")):
        if model.num_open:
            wrong.append(f"{model.num_open} slots of the {name} are open")
    first = max(memory[: max(len(memory) // 10, 1)])
    if memory[-1] > GROWTH * first:
        wrong.append(f"memory grew from {first / 1e6:,.0f} to {memory[-1] / 1e6:,.0f} MB")
    print(f"{dict(seen)}, set back {set_back} times, {perf_counter() - start:.0f} s")
    print("\n".join(wrong) or "nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
