"""Prompts and records from files and from standard input; every error names file and line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import InvalidInput
from paceline.workbench.workload.items import UNCATEGORIZED, Item, parse, records

STDIN = "-"
"""The file name that means standard input."""

JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")


def read_items(file: str | Path) -> list[Item]:
    """The prompts of a file.

    A file of JSON lines holds one object per line. Each has exactly one of

    - `turns`: a list of texts, as in Spec-Bench and MT-bench; the first is the prompt;
    - `prompt`: a text;
    - `messages`: chat messages with `role` and `content`, as in OpenAI's format; an assistant's
      message at the end is the recorded answer, not part of the prompt;

    and optionally `category`, `answer` (the recorded answer; with `answer_token_ids` and
    `max_tokens` if they are known), `prediction` and `references` for drafters that take them, and
    `question_id` or `id`. Other keys are ignored, because data sets have many. Any other file is
    plain text, one prompt per line. Empty lines are skipped.

    Args:
        file: a path; names that end in .jsonl, .json or .ndjson hold JSON lines, .txt plain text,
            and for all others, including `"-"` for standard input, the first character decides.

    Raises:
        InvalidInput: the file cannot be read, has no prompt, or has an invalid line; the message
            names the file and the line.
    """
    name, text = _content(file)
    suffix = "" if str(file) == STDIN else Path(file).suffix.lower()
    is_json = suffix in JSON_SUFFIXES or (suffix != ".txt" and text.lstrip()[:1] in ("{", "["))
    items = list(_json_lines(name, text) if is_json else _plain_lines(name, text))
    if not items:
        raise InvalidInput(f"{name} has no prompt; expected one per line")
    return items


def read_records(source: str | Path) -> list[Item]:
    """Recorded answers from a file in the format of `read_items`, or the texts of a folder.

    Raises:
        InvalidInput: see `read_items` and `read_texts`; or the file has no answer.
    """
    if str(source) != STDIN and Path(source).is_dir():
        return read_texts(source)
    found = list(records(read_items(source)))
    if not found:
        raise InvalidInput(
            f"{source} has no recorded answer; each object needs an answer, or an assistant's "
            "message, in addition to its prompt. `paceline bench --save-answers FILE` records some"
        )
    return found


def read_texts(folder: str | Path) -> list[Item]:
    """The text files of a folder and its subfolders, each a record without a prompt.

    The subfolder that contains a file is its category.

    Raises:
        InvalidInput: the folder does not exist or has no text, or a file is not text in UTF-8.
    """
    root = Path(folder)
    files = sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    found = []
    for path in files:
        name, text = _content(path)
        if text.strip():
            inner = path.relative_to(root)
            top = inner.parent == Path()
            category = UNCATEGORIZED if top else inner.parent.as_posix()
            found.append(Item(inner.as_posix(), "", category, answer=text, source=name))
    if not found:
        raise InvalidInput(f"the folder {root} has no text; expected text files in UTF-8")
    return found


def _content(file: str | Path) -> tuple[str, str]:
    """A name for messages, and the text."""
    if str(file) == STDIN:
        if sys.stdin.isatty():
            raise InvalidInput("expected prompts on standard input, which is the terminal")
        return "standard input", _decoded("standard input", sys.stdin.buffer.read())
    try:
        return str(file), _decoded(str(file), Path(file).read_bytes())
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from error


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidInput(f"{name}, line {line}: this is not text in UTF-8") from error


def _plain_lines(name: str, text: str) -> Iterator[Item]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield Item(str(number), line.rstrip("\r"), source=f"{name}, line {number}")


def _json_lines(name: str, text: str) -> Iterator[Item]:
    seen: dict[str, int] = {}
    # Not splitlines, which would also split at characters that JSON allows in a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        source = f"{name}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise InvalidInput(
                f"{source}: expected one JSON object per line, got {line.strip()[:40]!r} ({reason})"
            ) from error
        if not isinstance(value, dict):
            raise InvalidInput(f"{source}: expected a JSON object, got {line.strip()[:40]!r}")
        item = parse(value, source, number)
        if item.id in seen:
            raise InvalidInput(
                f"{source}: the id {item.id!r} is already used on line {seen[item.id]}; ids "
                "distinguish prompts, so give each its own, or none"
            )
        seen[item.id] = number
        yield item
