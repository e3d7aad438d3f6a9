"""What a command reads in addition to its options: prompts, messages, files, NAME=VALUE."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import InvalidInput


def read_prompt(
    text: str | None, messages: Path | None, *, raw: bool
) -> str | list[dict[str, Any]]:
    """The prompt, from an option, a file of messages or standard input.

    Raises:
        InvalidInput: there is none, more than one or an empty one, or a file is invalid.
    """
    if text is not None and messages is not None:
        raise InvalidInput("give --prompt or --messages, not both")
    if messages is not None:
        if raw:
            raise InvalidInput("--raw skips the chat template, and --messages needs it; drop one")
        return read_messages(messages)
    if text is None:
        if sys.stdin.isatty():
            raise InvalidInput(
                "there is no prompt; give --prompt TEXT, --messages FILE or text on standard input"
            )
        # `echo` and editors end a text with an unintended newline.
        text = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not text:
        raise InvalidInput("the prompt is empty; give some text")
    return text


def read_messages(file: Path) -> list[dict[str, Any]]:
    """Chat messages from a JSON file: a list, or an object with `messages`, as in OpenAI's format.

    Raises:
        InvalidInput: the file cannot be read, or does not hold messages.
    """
    form = """role and content, such as [{"role": "user", "content": "Hello"}]"""
    return _read_objects("messages", file, f"objects with {form}")


def read_tools(file: Path) -> list[dict[str, Any]]:
    """Tools from a JSON file: a list of their schemas, or an object with `tools`.

    Raises:
        InvalidInput: the file cannot be read, or does not hold tools.
    """
    form = """[{"type": "function", "function": {"name": "add", "parameters": {}}}]"""
    return _read_objects("tools", file, f"schemas, such as {form}")


def read_schema(file: Path) -> dict[str, Any]:
    """A JSON schema from a file.

    Raises:
        InvalidInput: the file cannot be read, or does not hold an object.
    """
    found = _read_json("--json-schema", file)
    if not isinstance(found, dict):
        raise InvalidInput(f"--json-schema: {file} must hold an object, the schema")
    return found


def _read_objects(name: str, file: Path, what: str) -> list[dict[str, Any]]:
    """A list of objects from the file of option `--name`: as it is, or under that name."""
    value = _read_json(f"--{name}", file)
    found = value.get(name) if isinstance(value, dict) else value
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InvalidInput(f"--{name}: {file} must hold a list of {what}")
    return found


def _read_json(option: str, file: Path) -> Any:
    text = read_text(option, file)
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{option}: {file} is not JSON ({error})") from error


def read_text(option: str, file: Path) -> str:
    """The text of a file named by an option.

    Raises:
        InvalidInput: it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{option}: cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{option}: {file} is not text in UTF-8 ({error.reason})") from error


def drafter_settings(
    references: Sequence[Path],
    ngram: dict[str, Any],
    prediction: Path | None = None,
) -> dict[str, Any]:
    """The settings of a drafter that have options of their own.

    Raises:
        InvalidInput: a file cannot be read.

    Example:
        >>> drafter_settings([], {"max_ngram": 4, "match": None})
        {'max_ngram': 4}
    """
    settings = {name: value for name, value in ngram.items() if value is not None}
    if references:
        settings["references"] = [read_text("--reference", file) for file in references]
    if prediction is not None:
        settings["prediction"] = read_text("--prediction", prediction)
    return settings


def named_values(option: str, items: Sequence[str]) -> dict[str, Any]:
    """Settings from NAME=VALUE.

    Raises:
        InvalidInput: an item is not of that form.

    Example:
        >>> named_values("--controller-option", ["probe_share=0.02"])
        {'probe_share': 0.02}
    """
    settings = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{option} takes NAME=VALUE; it is {item!r}")
        settings[name] = _value(value)
    return settings


def _value(text: str) -> Any:
    """A number, true or false if `text` is one; otherwise the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
