"""What came of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.economics import stats
from paceline.train.data import Vocabulary
from paceline.train.progress import Progress
from paceline.train.settings import SCHEMA, RunFolder, Settings


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
    def data_folder(self) -> Path:
        """Where the answers lie that it learned from."""
        data = self.settings.data
        return (self.folder if data is None else RunFolder(Path(data))).training

    @property
    def use(self) -> str:
        """The command that decodes with it."""
        recipe, path = self.settings.recipe, str(self.folder.path)
        draft = ["--draft-head", path]
        if recipe.is_model:
            draft = ["--drafter", recipe.name, "--draft-model", path]
        return shlex.join(["paceline", "generate", "-m", self.settings.model, *draft])

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
