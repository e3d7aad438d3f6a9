"""The values of one line of a trace, each checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any


class Wrong(Exception):
    """What is wrong with a line; whoever reads the file adds its number."""


def json_object(line: str) -> dict[str, Any]:
    """The line as an object; no infinity, no NaN."""
    try:
        found = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Wrong("it must be one JSON object; was the file cut or edited?") from None
    if not isinstance(found, dict):
        raise Wrong(f"it must be a JSON object; it is {line[:40]!r}")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def value_of(found: Mapping[str, Any], name: str, kind: type, words: str) -> Any:
    """A value of one type, which `words` name."""
    value = found.get(name)
    if not isinstance(value, kind):
        raise Wrong(f"{name} must be {words}; {_what_came(found, name)}")
    return value


def _what_came(found: Mapping[str, Any], name: str) -> str:
    return f"it is {found[name]!r:.60}" if name in found else "it is missing"


def _is_whole(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and value >= 0 and math.isfinite(value)


def whole(found: Mapping[str, Any], name: str, low: int = 0) -> int:
    """A whole number."""
    if not _is_whole(value := found.get(name), low):
        raise Wrong(f"{name} must be a whole number of at least {low}; {_what_came(found, name)}")
    return int(value)  # type: ignore[arg-type]


def amount(found: Mapping[str, Any], name: str) -> float:
    """A finite number of at least 0."""
    if not _is_number(value := found.get(name)):
        raise Wrong(f"{name} must be a number of at least 0; {_what_came(found, name)}")
    return float(value)  # type: ignore[arg-type]


def whole_numbers(found: Mapping[str, Any], name: str, low: int = 0) -> tuple[int, ...]:
    """A list of whole numbers."""
    values = value_of(found, name, list, "a list")
    if not all(_is_whole(value, low) for value in values):
        raise Wrong(f"{name} must hold whole numbers of at least {low}; it is {values!r:.60}")
    return tuple(values)


def texts(found: Mapping[str, Any], name: str, count: int) -> list[str]:
    """A list of `count` texts."""
    values: list[str] = value_of(found, name, list, "a list")
    if len(values) != count or not all(isinstance(value, str) for value in values):
        raise Wrong(f"{name} must be {count} texts, one a token; it is {values!r:.60}")
    return values


def probabilities(found: Mapping[str, Any], name: str, count: int) -> tuple[float | None, ...]:
    """One for each token; null, for one or for all, where it is not known."""
    if found.get(name) is None:
        return (None,) * count
    values = value_of(found, name, list, "a list")
    known = [value for value in values if value is not None]
    if len(values) != count or not all(_is_number(value) and value <= 1 for value in known):
        raise Wrong(
            f"draft.{name} must be {count} probabilities or nulls, one a token; it is "
            f"{values!r:.60}"
        )
    return tuple(None if value is None else float(value) for value in values)


def names(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(map(repr, names))
