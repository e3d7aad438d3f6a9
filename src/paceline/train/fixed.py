"""What is fixed once capture is complete: the data set, the vocabulary, the target's own weights.

It stands in one file, so that training needs no model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.hidden import Hidden
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel
from paceline.models import resolve
from paceline.models.adapter_files import base_and_adapter
from paceline.models.cache import read_json
from paceline.models.finding import native_dtype
from paceline.train.data import Dataset, Vocabulary, vocabulary
from paceline.train.recipe import Served
from paceline.train.settings import RunFolder, Settings
from paceline.train.store import Store, write_whole


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """What training follows from, besides the settings and the states.

    Args:
        weights: of the target, see `Recipe.gather`.
        vocabulary: what the drafter can propose.
        about: plain values: `model`, `vocab_size`, `max_length` and `architectures` of the target,
            `num_sequences` of the data set, and how capture `ended` and what was `thrown_out`.
    """

    weights: Mapping[str, Tensor]
    vocabulary: Vocabulary
    about: Mapping[str, Any]

    @property
    def num_sequences(self) -> int:
        """How many sequences of the store are learned from."""
        return int(self.about["num_sequences"])

    def served(self, temperature: float) -> Served:
        """The target, at the temperature at which it will be served."""
        about = self.about
        return Served(
            about["model"],
            about["vocab_size"],
            temperature,
            tuple(about["architectures"]),
            about["max_length"],
        )

    def write(self, path: Path) -> None:
        """Write it to a file.

        Raises:
            NoSpace: the disk is full.
        """
        tensors, words = dict(self.weights), self.vocabulary
        if words.ids is not None:
            tensors["token_ids"] = words.ids
        about = {**self.about, "coverage": words.coverage}
        metadata = {"format": "pt", "about": json.dumps(about)}
        write_whole(path, lambda partial: save_file(tensors, partial, metadata=metadata))

    @classmethod
    def read(cls, path: Path) -> Fixed:
        """Read it from a file.

        Raises:
            InvalidInput: the file is damaged.
        """
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["about"])
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            ids = weights.pop("token_ids", None)
            size = about["vocab_size"] if ids is None else len(ids)
            return cls(weights, Vocabulary(ids, size, about["coverage"]), about)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InvalidInput(
                f"{path} is damaged ({error}); remove it and resume: it is made again"
            ) from error


def fix(
    settings: Settings,
    data: Dataset,
    model: LanguageModel,
    *,
    ended: str,
    thrown_out: Mapping[str, int],
) -> Fixed:
    """Choose the vocabulary, and take the target's own weights."""
    info = model.target.info
    ends = sorted(model.eos_token_ids)
    words = vocabulary(data, settings.recipe.draft_vocab, info.vocab_size, ends)
    about = {
        "model": model.name,
        "vocab_size": info.vocab_size,
        "max_length": info.max_length,
        "architectures": architectures_of(settings, model),
        "num_sequences": len(data),
        "ended": ended,
        "thrown_out": dict(thrown_out),
    }
    return Fixed(settings.recipe.gather(model, words), words, about)


def architectures_of(settings: Settings, model: LanguageModel) -> list[str]:
    """What the config.json of the target, which is on the disk, says of its architecture."""
    base, _ = base_and_adapter(settings.model, None)
    unpacked: dict[str, str | torch.dtype] = {"auto": native_dtype(), "float16": torch.float32}
    files = resolve(
        base,
        dtype=unpacked.get(settings.dtype, settings.dtype),
        allow_pickle=model.allow_pickle,
        trust_remote_code=True,  # its code has run by now; none is run here
    )
    return list((read_json(files.folder / "config.json") or {}).get("architectures") or [])


SAME = ("model", "dtype", "raw", "prompts", "exclude", "max_tokens", "batch", "sampling")
"""The settings of answers that are learned from again."""


def check_data(settings: Settings) -> None:
    """Refuse the answers of another run that were made in another way.

    Raises:
        InvalidInput: there is no such run, or a setting of its answers differs.
    """
    assert settings.data is not None
    kept = RunFolder(Path(settings.data)).settings(to_resume=False)
    for name in SAME:
        was, value = getattr(kept, name), getattr(settings, name)
        if was != value:
            raise InvalidInput(
                f"the answers in {settings.data} have {name} {was!r}, and {value!r} was given; "
                "leave the option out, or capture answers of its own without --data"
            )


def check_states(store: Store, hidden: Hidden, folder: str | None) -> None:
    """Refuse captured answers without the states that a drafter reads.

    Raises:
        InvalidInput: names what is there and what is needed.
    """
    for shard in store:
        if not hidden <= shard.hidden:
            raise InvalidInput(
                f"the answers in {folder} have {shard.hidden}, and this drafter learns from "
                f"{hidden}; capture its own, without --data"
            )
