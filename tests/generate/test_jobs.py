"""Folding events into answers: the clocks. The texts are tested through the door."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from paceline.controllers.fixed import FixedController
from paceline.core.events import Event, Finished, FinishReason, Prefilled, Round
from paceline.drafters.none import NoDrafter
from paceline.engine.request import Request
from paceline.generate import jobs
from paceline.generate.jobs import Job
from paceline.generate.results import Chunk
from paceline.sampling.noise import SeededNoise
from paceline.verifiers.token import TokenVerifier


class Clock:
    """Time that passes only when a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(jobs, "perf_counter", clock)
    return clock


def job() -> Job:
    request = Request(
        prompt=[1],
        drafter=NoDrafter(),
        controller=FixedController(0),
        verifier=TokenVerifier(),
        noise=SeededNoise(0),
    )
    return Job(request, "law, path", 0, None)


def prefilled(index: int) -> Prefilled:
    return Prefilled(id=index, num_prompt_tokens=1, seconds=1.0)


def plain_round(index: int, number: int) -> Round:
    return Round(
        id=index,
        number=number,
        tokens=(5,),
        num_draft_tokens=0,
        num_accepted_tokens=0,
        max_path_length=0,
        draft_seconds=0.0,
        target_seconds=1.0,
        verify_seconds=0.0,
        num_sequences=2,
    )


def finished(index: int, num_tokens: int) -> Finished:
    return Finished(id=index, reason=FinishReason.LENGTH, num_tokens=num_tokens)


def test_a_late_arrival_restarts_no_clock_but_its_own(clock: Clock) -> None:
    def events() -> Iterator[Event]:
        clock.now += 3
        yield prefilled(0)
        clock.now += 1
        yield plain_round(0, 1)
        clock.now += 7
        yield prefilled(1)
        clock.now += 2
        yield plain_round(0, 2)
        yield plain_round(1, 1)
        yield finished(0, 2)
        yield finished(1, 1)

    first, second = jobs.finish(events(), [job(), job()], 0.0)
    assert first.decode_seconds == 1 + 7 + 2, "it waits for that prefill amid its answer"
    assert second.decode_seconds == 2


def test_no_clock_of_a_batch_runs_during_its_prefills(clock: Clock) -> None:
    def events() -> Iterator[Event]:
        clock.now += 3
        yield prefilled(0)
        clock.now += 7
        yield prefilled(1)
        for number in (1, 2):
            clock.now += 1
            yield plain_round(0, number)
            yield plain_round(1, number)
        yield finished(0, 2)
        clock.now += 2
        yield plain_round(1, 3)
        yield finished(1, 3)

    first, second = jobs.finish(events(), [job(), job()], 0.0)
    assert (first.decode_seconds, second.decode_seconds) == (2, 4)
    assert (first.tokens_per_second, second.tokens_per_second) == (1, 0.75)


def test_an_answer_that_ends_at_its_prefill_takes_no_time(clock: Clock) -> None:
    def events() -> Iterator[Event]:
        yield prefilled(0)
        clock.now += 1
        yield finished(0, 0)
        clock.now += 5
        yield prefilled(1)
        clock.now += 2
        yield plain_round(1, 1)
        yield finished(1, 1)

    first, second = jobs.finish(events(), [job(), job()], 0.0)
    assert (first.decode_seconds, first.tokens_per_second) == (0, None)
    assert second.decode_seconds == 2


def test_a_reader_of_a_stream_is_not_counted(clock: Clock) -> None:
    def events() -> Generator[Event]:
        clock.now += 4
        yield prefilled(0)
        for number in (1, 2):
            clock.now += 1
            yield plain_round(0, number)
        yield finished(0, 2)

    for item in jobs.stream(events(), job(), 0.0):
        if isinstance(item, Chunk):
            clock.now += 50
        else:
            assert item.decode_seconds == 2
            break
    else:
        pytest.fail("the answer did not come")
