"""Requests that come, go and fail between rounds: each gets what it gets alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from paceline.core.drafts import Draft
from paceline.core.events import Failed, Finished, to_json
from paceline.core.passes import drive
from paceline.core.protocols import Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Scores
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.engine.loop import Engine, decode
from paceline.engine.request import Request
from paceline.errors import ContextOverflow, InvalidInput
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing.table import TableTarget
from tests.company import (
    VOCAB,
    Counting,
    Heard,
    alone,
    drafters,
    fresh,
    request,
    run_out,
)
from tests.rigged import Line, markov
from tests.tiny_models import build, tokens_of


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("prefill_rows", [2, 512])
def test_requests_that_come_and_go_get_what_they_get_alone(seed: int, prefill_rows: int) -> None:
    """Arrivals and cancellations between rounds, by chance; prompts in chunks and whole."""
    chance = random.Random(seed)
    target, draft = Counting(1), Counting(2)
    kinds = drafters(draft)
    asked = [
        request(
            tuple(chance.randrange(VOCAB) for _ in range(chance.randrange(1, 9))),
            kinds[number % len(kinds)],
            number,
            max_tokens=chance.randrange(0, 15),
        )
        for number in range(9)
    ]
    engine = Engine(target, prefill_rows=prefill_rows, max_sequences=4)
    heard, cancelled = {}, set()
    for number, one in enumerate(asked):
        assert engine.add(fresh(one)) == number
        heard[number] = Heard()
        for _ in range(chance.randrange(3)):
            for event in engine.step():
                heard[event.id].take(event)
        if chance.random() < 0.4:
            victim = chance.randrange(number + 1)
            if heard[victim].end is None and victim not in cancelled:
                assert engine.cancel(victim)
                cancelled.add(victim)
            else:
                assert not engine.cancel(victim)
    run_out(engine, heard)
    for number, one in enumerate(asked):
        expected = alone(target, one)
        if number in cancelled:
            assert heard[number].end is None
            assert heard[number].tokens == expected.tokens[: len(heard[number].tokens)]
        else:
            assert heard[number].tokens == expected.tokens
            assert [r.num_draft_tokens for r in heard[number].rounds] == [
                r.num_draft_tokens for r in expected.rounds
            ]
            assert isinstance(heard[number].end, Finished)
    assert not target.open_slots
    assert not draft.open_slots


def test_a_prompt_comes_in_chunks_beside_the_drafts_of_others() -> None:
    target = Counting(1)
    engine = Engine(target, prefill_rows=4)
    heard = {engine.add(request((1, 2), NgramDrafter(), max_tokens=30)): Heard()}
    for event in engine.step() + engine.step():
        heard[event.id].take(event)
    late = engine.add(request(tuple(range(11)), NoDrafter(), 1, max_tokens=2))
    heard[late] = Heard()
    target.passes.clear()
    run_out(engine, heard)
    mixed = [work for work in target.passes if not all(item.logits for item in work)]
    assert [[len(i.tokens) for i in work if not i.logits] for work in mixed] == [[4], [4], [2]]
    assert all(any(item.logits for item in work) for work in mixed), "nobody waits for a prompt"
    beside = [r for r in heard[0].rounds if r.prefill_rows]
    assert [r.prefill_rows for r in beside] == [4, 4, 2]
    assert all(r.pass_rows == r.num_rows + r.prefill_rows for r in beside)
    assert all(r.num_sequences == 1 for r in beside)


def test_several_short_prompts_share_a_pass_and_a_chunk_is_never_cut_for_company() -> None:
    target = Counting(1)
    engine = Engine(target, prefill_rows=6)
    heard = {
        engine.add(request((1,) * length, NoDrafter(), max_tokens=1)): Heard()
        for length in (4, 3, 5, 1)
    }
    run_out(engine, heard)
    chunks = [[len(i.tokens) for i in work if not i.logits] for work in target.passes]
    assert [chunk for chunk in chunks if chunk] == [[3, 2], [4]]


# ---------------------------------------------------------------- faults


class Planted(Exception):
    """A plug-in's own."""


class Broken(Line):
    """Its session fails in one of its methods, the second time."""

    where = "propose"

    def open(self, target: Any, capacity: int) -> Any:
        session = super().open(target, capacity)
        inner, calls = getattr(session, self.where), []

        def failing(*given: Any) -> Any:
            calls.append(given)
            if len(calls) > 1:
                raise Planted(self.where)
            return inner(*given)

        setattr(session, self.where, failing)
        return session


def line() -> Line:
    return Line(lambda text, _, k: [0] * k)


def broken(where: str) -> Request:
    def fails(tokens: Sequence[int], *_: Any) -> Any:
        if where == "stop rule" and len(tokens) > 2:
            raise Planted
        return None

    def processes(tokens: Any, logits: Any) -> Any:
        if len(tokens) > 5:
            raise Planted
        return logits

    if where in ("propose", "observe"):
        drafter = Broken(lambda text, _, k: [0] * k)
        drafter = type("Failing", (Broken,), {"where": where})(drafter.rule)
        return request((1, 2, 3), drafter)
    options: dict[str, Any] = {
        "stop rule": {"stop_rules": [fails]},
        "processor": {"processors": [processes]},
    }[where]
    return request((1, 2, 3), NgramDrafter(), **options)


@pytest.mark.parametrize("where", ["propose", "observe", "stop rule", "processor"])
def test_a_fault_of_one_ends_that_one_alone(where: str) -> None:
    target = Counting(1)
    engine = Engine(target)
    asked = [request((1, 2), line(), 1), broken(where), request((3, 4, 5), NgramDrafter(), 2)]
    heard = {engine.add(fresh(one)): Heard() for one in asked}
    run_out(engine, heard)
    end = heard[1].end
    assert isinstance(end, Failed)
    assert isinstance(end.error, Planted)
    assert end.num_tokens == len(heard[1].tokens)
    assert to_json(end)["error"].startswith("Planted")
    for number in (0, 2):
        assert heard[number].tokens == alone(target, asked[number]).tokens
        assert isinstance(heard[number].end, Finished)
    assert not target.open_slots
    with pytest.raises(Planted):
        list(decode(target, [broken(where)]))
    assert not target.open_slots


class Poisoned(Counting):
    """A pass fails where one slot is in it."""

    poison: Any = None

    def score(self, work: Sequence[Work]) -> list[Scores]:
        if any(item.slot is self.poison for item in work):
            raise Planted
        return super().score(work)


@pytest.mark.parametrize("whose", ["target", "draft"])
def test_a_pass_that_fails_is_the_fault_of_those_that_fail_alone(whose: str) -> None:
    target, draft = Poisoned(1), Poisoned(2)
    engine = Engine(target)
    asked = [request((1, 2, number), ModelDrafter(draft), number) for number in range(3)]
    heard = {engine.add(fresh(one)): Heard() for one in asked}
    for _ in range(2):
        for event in engine.step():
            heard[event.id].take(event)
    model = target if whose == "target" else draft
    model.poison = model.open_slots[1]
    run_out(engine, heard)
    model.poison = None
    assert isinstance(heard[1].end, Failed)
    assert isinstance(heard[1].end.error, Planted)
    for number in (0, 2):
        assert heard[number].tokens == alone(target, asked[number]).tokens
    assert not target.open_slots
    assert not draft.open_slots


def test_bad_requests_are_refused_at_arrival_and_harm_nobody() -> None:
    target = TableTarget(markov(VOCAB, 1)._law, vocab_size=VOCAB, max_length=20)
    engine = Engine(target)
    number = engine.add(request((1, 2), NgramDrafter()))
    with pytest.raises(InvalidInput, match="prompt is empty"):
        engine.add(request((), NgramDrafter()))
    with pytest.raises(ContextOverflow, match="shorten the prompt"):
        engine.add(request((1,) * 20, NgramDrafter()))
    heard = {number: Heard()}
    run_out(engine, heard)
    assert heard[number].tokens == alone(target, request((1, 2), NgramDrafter())).tokens


@pytest.mark.parametrize("how", ["cancel", "close", "fault"])
def test_a_slot_of_the_callers_is_left_at_what_was_emitted(how: str) -> None:
    target = Counting(1)
    slot = target.open(40)
    engine = Engine(target)
    asked = request((1, 2, 3), ModelDrafter(Counting(2)), slot=slot, max_tokens=30)
    if how == "fault":
        asked = replace(broken("observe"), slot=slot, max_tokens=30)
    number = engine.add(asked)
    heard = {number: Heard()}
    for _ in range(4):
        for event in engine.step():
            heard[event.id].take(event)
    if how == "cancel":
        assert engine.cancel(number)
    elif how == "close":
        engine.close()
    assert slot.tokens == [1, 2, 3, *heard[number].tokens][:-1]
    assert target.open_slots == [slot]
    assert not engine.is_busy
    assert not engine.cancel(number)


def test_a_request_may_be_cancelled_from_inside_a_step() -> None:
    target = Counting(1)
    engine = Engine(target)

    def stop(tokens: Sequence[int], above: int) -> None:
        engine.cancel(1)

    heard = {0: Heard(), 1: Heard()}
    engine.add(request((1, 2), NgramDrafter(), stop_rules=[stop]))
    engine.add(request((1, 2), NgramDrafter()))
    run_out(engine, heard)
    assert isinstance(heard[0].end, Finished)
    assert heard[1].end is None
    assert not heard[1].tokens
    assert not target.open_slots


# ---------------------------------------------------------------- drafts in company


@pytest.mark.parametrize("kind", ["model", "tree"])
def test_a_batch_takes_the_draft_passes_of_one_sequence(kind: str) -> None:
    target, draft = Counting(1), Counting(2)
    make = {"model": ModelDrafter, "tree": lambda d: TreeDrafter(d, max_nodes=6, top_k=2)}[kind]
    engine = Engine(target)
    for number in range(4):
        engine.add(
            request((number, 2, 3), make(draft), number, params=SamplingParams(), max_tokens=8)
        )
    engine.step()
    assert not draft.passes
    engine.step()
    # One for each of the three tokens on a path, as for one sequence.
    assert [len(work) for work in draft.passes] == [4, 4, 4]


def test_batched_drafts_are_those_of_one_by_one_with_a_real_model() -> None:
    """Tokens of four requests with model and tree drafters on tiny float32 models."""
    target = CachedTarget(HFDecoder(build("llama")))
    draft = CachedTarget(HFDecoder(build("llama", num_hidden_layers=1)))
    asked = [
        request(
            tokens_of(5 + 3 * n, n),
            ModelDrafter(draft) if n % 2 else TreeDrafter(draft, max_nodes=8),
            n,
            max_tokens=20,
        )
        for n in range(4)
    ]
    engine = Engine(target, prefill_rows=8)
    heard = {engine.add(fresh(one)): Heard() for one in asked}
    run_out(engine, heard)
    for number, one in enumerate(asked):
        expected = alone(target, one)
        assert heard[number].tokens == expected.tokens
        assert [r.num_draft_tokens for r in heard[number].rounds] == [
            r.num_draft_tokens for r in expected.rounds
        ]


def test_a_draft_model_reads_a_long_text_in_chunks_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.drafting.model.READ_ROWS", 4)
    target, draft = Counting(1), Counting(2)
    engine = Engine(target)
    heard = {engine.add(request((1, 2), NgramDrafter(), max_tokens=40)): Heard()}
    for event in engine.step() + engine.step():
        heard[event.id].take(event)
    long = request(tuple(n % VOCAB for n in range(19)), ModelDrafter(draft), 1)
    heard[engine.add(fresh(long))] = Heard()
    engine.step()
    for chunks in range(1, 5):
        before = len(heard[0].rounds)
        for event in engine.step():
            heard[event.id].take(event)
        assert len(draft.passes) == chunks
        assert len(heard[0].rounds) == before + 1
    run_out(engine, heard)
    monkeypatch.undo()
    assert heard[1].tokens == alone(target, long).tokens


def test_a_proposal_can_be_driven_by_itself() -> None:
    assert drive(Draft((1, 2))).tokens == (1, 2)
