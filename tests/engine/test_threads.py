"""Fewer threads on a busy machine, against a scripted machine: no clock and no other process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline.controllers.fixed import FixedController
from paceline.core.protocols import Work
from paceline.core.target import Scores
from paceline.drafters.ngram import NgramDrafter
from paceline.engine import gather, loop
from paceline.engine import threads as module
from paceline.engine.loop import Request
from paceline.engine.threads import Threads, Usage, usage
from paceline.sampling.noise import SeededNoise
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier
from tests.rigged import markov

ROUND = 0.04


class Machine:
    """Cores that others take part of, and the threads of torch.

    Args:
        cores: of the machine; as many threads at the start.
        others: how many of them other processes want, by the time.
        polite: whether the others give way, and take what is idle alone.
    """

    def __init__(
        self, cores: int, others: Callable[[float], int] = lambda now: 0, *, polite: bool = False
    ) -> None:
        self.cores, self.others, self.polite = cores, others, polite
        self.now = self.waited = self.idle = 0.0
        self.count = cores
        self.log: list[tuple[float, int]] = []

    def get_num_threads(self) -> int:
        return self.count

    def set_num_threads(self, count: int) -> None:
        self.count = count

    def look(self) -> Usage:
        return Usage({"1": self.waited}, self.idle)

    def work(self, seconds: float = ROUND) -> None:
        """Where there are more threads than cores, those that are too many share one by halves."""
        self.log.append((self.now, self.count))
        others = self.others(self.now)
        too_many = max(self.count + others - self.cores, 0)
        self.waited += seconds * (0.0 if self.polite else 0.8 * too_many)
        self.idle += seconds * max(self.cores - self.count - others, 0)
        self.now += seconds

    def counts(self, after: float, before: float = float("inf")) -> list[int]:
        return [count for now, count in self.log if after <= now < before]

    def share(self, count: int, after: float, before: float) -> float:
        """The share of rounds in so many threads: now and then others are tried."""
        found = self.counts(after, before)
        return found.count(count) / len(found)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], Threads]:
    def make(machine: Machine) -> Threads:
        monkeypatch.setattr(module, "torch", machine)
        return Threads(machine.look, lambda: machine.now)

    return make


def decode(threads: Threads, machine: Machine, until: float) -> None:
    while machine.now < until:
        with threads.decoding():
            machine.work()
        assert machine.count == machine.cores  # for whoever runs in between


def test_alone_on_a_machine_all_threads_run(on) -> None:
    machine = Machine(2)
    decode(on(machine), machine, 10)
    assert set(machine.counts(0)) == {2}


def test_a_core_that_is_taken_is_left_to_others_and_used_again_once_it_is_free(on) -> None:
    machine = Machine(2, lambda now: int(2 <= now < 8.2))
    decode(on(machine), machine, 20)
    assert set(machine.counts(0, 2)) == {2}
    assert machine.share(1, 2.4, 8.2) > 0.9
    assert set(machine.counts(8.2 + 0.5)) == {2}


def test_a_core_that_stays_taken_is_tried_ever_more_rarely(on) -> None:
    machine = Machine(2, lambda now: 1)
    decode(on(machine), machine, 600)
    early, late = machine.counts(1, 100), machine.counts(100)
    assert early.count(2) < 0.05 * len(early)
    assert late.count(2) < 0.01 * len(late)


def test_a_core_that_comes_and_goes_is_left_to_others_mostly(on) -> None:
    """Taken for every other half second: it is seen idle, and taken again soon."""
    machine = Machine(2, lambda now: int(now % 1 < 0.5))
    decode(on(machine), machine, 100)
    assert machine.counts(20).count(2) < 0.05 * len(machine.counts(20))


def test_a_process_that_gives_way_does_not_keep_a_core_for_long(on) -> None:
    """Nobody is seen idle, but none of the own threads waits."""
    machine = Machine(2, lambda now: 1)
    threads = on(machine)
    decode(threads, machine, 1)
    assert threads.taken == 1
    machine.polite = True
    decode(threads, machine, 40)
    assert set(machine.counts(6)) == {2}


def test_of_many_cores_as_many_are_left_as_are_taken(on) -> None:
    machine = Machine(16, lambda now: 5 if now < 10 else 0)
    decode(on(machine), machine, 30)
    assert machine.share(11, 2, 10) > 0.85
    assert set(machine.counts(13)) == {16}


def test_one_thread_remains_whatever_others_take(on) -> None:
    machine = Machine(4, lambda now: 8)
    decode(on(machine), machine, 10)
    assert machine.share(1, 2, 10) > 0.85


def test_what_was_found_holds_for_the_next_answer(on) -> None:
    machine = Machine(2, lambda now: 1)
    threads = on(machine)
    decode(threads, machine, 3)
    machine.now += 5  # nothing is decoded meanwhile, and what others do then is not counted
    machine.waited += 50
    decode(threads, machine, 10)
    assert set(machine.counts(8, 8.1)) == {1}  # from the first round on


def test_what_waits_while_nothing_is_decoded_does_not_count(on) -> None:
    machine = Machine(2)
    threads = on(machine)
    for _ in range(50):
        decode(threads, machine, machine.now + 0.2)
        machine.now += 1
        machine.waited += 10
    assert set(machine.counts(0)) == {2}


def test_all_threads_run_where_they_are_asked_for_and_after_an_error(on) -> None:
    machine = Machine(2, lambda now: 1)
    threads = on(machine)
    decode(threads, machine, 1)
    counts = []

    def work() -> None:
        counts.append(machine.count)
        with threads.decoding(), threads.all():
            counts.append(machine.count)
        counts.append(machine.count)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), threads.decoding():
        work()
    assert counts == [1, 2, 1]
    assert machine.count == 2
    with threads.all():
        assert machine.count == 2


def test_fewer_threads_can_be_refused(on) -> None:
    machine = Machine(2, lambda now: 1)
    threads = on(machine)
    threads.gives_way = False
    decode(threads, machine, 3)
    assert set(machine.counts(0)) == {2}


def test_where_the_system_counts_nothing_all_threads_run(monkeypatch) -> None:
    machine, asked = Machine(2, lambda now: 1), []
    monkeypatch.setattr(module, "torch", machine)
    threads = Threads(lambda: asked.append(1), lambda: machine.now)
    decode(threads, machine, 3)
    assert set(machine.counts(0)) == {2}
    assert len(asked) == 1


def test_threads_that_come_and_go_are_not_counted() -> None:
    before, now = Usage({"1": 1.0, "2": 5.0}, 3.0), Usage({"1": 1.5, "3": 9.0}, 4.0)
    assert now.since(before) == (0.5, 1.0)


def test_what_linux_writes_is_read(tmp_path, monkeypatch) -> None:
    tasks, stat = tmp_path / "task", tmp_path / "stat"
    for name, waited in (("7", 1_500_000_000), ("8", 250_000_000)):
        (tasks / name).mkdir(parents=True)
        (tasks / name / "schedstat").write_text(f"99 {waited} 3\n")
    (tasks / "9").mkdir()  # it has ended
    stat.write_text(
        "cpu  9 9 9 99999 9 0 0 0 0 0\ncpu0 1 0 1 300 50 0 0 0 0 0\ncpu1 1 0 1 7000 1 0 0 0 0 0\n"
        "cpu10 1 0 1 100 100 0 0 0 0 0\nintr 5\n"
    )
    monkeypatch.setattr(module, "_TASKS", tasks)
    monkeypatch.setattr(module, "_STAT", stat)
    system = SimpleNamespace(
        listdir=lambda path: ["7", "8", "9"],
        sched_getaffinity=lambda _: {0, 10},
        sysconf=lambda _: 100,
    )
    monkeypatch.setattr(module, "os", system)
    assert usage() == Usage({"7": 1.5, "8": 0.25}, 5.5)
    stat.write_text("unreadable")
    assert usage() == Usage({"7": 1.5, "8": 0.25}, 0.0)
    monkeypatch.setattr(module, "_TASKS", tmp_path / "none")
    system.listdir = lambda path: (_ for _ in ()).throw(FileNotFoundError(path))
    assert usage() is None


@pytest.mark.parametrize("invariant", [False, True])
def test_prompts_have_all_threads_and_rounds_what_is_left(on, monkeypatch, invariant) -> None:
    """In invariant mode all passes have all threads, since nothing may round differently there."""
    machine = Machine(2)
    threads = on(machine)
    threads.taken = 1
    monkeypatch.setattr(loop, "THREADS", threads)
    monkeypatch.setattr(gather, "THREADS", threads)
    score, seen = TableTarget.score, []

    def recording(target: TableTarget, work: Sequence[Work]) -> list[Scores]:
        seen.append((work[0].logits, machine.count))
        return score(target, work)

    monkeypatch.setattr(TableTarget, "score", recording)
    target = markov(12, 0)
    target.info = replace(target.info, invariant=invariant)
    request = Request(
        prompt=(3, 1, 4, 1, 5),
        drafter=NgramDrafter(),
        controller=FixedController(3),
        verifier=TokenVerifier(),
        noise=SeededNoise(0),
        max_tokens=8,
    )
    counts = [machine.count for _ in loop.decode(target, [request])]
    assert set(seen) == {(False, 2), (True, 2 if invariant else 1)}
    assert set(counts) == {2}  # for the code that reads the events
