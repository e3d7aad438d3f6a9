"""Sequences that draft with one head share its products, and each gets what it gets alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.events import Failed, Finished, Round
from paceline.core.hidden import Hidden
from paceline.core.protocols import Steps, Work
from paceline.core.sampling import SamplingParams
from paceline.drafting.heads.contract import HeadState, Level
from paceline.drafting.heads.one_shot import FinalRow
from paceline.engine.gather import Drafting, advance_together
from paceline.engine.loop import Engine, Request
from paceline.models.heads import load_head
from paceline.sampling.noise import SeededNoise
from paceline.targets.cached import CachedTarget
from paceline.targets.heads.tail import Tail
from paceline.verifiers.token import TokenVerifier
from tests.models.heads import test_eagle as eagle1
from tests.models.heads import test_eagle3 as eagle3
from tests.rigged import run
from tests.scripted_heads import OneShotHead, Runner, ScriptedDrafter, scripted_table
from tests.tiny_head_files import HEADS
from tests.tiny_heads import Alone
from tests.tiny_models import build, lean_target, tokens_of

PROMPTS = (tokens_of(5, 1), tokens_of(12, 2), tokens_of(3, 3))
LEVELS = 3


def peagle(model: Any, folder: Path) -> Path:
    return eagle3.write(folder, eagle3.settings_of(mask_token=5, max_levels=LEVELS))


def eagle_1(model: Any, folder: Path) -> Path:
    return eagle1.write(folder, eagle1.eagle1_weights())


KINDS = {**HEADS, "eagle-1": eagle_1, "p-eagle": peagle}
PRODUCTS = {"medusa": [1], "blockwise": [1], "p-eagle": [1], "dflash": [1], "dspark": [1, LEVELS]}
"""The calls of a draft of three levels: of the head, and of what goes from token to token."""


@pytest.fixture(scope="module")
def target() -> CachedTarget:
    return lean_target(build("llama", num_hidden_layers=4))


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def head(kind: str, target: CachedTarget, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("heads") / kind
    return load_head(KINDS[kind](build("llama", num_hidden_layers=4), folder), target.info)


def opened(head: Any, target: CachedTarget) -> list[HeadState]:
    """A state that has seen each prompt but for its last token's own state."""
    needs, states = Hidden.union(head.needs), []
    for prompt in PROMPTS:
        slot = target.open(40)
        (scores,) = target.score([Work(slot, prompt[:-1], logits=False, hidden=needs)])
        states.append(head.open(target.view(slot), 40))
        assert scores.hidden is not None
        states[-1].observe(scores.hidden, prompt[1:])
    return states


def together(steps: Sequence[Steps[Level]]) -> list[Level]:
    drafts: Any = [Drafting(one) for one in steps]  # type: ignore[arg-type]
    advance_together(drafts)
    assert not [draft.error for draft in drafts if draft.error]
    return [draft.draft for draft in drafts]


def tree(parents: Sequence[int], number: int) -> tuple[list[int], list[int]]:
    """The rows of a level, another one for each sequence."""
    kept = [*parents][: 1 + number]
    return kept, [(7 * number + 3 * place + 1) % 30 for place in range(len(kept))]


def test_a_level_takes_one_call_for_all_and_says_what_it_says_alone(
    head: Any, kind: str, target: CachedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[list[Tensor]] = []
    for number, state in enumerate(opened(head, target)):
        alone = Alone(state)
        with torch.inference_mode():
            rows = [alone.start(LEVELS), alone.follow(*tree([0, 0, 0], number))]
            expected.append([*rows, alone.follow(*tree([0, 0, 0], 0))])
    calls: dict[str, list[int]] = {"head": [], "tail": []}
    for name, owner in (("head", type(head)), ("tail", Tail)):
        score = owner.score

        def counting(self: Any, work: Any, name: str = name, score: Any = score) -> Any:
            calls[name].append(len(work))
            return score(self, work)

        monkeypatch.setattr(owner, "score", counting)
    states = opened(head, target)
    found = [together([state.start(LEVELS) for state in states])]
    found.append(together([s.follow(*tree([0, 0, 0], n)) for n, s in enumerate(states)]))
    found.append(together([s.follow(*tree([0, 0, 0], 0)) for s in states]))
    for number in range(len(PROMPTS)):
        for level, rows in enumerate(expected[number]):
            torch.testing.assert_close(found[level][number].logits, rows, rtol=1e-5, atol=1e-5)
    counts = [len(calls[name]) for name in ("head", "tail") if calls[name]]
    assert counts == PRODUCTS.get(kind, [LEVELS])
    assert {size for sizes in calls.values() for size in sizes} == {len(PROMPTS)}


class Poisoned(Exception):
    pass


def test_a_product_that_fails_for_one_ends_that_one() -> None:
    """The others are run again without it."""

    class Fragile(OneShotHead):
        def open(self, target: Any, capacity: int) -> Any:
            state = super().open(target, capacity)
            whole = state._head.score  # type: ignore[attr-defined]

            def score(work: Sequence[FinalRow]) -> Any:
                if any(float(one.final[0, 2]) == 4 for one in work):  # the text's length
                    raise Poisoned
                return whole(work)

            state._head = Runner(score)  # type: ignore[attr-defined]
            return state

    engine = Engine(scripted_table())
    prompts = [(0, 1), (2, 1, 0, 1, 2), (1, 1, 0)]
    requests = [
        Request(
            prompt=prompt,
            drafter=ScriptedDrafter(Fragile(), shape="chain"),
            controller=FixedController(2),
            verifier=TokenVerifier(),
            noise=SeededNoise(seed),
            params=SamplingParams(temperature=1.0),
            max_tokens=1 if seed != 1 else 8,
        )
        for seed, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    events = [event for _ in range(9) for event in engine.step()]
    failed = [event for event in events if isinstance(event, Failed)]
    assert [(event.id, type(event.error)) for event in failed] == [(1, Poisoned)]
    assert {event.id for event in events if isinstance(event, Finished)} == {0, 2}


def test_each_of_a_batch_gets_the_tokens_that_it_gets_alone(
    head: Any, target: CachedTarget
) -> None:
    from paceline.generate import plugins

    drafter: Any = plugins.find("drafter", head.drafter).make({"head": head, "shape": "chain"})
    engine, told = Engine(target), {}
    for seed, prompt in enumerate(PROMPTS):
        request = Request(
            prompt=prompt,
            drafter=drafter,
            controller=FixedController(LEVELS),
            verifier=TokenVerifier(),
            noise=SeededNoise(seed),
            params=SamplingParams(temperature=1.0),
            max_tokens=12 + seed,
        )
        told[engine.add(request)] = []
    while engine.is_busy:
        for event in engine.step():
            if isinstance(event, Round):
                told[event.id] += event.tokens
    for seed, prompt in enumerate(PROMPTS):
        options: dict[str, Any] = {"seed": seed, "params": SamplingParams(temperature=1.0)}
        alone = run(target, prompt, drafter, k=LEVELS, max_tokens=12 + seed, **options)
        assert tuple(told[seed]) == alone.tokens
