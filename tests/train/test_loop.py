"""The loop: the same numbers whether it was broken off or not, and an end in time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline.economics import stats
from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput, NoSpace
from paceline.train import loop as module
from paceline.train import store
from paceline.train.data import Dataset
from paceline.train.loop import PROBED_STEPS, Plan, Trainer, learning_rate
from paceline.train.progress import PATIENCE, Progress
from tests.train import languages
from tests.train.test_medusa import objective

PLAN = Plan(epochs=6, batch_tokens=150, learning_rate=0.05, measured=6, seed=3)


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return languages.dataset(tmp_path / "data", 40)


def trainer(data: Dataset, folder: Path, plan: Plan = PLAN, **settings: object) -> Trainer:
    folder.mkdir(exist_ok=True)
    return Trainer(objective(shared=False), data, plan, folder / "state", **settings)  # type: ignore[arg-type]


def after(count: int) -> Callable[[], bool]:
    asked = iter(range(1, 10**6))
    return lambda: next(asked) >= count


def test_a_run_that_was_stopped_gives_the_same_numbers(data: Dataset, tmp_path: Path) -> None:
    whole = trainer(data, tmp_path / "whole")
    assert whole.run() == "done"
    folder = tmp_path / "parts"
    for stop in (1, 7, 2):
        assert trainer(data, folder).run(stops=after(stop)) == "stopped"
    parts = trainer(data, folder)
    assert parts.progress.step == 10
    assert parts.run() == "done"
    assert parts.progress.curve == whole.progress.curve
    assert parts.progress.points == whole.progress.points
    assert parts.progress.tokens == whole.progress.tokens
    assert len(parts.progress.curve) == parts.progress.num_steps == 30
    for name, value in parts.parameters.items():
        assert torch.equal(value, whole.parameters[name])


class Killed(Exception):
    """The process is gone, in the middle of a step."""


def test_a_run_that_was_killed_goes_on_from_its_last_state(data: Dataset, tmp_path: Path) -> None:
    whole = trainer(data, tmp_path / "whole")
    whole.run()
    killed = trainer(data, tmp_path / "killed")
    backward = killed.objective.backward
    left = iter(range(100))

    def kill(batch: object) -> list[float]:
        losses = backward(batch)  # type: ignore[arg-type]
        if next(left) == 13:
            raise Killed
        return losses

    killed.objective.backward = kill  # type: ignore[method-assign]
    with pytest.raises(Killed):
        killed.run(keep_every=0.0)
    again = trainer(data, tmp_path / "killed")
    assert again.progress.step == 13
    again.run()
    assert again.progress.curve == whole.progress.curve
    assert again.progress.points == whole.progress.points


def test_what_ended_is_not_trained_on(data: Dataset, tmp_path: Path) -> None:
    one = trainer(data, tmp_path / "run")
    one.run()
    again = trainer(data, tmp_path / "run")
    assert again.run() == "done"
    assert again.progress.curve == one.progress.curve
    assert again.progress.points == one.progress.points


def test_the_language_is_learned(data: Dataset, tmp_path: Path) -> None:
    run = trainer(data, tmp_path / "run")
    run.run()
    assert run.progress.best is not None
    rates = stats.conditional_acceptance_rate_per_position(run.progress.best.counts)
    assert rates == (1.0, 1.0, 1.0)
    assert run.objective.replay([data[n] for n in data.held_out]) == run.progress.best.counts


def test_the_best_is_kept_and_training_ends_where_nothing_better_comes(
    data: Dataset, tmp_path: Path
) -> None:
    """Acceptance by a script: two accepted tokens, three, then a plateau, then fewer."""
    plan = Plan(30, 150, 0.05, measured=150, seed=3)
    run = trainer(data, tmp_path / "run", plan)
    script = [(3, 2), (3, 3), *[(3, 3)] * 20, *[(3, 1)] * 100]
    seen: list[dict[str, Tensor]] = []

    def replay(texts: object) -> AcceptanceCounts:
        seen.append({name: value.detach().clone() for name, value in run.parameters.items()})
        return AcceptanceCounts.from_rounds([script[len(seen) - 1]])

    run.objective.replay = replay  # type: ignore[method-assign]
    assert run.run() == "stale"
    assert run.progress.step == len(seen) == 22 + PATIENCE
    assert run.progress.best == run.progress.points[1]
    for name, value in run.parameters.items():
        assert torch.equal(value, seen[1][name])
        assert not torch.equal(value, seen[2][name])
    assert trainer(data, tmp_path / "run", plan).run() == "stale"


class Ticks:
    """A clock on which every look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_the_steps_are_planned_to_fit_into_the_time(data: Dataset, tmp_path: Path) -> None:
    clock = Ticks()
    plan = Plan(200, 150, 0.05, measured=2, seed=3)
    run = trainer(data, tmp_path / "run", plan, clock=clock)
    assert run.run(deadline=200.0, keep_every=math.inf) in ("done", "time")
    planned = run.progress.num_steps
    assert planned is not None
    assert PROBED_STEPS < planned < 100
    assert run.progress.step >= planned - 2
    assert clock.now < 210
    # The same number holds after a break: the learning rate follows from it.
    again = trainer(data, tmp_path / "run", plan, clock=Ticks())
    assert again.progress.num_steps == planned


def test_the_time_may_be_over_before_the_plan(data: Dataset, tmp_path: Path) -> None:
    run = trainer(data, tmp_path / "run", clock=Ticks())
    assert run.run(deadline=8.0) == "time"
    assert 1 <= run.progress.step < PROBED_STEPS
    assert len(run.progress.points) == 1
    again = trainer(data, tmp_path / "run")
    assert again.run() == "done"


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(step, 100, 1.0) for step in range(100)]
    assert rates.index(max(rates)) == module.WARM_UP_STEPS - 1
    assert rates[-1] == pytest.approx(0.0, abs=1e-9)
    assert learning_rate(5, None, 1.0) == learning_rate(5, 100, 1.0)


def test_a_full_disk_leaves_the_last_state(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(data, tmp_path / "run")
    run.run(stops=after(4))
    before = run.file.read_bytes()
    real = module.save_file

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(NoSpace, match="go on with --resume"):
        trainer(data, tmp_path / "run").run(keep_every=0.0)
    assert run.file.read_bytes() == before
    assert [path.name for path in run.file.parent.iterdir()] == ["state"]
    monkeypatch.setattr(module, "save_file", real)
    assert trainer(data, tmp_path / "run").progress.step == 4
    monkeypatch.setattr(store, "SPARE_BYTES", 10**18)
    with pytest.raises(NoSpace):
        trainer(data, tmp_path / "run").run()


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_a_damaged_state_is_refused(data: Dataset, tmp_path: Path, content: bytes) -> None:
    run = trainer(data, tmp_path / "run")
    run.run(stops=after(2))
    run.file.write_bytes(content)
    with pytest.raises(InvalidInput, match="is damaged or belongs to another drafter"):
        trainer(data, tmp_path / "run")


def test_the_state_of_another_drafter_is_refused(data: Dataset, tmp_path: Path) -> None:
    trainer(data, tmp_path / "run").run(stops=after(2))
    with pytest.raises(InvalidInput, match="belongs to another drafter"):
        Trainer(objective(num_heads=4), data, PLAN, tmp_path / "run" / "state")


def test_progress_survives_json() -> None:
    progress = Progress(step=3, num_steps=9, curve=[1.0, 0.5], pending=[[1.0, 2.0]])
    assert Progress.from_json(progress.to_json()) == progress
