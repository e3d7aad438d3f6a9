"""A run from the prompts to the drafter on the disk, on from wherever it was broken off."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel
from paceline.models.finding import native_dtype
from paceline.train.answers import Answering, fill, own_sampler
from paceline.train.data import Dataset
from paceline.train.fixed import Fixed, check_data, check_states, fix
from paceline.train.loop import Trainer
from paceline.train.meter import Meter, Progressed, Tell
from paceline.train.objective import Objective
from paceline.train.progress import Progress
from paceline.train.prompts import Filter, GivenPrompts, OwnPrompts, Prompt
from paceline.train.result import Trained
from paceline.train.settings import RunFolder, Settings
from paceline.train.store import Store, bytes_per_token, require_space, write_whole
from paceline.train.target_rows import hidden_size

CAPTURE_SHARE = 0.55
"""The share of a run's time after which capture ends."""

TRAINING_SHARE = 0.95
"""The share after which training ends; the rest is for measuring and writing."""

ROOM_FOR_ANSWER = 16
"""A prompt is too long where it leaves less room than this in the context."""

STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Budget:
    """A run's time.

    Args:
        start: when it began, by the clock of the run.
        seconds: how long it may take; None is without end.
    """

    start: float
    seconds: float | None

    def after(self, share: float) -> float | None:
        """When a share of it is over."""
        return None if self.seconds is None else self.start + share * self.seconds


def train(
    settings: Settings,
    folder: RunFolder,
    load: Callable[[], LanguageModel],
    *,
    given: Callable[[LanguageModel], Sequence[Prompt]] | None = None,
    excluded: Sequence[str] = (),
    resume: bool = False,
    minutes: float | None = None,
    stops: Callable[[], bool] = lambda: False,
    tell: Tell = lambda progressed: None,
    clock: Callable[[], float] = monotonic,
) -> Trained:
    """Train a drafter for a model.

    Args:
        settings: what to do.
        folder: where to write it.
        load: loads the target; called only where it is needed.
        given: the prompts to train on, encoded for the target; None are the target's own.
        excluded: texts to keep unseen.
        resume: go on with the run that is there.
        minutes: how long it may take; capture and training share it.
        stops: asked often; the run then ends with its state kept.
        tell: called with how far it is.
        clock: seconds.

    Raises:
        InvalidInput: a setting, a prompt or the folder cannot be used.
        NoSpace: the disk is full; what there is is kept, to be resumed.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise InvalidInput(f"minutes must be a finite number above 0; it is {minutes}")
    budget = Budget(clock(), None if minutes is None else 60 * minutes)
    if settings.data is not None:
        check_data(settings)
    with folder.opened(settings, resume=resume):
        run = _Run(settings, folder, budget, stops, tell, clock)
        if not folder.weights.exists():
            ended = run.capture(load, given, excluded)
            if ended == STOPPED:
                return Trained(folder, settings, run.captured(), None, None, STOPPED, False)
        trained = run.train()
        text = json.dumps(trained.to_json(), indent=2)
        write_whole(folder.result, lambda path: path.write_text(text + "\n", encoding="utf-8"))
        return trained


class _Run:
    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        budget: Budget,
        stops: Callable[[], bool],
        tell: Tell,
        clock: Callable[[], float],
    ) -> None:
        self.settings, self.folder, self.budget = settings, folder, budget
        self.stops, self.tell, self.clock = stops, tell, clock
        data = folder if settings.data is None else RunFolder(Path(settings.data))
        self.store = Store(data.training)

    def capture(
        self,
        load: Callable[[], LanguageModel],
        given: Callable[[LanguageModel], Sequence[Prompt]] | None,
        excluded: Sequence[str],
    ) -> str:
        """Answer prompts until there is enough; then take what else the drafter needs."""
        settings = self.settings
        self.tell(Progressed("loading the model", 0, 1, "models", None, None))
        model = load()
        hidden = settings.recipe.hidden(model.target.info)
        if settings.data is not None:
            check_states(self.store, hidden, settings.data)
            self._close(model, "data", Filter())
            return "data"
        width = hidden_size(model)
        done = sum(answer for shard in self.store for _, answer in shard.lengths)
        need = max(0, settings.tokens - done) * bytes_per_token(hidden, width)
        require_space(self.folder.training, need)
        limit = model.target.info.max_length
        passes = Filter(excluded, None if limit is None else limit - ROOM_FOR_ANSWER)
        deadline = self.budget.after(CAPTURE_SHARE)
        meter = Meter("capturing answers", "tokens", self.clock, done)
        sampler = own_sampler(
            model,
            settings.seed,
            settings.batch,
            lambda: self.stops() or (deadline is not None and self.clock() >= deadline),
            lambda: self.tell(meter.at(settings.tokens, deadline, "writing prompts")),
        )
        source = (
            OwnPrompts(model.tokenizer, sampler, passes, settings.batch)
            if given is None
            else GivenPrompts(given(model), passes)
        )

        def told(count: int) -> None:
            meter.add(count, count)
            self.tell(meter.at(settings.tokens, deadline))

        ended = fill(
            self.store,
            model,
            source,
            passes,
            Answering(settings.sampling, settings.max_tokens, settings.batch, settings.seed),
            hidden,
            settings.tokens,
            deadline=deadline,
            stops=self.stops,
            told=told,
            clock=self.clock,
        )
        if ended != STOPPED:
            self._close(model, ended, passes)
        return ended

    def _close(self, model: LanguageModel, ended: str, passes: Filter) -> None:
        """Write what is fixed from here on."""
        settings = self.settings
        data = Dataset(self.store, tokens=settings.tokens)
        fixed = fix(settings, data, model, ended=ended, thrown_out=dict(passes.thrown_out))
        fixed.write(self.folder.weights)

    def train(self) -> Trained:
        """Train on what was captured, and write the drafter."""
        fixed, settings = Fixed.read(self.folder.weights), self.settings
        data = Dataset(self.store, sequences=fixed.num_sequences)
        temperature = float(settings.sampling.get("temperature", 0.0))
        objective: Objective = settings.recipe.objective(
            fixed.weights, fixed.vocabulary, fixed.served(temperature), native_dtype()
        )
        trainer = Trainer(objective, data, settings.plan, self.folder.state, self.clock)
        deadline = self.budget.after(TRAINING_SHARE)
        meter = Meter("training", "steps", self.clock, trainer.progress.step)
        tokens = trainer.progress.tokens

        def told(progress: Progress) -> None:
            nonlocal tokens
            meter.add(1, progress.tokens - tokens)
            tokens = progress.tokens
            total = progress.num_steps or trainer.num_steps
            self.tell(meter.at(total, deadline, note_of(progress)))

        ended = trainer.run(deadline=deadline, stops=self.stops, told=told)
        is_written = bool(trainer.progress.points)
        if is_written:
            objective.save(self.folder.path)
        about = {
            **data.about(),
            "num_bytes": self.store.num_bytes,
            "num_held_out": len(data.held_out),
            "ended": fixed.about["ended"],
            "thrown_out": fixed.about["thrown_out"],
        }
        return Trained(
            self.folder, settings, about, fixed.vocabulary, trainer.progress, ended, is_written
        )

    def captured(self) -> dict[str, Any]:
        """What there is so far, in numbers."""
        lengths = [pair for shard in self.store for pair in shard.lengths]
        return {
            "num_sequences": len(lengths),
            "num_prompt_tokens": sum(prompt for prompt, _ in lengths),
            "num_answer_tokens": sum(answer for _, answer in lengths),
            "num_bytes": self.store.num_bytes,
        }


def note_of(progress: Progress) -> str:
    """The loss, and the best mean acceptance length so far."""
    recent = progress.curve[-20:]
    words = f"loss {sum(recent) / len(recent):.2f}"
    best = progress.best
    return words if best is None else f"{words}, length {best.length:.2f}"
