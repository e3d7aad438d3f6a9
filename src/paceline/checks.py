"""Checks of numbers, token ids and files that callers give. They import nothing heavy."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import InvalidInput


def require_int(name: str, value: Any, *, low: int, high: int | None = None) -> int:
    """Return `value` if it is a whole number within [low, high]; raise `InvalidInput` if not."""
    upper = "" if high is None else f" and at most {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(
            f"{name} must be a whole number of at least {low}{upper}; it is {value!r}"
        )
    if value < low or (high is not None and value > high):
        raise InvalidInput(f"{name} must be at least {low}{upper}; it is {value}")
    return value


def require_seconds(name: str, value: Any) -> float:
    """Return `value` if it is a finite number above 0; raise `InvalidInput` if not.

    Example:
        >>> require_seconds("timeout", 2)
        2.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{name} must be a number of seconds above 0; it is {value!r:.80}")
    if not 0 < value < math.inf:
        raise InvalidInput(f"{name} must be a finite number of seconds above 0; it is {value!r}")
    return float(value)


def token_ids(expected: str, ids: Any) -> tuple[int, ...]:
    """Return `ids` as plain integers, from a tensor or an array too.

    Args:
        expected: the beginning of the error, as in "the prompt must be a sequence of token ids".
        ids: what came.

    Raises:
        InvalidInput: they are no token ids.

    Example:
        >>> token_ids("the prompt must be token ids", range(2))
        (0, 1)
    """
    try:
        if isinstance(ids, (bytes, Mapping)):
            raise TypeError  # both could be iterated
        return tuple(operator.index(token) for token in ids)
    except TypeError:
        raise InvalidInput(f"{expected}; it is {ids!r:.80}") from None


def token_id_set(name: str, ids: Any) -> frozenset[int]:
    """Return `ids` as a set of plain integers; raise `InvalidInput` if they are no token ids."""
    return frozenset(token_ids(f"{name} must be token ids", ids))


def token_biases(name: str, biases: Any) -> dict[int, float]:
    """Return `biases` as numbers below infinity by token id, or raise `InvalidInput`."""
    try:
        found = {operator.index(token): float(value) for token, value in biases.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise InvalidInput(
            f"{name} must map token ids to numbers, as in {{5: -1.0}}; it is {biases!r:.80}"
        ) from None
    for token, value in found.items():
        if not value < math.inf:
            raise InvalidInput(
                f"a {name} must be a number below infinity; that of token {token} is {value}"
            )
    return found


def require_finite(
    owner: Any, name: str, value: Any, *, low: float = -math.inf, high: float = math.inf
) -> None:
    """Store `value` on the frozen `owner` as a float within [low, high], or raise."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError  # float would take them
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{name} must be a number; it is {value!r}") from None
    if not math.isfinite(number) or not low <= number <= high:
        bounds = " and ".join(
            text
            for text, bound in ((f"at least {low:g}", low), (f"at most {high:g}", high))
            if math.isfinite(bound)
        )
        raise InvalidInput(
            f"{name} must be a finite number{f', {bounds}' if bounds else ''}; it is {value!r}"
        )
    object.__setattr__(owner, name, number)


def require_writable(option: str, path: Path) -> None:
    """Raise unless a file can be written at `path`. An existing file is not changed.

    Raises:
        InvalidInput: names the option, the path and the reason.
    """
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        if not path.parent.exists():
            reason = f"there is no folder {os.fspath(path.parent)}"
        raise InvalidInput(f"{option}: cannot write {path}: {reason}") from error


def reason_of(error: Exception) -> str:
    """Why a file cannot be read or written, for a message that names the file itself.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "costs.json"))
    'No such file or directory'
    """
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
