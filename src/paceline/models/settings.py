"""The decoding options in a checkpoint's generation config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.models.cache import read_json

TAKEN = ("repetition_penalty", "top_k", "top_p", "min_p")
"""The sampling options that a call takes from it where it leaves them out."""

_NOT_TAKEN = {
    "no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "num_beams": 1,
    "guidance_scale": 1,
    "watermarking_config": None,
}
"""Settings that change greedy answers but are not applied, with their neutral values."""


def generation_settings(source: Any) -> dict[str, Any]:
    """The generation config of a model's folder, or one of transformers, as a plain mapping."""
    if source is None:
        return {}
    if isinstance(source, Path):
        return read_json(source / "generation_config.json") or {}
    found: dict[str, Any] = source.to_dict()
    return found


def sampling_defaults(settings: Mapping[str, Any]) -> Mapping[str, float]:
    """The sampling options that a generation config sets, by their names in Paceline.

    The temperature is left out: answers are greedy unless one is requested. The others truncate the
    distribution at a temperature above 0, and the repetition penalty applies at any.

    >>> sampling_defaults({"repetition_penalty": 1.3, "temperature": 0.7, "top_p": 0.8})
    mappingproxy({'repetition_penalty': 1.3, 'top_p': 0.8})
    """
    return MappingProxyType(
        {name: settings[name] for name in TAKEN if settings.get(name) is not None}
    )


def settings_not_taken(settings: Mapping[str, Any]) -> list[str]:
    """The settings that change answers of `generate` but are not applied, as `name=value`.

    >>> settings_not_taken({"no_repeat_ngram_size": 3, "num_beams": 1, "eos_token_id": 2})
    ['no_repeat_ngram_size=3']
    """
    return [
        f"{name}={settings[name]!r}"
        for name, idle in _NOT_TAKEN.items()
        if settings.get(name) not in (None, idle, [])
    ]
