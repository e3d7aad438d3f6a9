"""Reading a trace: every line is checked, and an error names the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidInput
from paceline.trace.lane import Lane, LaneReader
from paceline.trace.recording import SCHEMA
from paceline.trace.values import Wrong, json_object, names, value_of

MAX_BYTES = 64 * 2**20
"""The largest trace that is read; a round takes a few hundred bytes."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace.

    Args:
        model, prompt, sampling, environment: what was run.
        lanes: its runs by name, in the order of the header.
    """

    model: str
    prompt: str
    sampling: Mapping[str, Any]
    environment: Mapping[str, Any]
    lanes: Mapping[str, Lane]


def read_trace(path: str | Path) -> Trace:
    """Read a trace that `generate`, `demo` or the lesson wrote.

    Raises:
        InvalidInput: the file cannot be read, or it is no trace; the message names the line.

    Example:
        >>> trace = read_trace("race.jsonl")  # doctest: +SKIP
        >>> trace.lanes["speculative"].metrics.mean_acceptance_length  # doctest: +SKIP
    """
    path = Path(path)
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InvalidInput(
                f"{path} has {size} bytes; a trace has at most {MAX_BYTES}: is it one?"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is no trace: it is not text in UTF-8") from error
    return parse_trace(text, str(path))


def parse_trace(text: str, name: str = "the trace") -> Trace:
    """Read a trace from its text.

    Args:
        text: JSON lines.
        name: what errors call it.

    Raises:
        InvalidInput: it is no trace; the message names the line.
    """
    at = 0
    try:
        # Not splitlines: JSON may hold U+2028, which ends a line there.
        lines = ((n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip())
        at, first = next(lines, (1, ""))
        head = _header(json_object(first))
        lanes = {lane: LaneReader(lane, about) for lane, about in head["lanes"].items()}
        for at, line in lines:  # noqa: B007 - the error names it
            found = json_object(line)
            lane = found.get("lane")
            if not isinstance(lane, str) or lane not in lanes:
                raise Wrong(f"lane must be one of the header's, {names(lanes)}; it is {lane!r}")
            lanes[lane].take(found)
    except Wrong as error:
        raise InvalidInput(f"{name}, line {at}: {error}") from None
    return Trace(
        model=head["model"],
        prompt=head["prompt"],
        sampling=head["sampling"],
        environment=head["environment"],
        lanes={lane: reader.lane() for lane, reader in lanes.items()},
    )


def _header(found: Mapping[str, Any]) -> dict[str, Any]:
    schema = found.get("schema")
    if found.get("event") != "trace" or not isinstance(schema, str):
        raise Wrong(f'a trace begins with its header, {{"event":"trace","schema":"{SCHEMA}",...}}')
    if schema != SCHEMA:
        raise Wrong(f"this reads {SCHEMA}; the file is {schema!r}: use the version that wrote it")
    head = {
        "model": value_of(found, "model", str, "a text"),
        "prompt": value_of(found, "prompt", str, "a text"),
        "sampling": value_of(found, "sampling", dict, "an object"),
        "lanes": value_of(found, "lanes", dict, "an object"),
        "environment": value_of({"environment": {}, **found}, "environment", dict, "an object"),
    }
    for lane, about in head["lanes"].items():
        if not isinstance(about, dict):
            raise Wrong(f"lane {lane!r} must be an object; it is {about!r:.40}")
    if not head["lanes"]:
        raise Wrong("lanes must name at least one lane")
    return head
