"""A settings file: how to draft, as found by `paceline recommend`, for all interfaces.

    {"schema": "paceline.settings/1", "model": "qwen2.5-coder-1.5b",
     "drafting": {"drafter": "model", "num_draft_tokens": "auto",
                  "draft_model": "qwen2.5-coder-0.5b", "draft_storage": "int4"},
     "measured": {"speedup": 2.1}}

`drafting` holds options of `generate` by their names; `model` and `measured` are for people. TOML
works too.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.checks import reason_of
from paceline.errors import InvalidInput, UnknownName

SCHEMA = "paceline.settings/1"

DRAFTING = (
    "drafter",
    "drafter_options",
    "num_draft_tokens",
    "controller",
    "controller_options",
    "verify",
    "verify_options",
    "draft_model",
    "draft_head",
    "draft_storage",
    "draft_head_tokens",
)
"""The options of a call that a settings file may contain."""


def read_settings(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The options of `generate` in a settings file.

    Args:
        source: the path of the file (JSON or TOML), or its contents.

    Raises:
        InvalidInput: it cannot be read, or is not of this form.
        UnknownName: it holds an option that settings do not have.

    Example:
        >>> read_settings({"schema": SCHEMA, "drafting": {"drafter": "ngram"}})
        {'drafter': 'ngram'}
    """
    if not isinstance(source, (str, Path, Mapping)):
        raise InvalidInput(
            "settings must be the path of a file that `paceline recommend` wrote, or its "
            f"contents; they are {source!r:.80}"
        )
    where = "the settings" if isinstance(source, Mapping) else str(source)
    found = source if isinstance(source, Mapping) else _parsed(source)
    if not isinstance(found, Mapping) or found.get("schema") != SCHEMA:
        raise InvalidInput(
            f"{where} must be an object whose schema is {SCHEMA!r}; `paceline recommend` writes one"
        )
    drafting = found.get("drafting")
    if not isinstance(drafting, Mapping):
        raise InvalidInput(
            f"{where} must hold an object 'drafting' with options of generate; it is "
            f"{drafting!r:.80}"
        )
    for name in drafting:
        if name not in DRAFTING:
            raise UnknownName.among(f"option in {where}:", str(name), DRAFTING)
    return {name: value for name, value in drafting.items() if value is not None}


def with_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call, with its option `settings` replaced by what that holds.

    Raises:
        InvalidInput: the settings are invalid, or an option is given that they replace.

    Example:
        >>> found = {"schema": SCHEMA, "drafting": {"drafter": "ngram"}}
        >>> with_settings({"settings": found, "max_tokens": 9})
        {'drafter': 'ngram', 'max_tokens': 9}
    """
    rest = {name: value for name, value in given.items() if name != "settings"}
    if given.get("settings") is None:
        return rest
    if both := [name for name in DRAFTING if rest.get(name) not in (None, {}, ())]:
        raise InvalidInput(
            f"settings say how to draft, and {both[0]} says it too; leave one of them out"
        )
    rest = {name: value for name, value in rest.items() if name not in DRAFTING}
    return {**read_settings(given["settings"]), **rest}


def settings_json(
    model: str, drafting: Mapping[str, Any], measured: Mapping[str, Any]
) -> dict[str, Any]:
    """The contents of a settings file.

    Args:
        model: the target that they were found for.
        drafting: options of `generate`; those that are None are left out.
        measured: what they gain, and where that was measured.
    """
    kept = {name: value for name, value in drafting.items() if value not in (None, {})}
    return {"schema": SCHEMA, "model": model, "drafting": kept, "measured": dict(measured)}


def _parsed(source: str | Path) -> Any:
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read the settings in {path}: {reason_of(error)}") from None
    try:
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the settings in {path} are neither JSON nor TOML: {error}") from None
