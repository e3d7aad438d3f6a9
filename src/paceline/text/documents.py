"""Documents from files, piece by piece: plain text, or JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import InvalidInput

PIECE = 1 << 16
"""The approximate number of characters of plain text per part."""

_LONGEST = 1 << 20
JSON_LINES = (".jsonl", ".ndjson")

_SEAM = re.compile(r"\n(?=\S)")
"""Where a text may be cut: tokens rarely span the start of a line that is not indented."""


class Piece(NamedTuple):
    """A part of a document.

    Args:
        text: the text of this part.
        is_last: whether the document ends with it.
        num_bytes: the bytes of the file up to the end of this part.
    """

    text: str
    is_last: bool
    num_bytes: int


def read_documents(path: Path, field: str = "text") -> Iterator[Piece]:
    """The documents of a file: each line of a JSON lines file, otherwise the whole file.

    Args:
        path: files named .jsonl or .ndjson hold JSON lines.
        field: the key of an object's text: a string, or a list of strings or of chat messages (with
            `content`), each a document. A line may also be a string itself.

    Raises:
        InvalidInput: it cannot be read, is not UTF-8 text, or has a line of another form.
    """
    read = _lines if path.suffix.lower() in JSON_LINES else _plain
    try:
        yield from read(path, field)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not text in UTF-8 ({error.reason})") from error


def _plain(path: Path, field: str) -> Iterator[Piece]:
    rest, done = "", 0
    with path.open(encoding="utf-8-sig") as file:
        while read := file.read(PIECE):
            rest += read
            cuts = [match.end() for match in _SEAM.finditer(rest)]
            cut = cuts[-1] if cuts else (len(rest) if len(rest) > _LONGEST else 0)
            if cut:
                done += len(rest[:cut].encode())
                yield Piece(rest[:cut], False, done)
                rest = rest[cut:]
    yield Piece(rest, True, path.stat().st_size)


def _lines(path: Path, field: str) -> Iterator[Piece]:
    done = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            done += len(line)
            if not line.strip():
                continue
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            for document in _texts(text, field, f"{path}, line {number}"):
                yield Piece(document, True, done)


def _texts(line: str, field: str, where: str) -> list[str]:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: expected JSON, got {line.strip()[:40]!r} ({error})") from None
    if isinstance(value, dict):
        if field not in value:
            raise InvalidInput(
                f"{where}: the object has no {field!r}; it has {', '.join(map(repr, value))}. "
                "Name the one with the text with --field NAME"
            )
        value = value[field]
    items = value if isinstance(value, list) else [value]
    found: list[Any] = [item.get("content") if isinstance(item, dict) else item for item in items]
    if not all(isinstance(text, str) for text in found):
        raise InvalidInput(
            f"{where}: expected a text, or a list of texts or of messages, got {value!r:.60}"
        )
    return found
