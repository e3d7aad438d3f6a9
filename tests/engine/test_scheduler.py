"""Who waits, who comes first, whose time is over; and that whatever leaves, leaves nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paceline.core.events import Failed, Finished, FinishReason, to_json
from paceline.core.protocols import Drafter
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import Engine
from paceline.engine.scheduler import Load
from paceline.errors import InvalidInput, QueueFull
from tests.company import VOCAB, Counting, Heard, alone, drafters, fresh, request, run_out
from tests.rigged import Line


class Clock:
    """Stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def one(number: int = 0, **options: Any) -> Any:
    return request((1, 2, number), NoDrafter(), number, **options)


# ---------------------------------------------------------------- time limits


def test_a_time_limit_ends_the_answer_with_what_it_has() -> None:
    target, clock = Counting(1), Clock()
    engine = Engine(target, clock=clock)
    asked = [one(0, timeout=5, max_tokens=40), one(1, timeout=50, max_tokens=8)]
    heard = {engine.add(fresh(item)): Heard() for item in asked}
    for _ in range(4):
        for event in engine.step():
            heard[event.id].take(event)
    before = heard[0].tokens
    assert before
    clock.now += 5
    for event in engine.step():
        heard[event.id].take(event)
    end = heard[0].end
    assert end == Finished(id=0, reason=FinishReason.TIMEOUT, num_tokens=len(before))
    assert to_json(end)["reason"] == "timeout"
    assert heard[0].tokens == before == alone(target, asked[0]).tokens[: len(before)]
    run_out(engine, heard)
    assert heard[1].tokens == alone(target, asked[1]).tokens
    assert not target.open_slots


def test_time_in_the_queue_counts() -> None:
    target, clock = Counting(1), Clock()
    engine = Engine(target, max_sequences=1, clock=clock)
    heard = {engine.add(one(0, max_tokens=9)): Heard(), engine.add(one(1, timeout=2)): Heard()}
    engine.step()
    clock.now += 3
    for event in engine.step():
        heard[event.id].take(event)
    assert heard[1].end == Finished(id=1, reason=FinishReason.TIMEOUT, num_tokens=0)
    assert engine.load == Load(num_running=1)


def test_a_time_limit_ends_a_prompt_that_is_being_read() -> None:
    target, clock = Counting(1), Clock()
    engine = Engine(target, prefill_rows=2, clock=clock)
    heard = {engine.add(request((1,) * 12, NoDrafter(), timeout=1)): Heard()}
    engine.step()
    clock.now += 2
    run_out(engine, heard)
    assert heard[0].end == Finished(id=0, reason=FinishReason.TIMEOUT, num_tokens=0)
    assert not target.open_slots


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), "5", True])
def test_a_time_limit_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidInput, match=r"timeout must be a .*seconds above 0"):
        Engine(Counting(1)).add(one(timeout=timeout))


# ---------------------------------------------------------------- the queue


def test_those_that_wait_come_in_their_order_within_each_priority() -> None:
    """Lower numbers first; one that runs already is not interrupted."""
    engine = Engine(Counting(1), max_sequences=1)
    ends: list[int] = []
    for number, priority in enumerate([0, 5, 0, -1, 5, -1]):
        engine.add(one(number, priority=priority, max_tokens=3))
        if not number:
            engine.step()
    while engine.is_busy:
        ends += [event.id for event in engine.step() if isinstance(event, Finished)]
    assert ends == [0, 3, 5, 2, 1, 4]


def test_more_than_may_wait_are_refused_and_those_whose_turn_comes_do_not_count() -> None:
    engine = Engine(Counting(1), max_sequences=2, max_waiting=1)
    for number in range(3):
        engine.add(one(number))
    with pytest.raises(QueueFull, match="0 requests are decoded and 3 wait"):
        engine.add(one(3))
    engine.step()
    assert engine.load == Load(num_running=2, num_waiting=1)
    with pytest.raises(QueueFull, match="send this one again later"):
        engine.add(one(4))
    assert engine.cancel(2)
    assert engine.add(one(5)) == 3, "a refused request takes no id"


@pytest.mark.parametrize("name", ["prefill_rows", "max_sequences", "max_waiting"])
def test_a_limit_that_is_none_is_refused(name: str) -> None:
    limits: dict[str, Any] = {name: -1}
    with pytest.raises(InvalidInput, match=f"{name} must be at least"):
        Engine(Counting(1), **limits)


# ---------------------------------------------------------------- storms


class Closing(Line):
    """Counts what is open; may fail to close."""

    open_sessions = 0
    fails = False

    def open(self, target: Any, capacity: int) -> Any:
        session = super().open(target, capacity)
        Closing.open_sessions += 1
        inner = session.close

        def close() -> None:
            Closing.open_sessions -= 1
            inner()
            if self.fails:
                raise RuntimeError("would not close")

        session.close = close  # type: ignore[method-assign]
        return session


class ClosingBadly(Closing):
    fails = True


@pytest.mark.parametrize("seed", range(12))
def test_after_a_storm_of_cancels_and_time_limits_nothing_is_left(seed: int) -> None:
    """Slots of both models, sessions and counts are as in the beginning, whenever one leaves."""
    chance = random.Random(seed)
    target, draft, clock = Counting(1), Counting(2), Clock()
    kinds: list[Drafter] = [*drafters(draft), Closing(lambda text, _, k: [0] * k)]
    engine = Engine(target, prefill_rows=3, max_sequences=3, max_waiting=4, clock=clock)
    asked, heard, cancelled = {}, {}, set()
    refused = 0
    for _ in range(60):
        clock.now += chance.random()
        if chance.random() < 0.5:
            item = request(
                tuple(chance.randrange(VOCAB) for _ in range(chance.randrange(1, 12))),
                chance.choice(kinds),
                chance.randrange(99),
                max_tokens=chance.randrange(0, 15),
                timeout=chance.choice([None, 2.0, 4.0]),
                priority=chance.randrange(3),
            )
            try:
                number = engine.add(fresh(item))
            except QueueFull:
                refused += 1
            else:
                asked[number], heard[number] = item, Heard()
        live = [number for number in heard if heard[number].end is None and number not in cancelled]
        if live and chance.random() < 0.2:
            victim = chance.choice(live)
            assert engine.cancel(victim)
            cancelled.add(victim)
            assert not engine.cancel(victim)
        for event in engine.step():
            assert event.id not in cancelled
            heard[event.id].take(event)
        running, waiting, *_ = engine.load
        assert running <= 3
        assert running + waiting == sum(
            heard[number].end is None and number not in cancelled for number in heard
        )
        assert len(target.open_slots) == running
    run_out(engine, heard)
    assert engine.load == Load()
    assert not target.open_slots
    assert not draft.open_slots
    assert Closing.open_sessions == 0
    for number, item in asked.items():
        expected = alone(target, item).tokens
        assert heard[number].tokens == expected[: len(heard[number].tokens)]
        end = heard[number].end
        assert (end is None) == (number in cancelled)
        if isinstance(end, Finished) and end.reason is not FinishReason.TIMEOUT:
            assert heard[number].tokens == expected
    assert cancelled


def test_one_that_does_not_close_keeps_no_other_open() -> None:
    target = Counting(1)
    engine = Engine(target)
    kinds = [ClosingBadly(lambda text, _, k: [0] * k), NoDrafter(), NoDrafter()]
    heard = {engine.add(request((1, 2), kind)): Heard() for kind in kinds}
    engine.step()

    def cancel_all(tokens: Any, above: int) -> None:
        for number in range(3):
            engine.cancel(number)

    heard[engine.add(one(3, stop_rules=[cancel_all]))] = Heard()
    engine.step()
    with pytest.raises(RuntimeError, match="would not close"):
        engine.step()
    assert engine.load == Load(num_running=1)
    assert len(target.open_slots) == 1
    assert Closing.open_sessions == 0
    run_out(engine, heard)
    assert isinstance(heard[3].end, Finished)
    assert not isinstance(heard[3].end, Failed)
