"""A run from the prompts to the drafter on the disk, on from wherever it was broken off."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.economics import stats
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel
from paceline.models import resolve
from paceline.models.cache import read_json
from paceline.models.loading import native_dtype
from paceline.train.answers import Answering, fill, own_sampler
from paceline.train.data import Dataset, Vocabulary, vocabulary
from paceline.train.loop import Progress, Trainer
from paceline.train.meter import Meter, Progressed, Tell
from paceline.train.objective import Objective
from paceline.train.prompts import Filter, GivenPrompts, OwnPrompts, Prompt
from paceline.train.recipe import Served
from paceline.train.settings import SCHEMA, RunFolder, Settings
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


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a run.

    Args:
        folder: where it lies.
        settings: of the run.
        data: what was captured.
        vocabulary: the tokens that the drafter can propose; None where capture was stopped.
        progress: of the training; None where it did not begin.
        ended: "done", "time", "stale" or "stopped".
        is_written: whether a drafter was written.
    """

    folder: RunFolder
    settings: Settings
    data: Mapping[str, Any]
    vocabulary: Vocabulary | None
    progress: Progress | None
    ended: str
    is_written: bool

    @property
    def use(self) -> str:
        """The command that decodes with it."""
        return f"paceline generate -m {self.settings.model} --draft-head {self.folder.path}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; see docs/training.md."""
        best = None if self.progress is None else self.progress.best
        rates = None
        if best is not None:
            rates = stats.conditional_acceptance_rate_per_position(best.counts)
        words = self.vocabulary
        return {
            "schema": SCHEMA,
            "folder": str(self.folder.path),
            "ended": self.ended,
            "settings": self.settings.to_json(),
            "data": dict(self.data),
            "vocabulary": None
            if words is None
            else {"size": words.size, "coverage": words.coverage},
            "training": None if self.progress is None else self.progress.to_json(),
            "best": None if best is None else best.to_json(),
            "conditional_acceptance_rate_per_position": None if rates is None else list(rates),
            "use": self.use if self.is_written else None,
        }


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
        tell: told how far it is.
        clock: seconds.

    Raises:
        InvalidInput: a setting, a prompt or the folder cannot be used.
        NoSpace: the disk is full; what there is is kept, to be resumed.
    """
    budget = Budget(clock(), None if minutes is None else 60 * minutes)
    with folder.opened(settings, resume=resume):
        run = _Run(settings, folder, budget, stops, tell, clock)
        if not folder.weights.exists():
            ended = run.capture(load, given, excluded)
            if ended == STOPPED:
                return Trained(folder, settings, run.about(), None, None, STOPPED, False)
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
        self.store = Store(folder.training)

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
        width = hidden_size(model)
        done = sum(answer for shard in self.store for _, answer in shard.lengths)
        need = max(0, settings.tokens - done) * bytes_per_token(hidden, width)
        require_space(self.folder.training, need)
        limit = model.target.info.max_length
        passes = Filter(excluded, None if limit is None else limit - ROOM_FOR_ANSWER)
        deadline = self.budget.after(CAPTURE_SHARE)
        sampler = own_sampler(
            model,
            settings.seed,
            settings.batch,
            lambda: self.stops() or (deadline is not None and self.clock() >= deadline),
        )
        source = (
            OwnPrompts(model.tokenizer, sampler, passes, settings.batch)
            if given is None
            else GivenPrompts(given(model), passes)
        )
        meter = Meter("capturing answers", "tokens", self.clock, done)

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
        """Write what is fixed from here on: the vocabulary and the target's own weights."""
        settings = self.settings
        data, info = Dataset(self.store), model.target.info
        words = vocabulary(
            data,
            settings.recipe.draft_vocab,
            info.vocab_size,
            sorted(model.eos_token_ids),
        )
        weights = settings.recipe.gather(model, words)
        if words.ids is not None:
            weights["token_ids"] = words.ids
        about = {
            "vocab_size": info.vocab_size,
            "coverage": words.coverage,
            "ended": ended,
            "thrown_out": dict(passes.thrown_out),
            "model": model.name,
            "max_length": info.max_length,
            "architectures": architectures_of(settings.model),
        }
        metadata = {"format": "pt", "about": json.dumps(about)}
        write_whole(self.folder.weights, lambda path: save_file(weights, path, metadata=metadata))

    def about(self) -> dict[str, Any]:
        """What was captured, in numbers."""
        lengths = [pair for shard in self.store for pair in shard.lengths]
        return {
            "num_sequences": len(lengths),
            "num_prompt_tokens": sum(prompt for prompt, _ in lengths),
            "num_answer_tokens": sum(answer for _, answer in lengths),
            "num_bytes": self.store.num_bytes,
        }

    def train(self) -> Trained:
        """Train on what was captured, and write the drafter."""
        weights, about = _read_weights(self.folder.weights)
        ids = weights.pop("token_ids", None)
        size = about["vocab_size"] if ids is None else len(ids)
        words = Vocabulary(ids, size, about["coverage"])
        settings, data = self.settings, Dataset(self.store)
        temperature = float(settings.sampling.get("temperature", 0.0))
        target = Served(
            about["model"],
            about["vocab_size"],
            temperature,
            tuple(about["architectures"]),
            about["max_length"],
        )
        objective: Objective = settings.recipe.objective(weights, words, target, native_dtype())
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
        if trainer.progress.points:
            objective.save(self.folder.path)
        return Trained(
            self.folder,
            settings,
            {
                **self.about(),
                "ended": about["ended"],
                "thrown_out": about["thrown_out"],
                "num_held_out": len(data.held_out),
            },
            words,
            trainer.progress,
            ended,
            bool(trainer.progress.points),
        )


def architectures_of(model: str) -> list[str]:
    """What the config.json of a model, which is on the disk, says of its architecture."""
    folder = resolve(model, dtype=native_dtype()).folder
    return list((read_json(folder / "config.json") or {}).get("architectures") or [])


def note_of(progress: Progress) -> str:
    """The loss and the acceptance so far, in words."""
    recent = progress.curve[-20:]
    words = f"loss {sum(recent) / len(recent):.2f}"
    best = progress.best
    return words if best is None else f"{words}, acceptance length {best.length:.2f}"


def _read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InvalidInput(
            f"{path} is damaged ({error}); remove it and resume: it is made again"
        ) from error
