"""Settings tuned for a model, stored in the cache folder by its name."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.cache_folder import cache_folder
from paceline.errors import InvalidInput


def tuned_file(drafter: str, model: str) -> Path:
    """The file with the settings of `drafter` for `model`.

    >>> tuned_file("layer-skip", "org/model").name
    'org--model.json'
    """
    name = re.sub(r"[^\w.-]+", "--", model).strip(".") or "model"
    return cache_folder() / "tuned" / drafter / f"{name}.json"


def read_tuned(file: Path) -> dict[str, Any] | None:
    """The settings in `file`; None if there is no such file.

    Raises:
        InvalidInput: it cannot be read, or does not hold a JSON object.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file} cannot be read ({error}); tune again, or remove it") from error
    if not isinstance(value, dict):
        raise InvalidInput(
            f"{file} must hold a JSON object, but holds a {type(value).__name__}; tune again"
        )
    return value


def write_tuned(file: Path, settings: Mapping[str, Any]) -> None:
    """Store settings atomically: concurrent readers find the old ones or the new ones.

    Raises:
        InvalidInput: the folder cannot be written to.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=file.parent, delete=False, encoding="utf-8"
        ) as scratch:
            json.dump(dict(settings), scratch, indent=2)
            scratch.write("\n")
        os.replace(scratch.name, file)
    except OSError as error:
        raise InvalidInput(
            f"cannot write {file} ({error.strerror}); give another place with --output"
        ) from error
