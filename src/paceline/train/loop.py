"""The training loop: plain torch, on from any step with the same numbers.

What an interrupted run needs to go on as if nothing had happened: parameters, the moments of the
optimizer, the number of the step (from which the order of the data and the learning rate follow),
and what was measured so far. All of it stands in one file, written whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.errors import InvalidInput
from paceline.train.data import Dataset, batches
from paceline.train.objective import Objective
from paceline.train.progress import Point, Progress
from paceline.train.store import require_space, write_whole

WARM_UP_STEPS = 20
"""Steps in which the learning rate rises."""

PROBED_STEPS = 8
"""Steps that are timed to find how many fit into what is left of the time."""

BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train.

    Args:
        epochs: passes over the training answers.
        batch_tokens: answer tokens of a step.
        learning_rate: the highest.
        clip: the largest norm of the gradient.
        measured: how often acceptance is measured over the run.
        seed: of the order.
    """

    epochs: int = 10
    batch_tokens: int = 512
    learning_rate: float = 1e-3
    clip: float = 1.0
    measured: int = 20
    seed: int = 0


def learning_rate(step: int, num_steps: int | None, highest: float) -> float:
    """The rate of a step, from 0: a linear rise, then half a cosine down to 0.

    >>> [round(learning_rate(step, 120, 1.0), 3) for step in (0, 19, 70, 119)]
    [0.05, 1.0, 0.484, 0.0]
    """
    if step < WARM_UP_STEPS or num_steps is None:
        return highest * min(1.0, (step + 1) / WARM_UP_STEPS)
    done = (step + 1 - WARM_UP_STEPS) / max(1, num_steps - WARM_UP_STEPS)
    return highest * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class Trainer:
    """Trains an objective on a data set.

    Args:
        objective: what is trained.
        data: captured sequences.
        plan: how.
        file: where the state is kept; what stands there is gone on from.
        clock: seconds.

    Raises:
        InvalidInput: the file is damaged, or of another drafter.
    """

    def __init__(
        self,
        objective: Objective,
        data: Dataset,
        plan: Plan,
        file: Path,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.objective, self.data, self.plan, self.file = objective, data, plan, file
        self.clock = clock
        self.progress = Progress()
        self.parameters = dict(objective.module.named_parameters())
        self._optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=plan.learning_rate, betas=BETAS, weight_decay=0.0
        )
        self.best = {name: value.detach().clone() for name, value in self.parameters.items()}
        self._held_out = [data[number] for number in data.held_out]
        if file.exists():
            self._read()

    @property
    def num_bytes(self) -> int:
        """What the state takes on the disk: parameters, two moments and the best parameters."""
        return 16 * sum(value.numel() for value in self.parameters.values())

    def run(
        self,
        *,
        deadline: float | None = None,
        stops: Callable[[], bool] = lambda: False,
        told: Callable[[Progress], object] = lambda progress: None,
        keep_every: float = 30.0,
    ) -> str:
        """Train on, and leave the best parameters in the module; says why it ended.

        One that was stopped goes on from the state on the disk.

        Args:
            deadline: when to end, by the clock; the number of steps is planned to fit.
            stops: asked after each step.
            told: called after each step.
            keep_every: seconds between two states on the disk.

        Returns:
            "done", "time", "stale" (it has been getting worse for a while) or "stopped".

        Raises:
            NoSpace: the disk is full; the last state is as it was.
        """
        require_space(self.file.parent, 2 * self.num_bytes)
        progress, start = self.progress, self.clock()
        kept, before, first = start, progress.seconds, progress.step
        most = self.num_steps
        reason = "done"
        for numbers in self._batches_from(progress.step):
            taken = progress.step - first
            if progress.num_steps is None and (deadline is None or taken >= PROBED_STEPS):
                self._plan(most, deadline, (self.clock() - start) / max(1, taken))
            if progress.step >= (progress.num_steps or most):
                break
            if progress.is_stale:
                reason = "stale"
                break
            self._step(numbers)
            if progress.num_steps is not None and self._is_measured(progress.step):
                self._measure()
            progress.seconds = before + self.clock() - start
            told(progress)
            if stops():
                reason = "stopped"
                break
            if deadline is not None and self.clock() >= deadline:
                reason = "time"
                break
            if self.clock() - kept >= keep_every:
                self.keep()
                kept = self.clock()
        if reason != "stopped" and (not progress.points or progress.pending):
            self._measure()
        self.keep()
        self._set(self.best)
        return reason

    def keep(self) -> None:
        """Write the state.

        Raises:
            NoSpace: the disk is full; the last state is as it was.
        """
        metadata = {"format": "pt", "progress": json.dumps(self.progress.to_json())}
        tensors = dict(self._tensors())
        write_whole(self.file, lambda path: save_file(tensors, path, metadata=metadata))

    def _step(self, numbers: list[int]) -> None:
        progress, plan = self.progress, self.plan
        rate = learning_rate(progress.step, progress.num_steps, plan.learning_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        losses = self.objective.backward([self.data[number] for number in numbers])
        nn.utils.clip_grad_norm_(self.parameters.values(), plan.clip)
        self._optimizer.step()
        progress.step += 1
        progress.tokens += sum(map(self.data.num_answer_tokens, numbers))
        progress.curve.append(sum(losses) / len(losses))
        progress.pending.append(losses)

    def _measure(self) -> None:
        progress = self.progress
        columns = zip(*progress.pending, strict=True)
        means = [sum(column) / len(column) for column in columns]
        counts = self.objective.replay(self._held_out)
        before = progress.best
        progress.points.append(Point(progress.step, tuple(means), counts))
        progress.pending = []
        if before is None or progress.points[-1].length > before.length:
            self.best = {name: value.detach().clone() for name, value in self.parameters.items()}

    @cached_property
    def num_steps(self) -> int:
        """The steps of all epochs."""
        plan, epochs = self.plan, range(self.plan.epochs)
        counted = (batches(self.data, plan.batch_tokens, plan.seed, epoch) for epoch in epochs)
        return sum(1 for epoch in counted for _ in epoch)

    def _batches_from(self, step: int) -> Iterator[list[int]]:
        count = 0
        for epoch in range(self.plan.epochs):
            for numbers in batches(self.data, self.plan.batch_tokens, self.plan.seed, epoch):
                if count >= step:
                    yield numbers
                count += 1

    def _plan(self, most: int, deadline: float | None, seconds_per_step: float) -> None:
        """Fix the number of steps, once: the learning rate follows from it."""
        progress, fits = self.progress, most
        if deadline is not None and seconds_per_step > 0:
            start = self.clock()
            self.objective.replay(self._held_out)
            now = self.clock()
            room = deadline - now - (now - start) * self.plan.measured
            fits = progress.step + max(1, int(room / seconds_per_step))
        progress.num_steps = min(most, fits)

    def _is_measured(self, step: int) -> bool:
        """Whether acceptance is measured after a step: at equal distances."""
        num_steps, times = self.progress.num_steps or 1, self.plan.measured
        return step * times // num_steps > (step - 1) * times // num_steps

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.parameters.items():
            yield f"now.{name}", value.detach()
            yield f"best.{name}", self.best[name]
            state = self._optimizer.state.get(value, {})
            for moment in ("exp_avg", "exp_avg_sq"):
                if moment in state:
                    yield f"{moment}.{name}", state[moment]

    def _read(self) -> None:
        try:
            with safe_open(self.file, framework="pt") as file:
                progress = json.loads((file.metadata() or {})["progress"])
                # A copy: what is read lies in the file, which the next state replaces.
                found = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            self.progress = Progress.from_json(progress)
            self._set({name: found[f"now.{name}"] for name in self.parameters})
            self.best = {name: found[f"best.{name}"] for name in self.parameters}
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise InvalidInput(
                f"{self.file} is damaged or belongs to another drafter ({error}); remove it to "
                "train again on what was captured"
            ) from error
        for name, value in self.parameters.items():
            if f"exp_avg.{name}" in found:
                self._optimizer.state[value] = {
                    "step": torch.tensor(float(self.progress.step)),
                    "exp_avg": found[f"exp_avg.{name}"],
                    "exp_avg_sq": found[f"exp_avg_sq.{name}"],
                }

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])
