"""The settings of a run, and the folder that it lies in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paceline.checks import require_int
from paceline.core.sampling import SamplingParams
from paceline.errors import InvalidInput, NoSpace
from paceline.train.loop import Plan
from paceline.train.recipe import Recipe
from paceline.train.recipes import RECIPES
from paceline.train.store import write_whole

SCHEMA = "paceline.train/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run follows from. A run that is resumed has the same.

    Args:
        recipe: the kind of drafter, with its own settings.
        model: the target, as it was named.
        dtype: of its weights.
        raw: whether prompts are given to it without its chat template.
        prompts: the file that prompts came from; None are the target's own.
        exclude: files of texts to keep unseen.
        data: the folder of another run, whose answers are learned from; None captures own ones.
        tokens: answer tokens to capture.
        max_tokens: the longest answer.
        batch: sequences that are decoded at once.
        sampling: how answers are drawn.
        seed: of all draws, and of the order of training.
        plan: of the training.

    Raises:
        InvalidInput: a setting outside its range.
    """

    recipe: Recipe
    model: str
    dtype: str = "auto"
    raw: bool = False
    prompts: str | None = None
    exclude: tuple[str, ...] = ()
    data: str | None = None
    tokens: int = 300_000
    max_tokens: int = 256
    batch: int = 16
    sampling: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        require_int("tokens", self.tokens, low=1)
        require_int("max_tokens", self.max_tokens, low=2)
        require_int("batch", self.batch, low=1)
        require_int("seed", self.seed, low=0, high=2**64 - 1)
        require_int("epochs", self.plan.epochs, low=1)
        require_int("batch_tokens", self.plan.batch_tokens, low=1)
        if not 0 < self.plan.learning_rate < 1:
            raise InvalidInput(
                f"learning_rate must be above 0 and below 1; it is {self.plan.learning_rate}"
            )
        SamplingParams(**self.sampling)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        own = {
            name: getattr(self, name)
            for name in self.__slots__
            if name not in ("recipe", "plan", "exclude", "sampling")
        }
        return {
            "drafter": self.recipe.name,
            **own,
            "exclude": list(self.exclude),
            "sampling": dict(self.sampling),
            "head": self.recipe.to_json(),
            "training": asdict(self.plan),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Settings:
        """From the result of `to_json`."""
        found = {name: value[name] for name in cls.__slots__ if name in value}
        return cls(
            **{
                **found,
                "recipe": RECIPES[value["drafter"]](**value["head"]),
                "exclude": tuple(value["exclude"]),
                "plan": Plan(**value["training"]),
            }
        )


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a drafter is written, and in `training/` what it is made from.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def training(self) -> Path:
        """Shards, state and settings of the run; not needed to use the drafter."""
        return self.path / "training"

    @property
    def run(self) -> Path:
        """The settings of the run."""
        return self.training / "run.json"

    @property
    def state(self) -> Path:
        """The state of the training."""
        return self.training / "state.safetensors"

    @property
    def weights(self) -> Path:
        """The target's own weights that the drafter needs; written once capture is complete."""
        return self.training / "target.safetensors"

    @property
    def result(self) -> Path:
        """What came of the run."""
        return self.training / "result.json"

    def settings(self, *, to_resume: bool = True) -> Settings:
        """Those of the run that is there.

        Args:
            to_resume: whether the run is to go on; otherwise its answers are learned from again.

        Raises:
            InvalidInput: there is none, or its file is damaged.
        """
        try:
            return Settings.from_json(json.loads(self.run.read_text(encoding="utf-8")))
        except FileNotFoundError:
            what = "to resume; leave --resume out"
            if not to_resume:
                what = "with answers to learn from; give the folder of one, or leave --data out"
            raise InvalidInput(f"{self.path} holds no run {what}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"{self.run} cannot be read ({error}); begin again in another folder"
            ) from error

    @contextmanager
    def opened(self, settings: Settings, *, resume: bool) -> Iterator[None]:
        """Hold the folder for a run. A run that fails before it has captured anything leaves none.

        Args:
            settings: of the run.
            resume: whether a run there is gone on with.

        Raises:
            InvalidInput: something else is there, nothing is there to resume, the run there has
                other settings, or another process works on it.
        """
        kept = self.settings() if resume else settings
        if not resume and self.path.exists() and (not self.path.is_dir() or _holds(self.path)):
            what = (
                "holds a run already; add --resume to go on with it"
                if self.run.exists()
                else ("is there already")
            )
            raise InvalidInput(f"{self.path} {what}, or give another folder with --output")
        is_new = not self.path.exists()
        try:
            self.training.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"cannot make {self.training}: {error.strerror}") from error
        try:
            held = FileLock(self.training / "lock").acquire(timeout=0)
        except Timeout as error:
            raise InvalidInput(
                f"another process works on {self.path}; wait for it, or stop it"
            ) from error
        with held:
            _same(kept.to_json(), settings.to_json(), self.path)
            if not resume:
                text = json.dumps({"schema": SCHEMA, **settings.to_json()}, indent=2)
                write_whole(self.run, lambda path: path.write_text(text + "\n", encoding="utf-8"))
            try:
                yield
            except NoSpace:
                raise  # the run is to go on once there is room
            except BaseException:
                if not resume and not self._has_captured:
                    self._remove(whole=is_new)
                raise

    @property
    def _has_captured(self) -> bool:
        return self.weights.exists() or any(self.training.glob("shard-*.safetensors"))

    def _remove(self, *, whole: bool) -> None:
        """Remove what the run has made; `whole`: and the folder, if nothing else is in it."""
        shutil.rmtree(self.training, ignore_errors=True)
        if whole:
            with suppress(OSError):
                self.path.rmdir()


def _holds(folder: Path) -> bool:
    return any(folder.iterdir())


def _same(kept: Mapping[str, Any], given: Mapping[str, Any], folder: Path) -> None:
    for name, value in _flat(given).items():
        was = _flat(kept).get(name)
        if was != value:
            raise InvalidInput(
                f"the run in {folder} has {name} {was!r}, and {value!r} was given; a run goes on "
                "with its own settings: leave the option out, or begin another run in another "
                "folder"
            )


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, inner in value.items():
        if name in ("head", "training"):
            found |= inner
        else:
            found[name] = inner
    return found
