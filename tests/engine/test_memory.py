"""Requests are let in by what they take, and one is set back where memory runs out all the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from paceline.core.events import Failed, Finished, Prefilled
from paceline.core.passes import prefill
from paceline.core.protocols import Drafter, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Scores
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import Engine
from paceline.engine.memory import SCORED_ROWS, is_out_of_memory, num_bytes, session_bytes
from paceline.engine.scheduler import Load
from paceline.errors import InvalidInput
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing.table import TableSlot
from paceline.verifiers.coupling import CouplingVerifier
from tests.company import VOCAB, Counting, Heard, alone, drafters, fresh, request, run_out
from tests.recurrent import Recurrent
from tests.tiny_models import build, tokens_of

# ---------------------------------------------------------------- what is counted


@pytest.mark.parametrize("capacity", [1, 40, 90])
@pytest.mark.parametrize("fixed", [{}, {"fixed_rows": 4, "fixed_keys": 32}])
def test_a_slot_takes_what_the_target_says(capacity: int, fixed: dict[str, int]) -> None:
    target = CachedTarget(HFDecoder(build("llama")), **fixed)
    said = target.slot_bytes(capacity)
    assert target.slot_bytes(capacity) == said
    slot = target.open(capacity)
    prefill(target, slot, tokens_of(capacity))
    assert slot.state.num_bytes == said


def test_a_state_with_snapshots_never_takes_more_than_the_target_says() -> None:
    target = CachedTarget(Recurrent(VOCAB, "every"))
    said = target.slot_bytes(300)
    slot = target.open(300)
    for token in (n % VOCAB for n in range(300)):
        prefill(target, slot, [token])
        assert slot.state.num_bytes <= said


def test_models_of_a_drafter_are_counted_with_it() -> None:
    target, draft = Counting(1), Counting(2)
    model = ModelDrafter(draft)
    assert session_bytes(NoDrafter(), 50, target) == 0
    assert session_bytes(model, 50, target) == draft.slot_bytes(50)
    both = CascadeDrafter((NgramDrafter(), model))
    assert session_bytes(both, 50, target) == draft.slot_bytes(50)
    logits = 2 * SCORED_ROWS * VOCAB * 4
    asked = request((1, 2), model)
    assert num_bytes(asked, 50, target) == target.slot_bytes(50) + draft.slot_bytes(50) + logits
    owned = request((1, 2), NoDrafter(), slot=target.open(50))
    assert num_bytes(owned, 50, target) == logits


def test_a_draft_model_with_a_shorter_context_is_counted_with_that() -> None:
    target = CachedTarget(HFDecoder(build("llama")))
    short = CachedTarget(HFDecoder(build("llama", num_hidden_layers=1, max_position_embeddings=64)))
    assert session_bytes(ModelDrafter(short), 120, target) == short.slot_bytes(64)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (
            RuntimeError("DefaultCPUAllocator: not enough memory: you tried"),
            True,
        ),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
        (None, False),
    ],
)
def test_errors_that_say_that_memory_did_not_suffice(error: Any, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


# ---------------------------------------------------------------- admission


def test_those_that_fit_are_let_in_and_nobody_overtakes() -> None:
    target = Counting(1)
    logits = 2 * SCORED_ROWS * VOCAB * 4
    small, large = 8 * 10 + logits, 8 * 40 + logits
    engine = Engine(target, memory=large + small)
    asked = [
        request((1, 2), NoDrafter(), number, max_tokens=length - 2)
        for number, length in enumerate([40, 40, 10, 10])
    ]
    heard = {engine.add(fresh(one)): Heard() for one in asked}
    engine.step()
    assert engine.load == Load(1, 3, large), "the small ones would fit, but came later"
    most = 0
    while engine.is_busy:
        for event in engine.step():
            heard[event.id].take(event)
        most = max(most, engine.load.num_bytes)
    assert most == large + small
    for number, one in enumerate(asked):
        assert heard[number].tokens == alone(target, one).tokens


def test_what_would_never_fit_is_refused_at_once_and_harms_nobody() -> None:
    target = Counting(1)
    engine = Engine(target, memory=8 * 20 + 2 * SCORED_ROWS * VOCAB * 4)
    heard = {engine.add(request((1, 2), NoDrafter(), max_tokens=18)): Heard()}
    with pytest.raises(InvalidInput, match="at its full length of 21 tokens, and there are"):
        engine.add(request((1, 2), NoDrafter(), max_tokens=19))
    run_out(engine, heard)
    assert len(heard[0].tokens) == 18


def test_without_a_budget_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Counting(1)
    monkeypatch.setattr(target, "slot_bytes", lambda capacity: 1 / 0)
    engine = Engine(target)
    engine.add(request((1, 2), NoDrafter()))
    engine.step()
    assert engine.load == Load(1)


def test_a_budget_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="memory must be at least 1"):
        Engine(Counting(1), memory=0)


# ---------------------------------------------------------------- where it runs out


class Tight(Counting):
    """Holds so many tokens over all slots, and no more."""

    def __init__(self, seed: int, most: int) -> None:
        super().__init__(seed)
        self.most = most

    def score(self, work: Sequence[Work]) -> list[Scores]:
        held = sum(len(slot.tokens) for slot in self.open_slots)
        if held + sum(item.num_rows for item in work) > self.most:
            raise MemoryError
        return super().score(work)


class FewSlots(Counting):
    """Opens so many slots, and no more."""

    def __init__(self, seed: int, most: int = 2) -> None:
        super().__init__(seed)
        self.most = most

    def open(self, capacity: int) -> TableSlot:
        if len(self.open_slots) == self.most:
            raise MemoryError
        return super().open(capacity)


@pytest.mark.parametrize("prefill_rows", [3, 512])
@pytest.mark.parametrize(
    ("whose", "rule"),
    [
        *itertools.product(("target", "slots", "draft slots"), ("token", "coupled")),
        ("draft", "coupled"),  # a draft that was broken off is drawn again with other numbers
    ],
)
def test_the_youngest_is_set_back_and_goes_on_with_the_same_tokens(
    whose: str, prefill_rows: int, rule: str
) -> None:
    target = {"target": Tight(1, 60), "slots": FewSlots(1)}.get(whose, Counting(1))
    draft = {"draft": Tight(2, 34), "draft slots": FewSlots(2, 1)}.get(whose, Counting(2))
    kinds: list[Drafter] = drafters(draft)
    options: dict[str, Any] = {"max_tokens": 24}
    if rule == "coupled":
        kinds = [ModelDrafter(draft), NgramDrafter(), NoDrafter()]
        options["verifier"] = CouplingVerifier()
    asked = [
        request((1, 2, number, 4, 5), kinds[number % len(kinds)], number, **options)
        for number in range(6)
    ]
    engine = Engine(target, prefill_rows=prefill_rows)
    heard = {engine.add(fresh(one)): Heard() for one in asked}
    firsts: list[int] = []
    while engine.is_busy:
        for event in engine.step():
            if isinstance(event, Prefilled):
                firsts.append(event.id)
            heard[event.id].take(event)
    assert engine.load.num_set_back
    assert sorted(firsts) == list(range(6)), "each prompt is reported once"
    roomy = Counting(1)
    for number, one in enumerate(asked):
        assert isinstance(heard[number].end, Finished)
        assert [r.number for r in heard[number].rounds] == [
            n + 1 for n in range(len(heard[number].rounds))
        ]
        if whose in ("target", "slots"):
            assert heard[number].tokens == alone(roomy, one).tokens
        else:
            assert heard[number].tokens == alone(target, one).tokens
    assert not target.open_slots
    assert not draft.open_slots


def test_the_first_is_not_the_one_that_goes() -> None:
    target = Tight(1, 40)
    engine = Engine(target)
    heard = {
        engine.add(request((1, 2, 3), NoDrafter(), number, max_tokens=20)): Heard()
        for number in range(3)
    }
    ends: list[int] = []
    while engine.is_busy:
        for event in engine.step():
            heard[event.id].take(event)
            if isinstance(event, Finished):
                ends.append(event.id)
    assert ends == [0, 1, 2]
    # The first was never set back: one round a step, no pass of it without a neighbour's leave.
    assert len(heard[0].rounds) == 20
    assert engine.load.num_set_back


def test_one_that_does_not_fit_alone_fails() -> None:
    target = Tight(1, 10)
    engine = Engine(target)
    heard = {
        engine.add(request((1, 2, 3), NoDrafter(), number, max_tokens=20)): Heard()
        for number in range(2)
    }
    run_out(engine, heard)
    for number in range(2):
        end = heard[number].end
        assert isinstance(end, Failed)
        assert isinstance(end.error, MemoryError)
    assert not target.open_slots
    assert engine.load._replace(num_set_back=0) == Load()


def test_one_that_was_set_back_can_be_cancelled_and_run_out_of_time() -> None:
    clock = [0.0]
    target = Tight(1, 30)
    engine = Engine(target, clock=lambda: clock[0])
    heard = {
        engine.add(request((1, 2, 3), NoDrafter(), number, max_tokens=25, **limits)): Heard()
        for number, limits in enumerate([{}, {"timeout": 5}, {}])
    }
    while engine.load.num_waiting < 2:
        for event in engine.step():
            heard[event.id].take(event)
    assert engine.cancel(2)
    clock[0] = 9.0
    for event in engine.step():
        heard[event.id].take(event)
    end = heard[1].end
    assert isinstance(end, Finished)
    assert end.num_tokens == len(heard[1].tokens)
    run_out(engine, heard)
    assert len(heard[0].tokens) == 25
    assert not target.open_slots


def test_with_a_real_model_in_float32_the_tokens_are_the_same_after_a_set_back() -> None:
    """Seeded and sampled: what is read again in chunks was computed round by round before."""
    target = CachedTarget(HFDecoder(build("llama")))
    draft = CachedTarget(HFDecoder(build("llama", num_hidden_layers=1)))
    score, held = target.score, [0]

    def tight(work: Sequence[Work]) -> list[Scores]:
        held[0] += 1
        if held[0] % 7 == 0 and sum(item.logits for item in work) == 1:
            raise MemoryError
        if held[0] % 7 == 0:
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate")
        return score(work)

    asked = [
        request(
            tokens_of(5 + 3 * n, n),
            ModelDrafter(draft) if n % 2 else NgramDrafter(),
            n,
            max_tokens=20,
            verifier=CouplingVerifier(),
            params=SamplingParams(temperature=0.8, top_p=0.9),
        )
        for n in range(4)
    ]
    expected = [alone(target, one).tokens for one in asked]
    target.score = tight  # type: ignore[method-assign]
    engine = Engine(target, prefill_rows=8)
    heard = {engine.add(fresh(one)): Heard() for one in asked}
    run_out(engine, heard)
    assert [heard[number].tokens for number in range(4)] == expected


def test_a_head_is_counted_by_its_layers() -> None:
    class Head:
        num_cached_layers = 1
        drafter, name, needs = "eagle", "head", frozenset()

    target = CachedTarget(HFDecoder(build("llama")))
    drafter = EagleDrafter(Head())  # type: ignore[arg-type]
    assert session_bytes(drafter, 30, target) == target.slot_bytes(30) // target.info.num_layers
