"""The table of costs that takes the place of the clock, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import InvalidInput

PARTS = ("target", "draft", "draft_start", "catch_up")

_TOO_LONG = 1e6
"""No pass takes as many seconds: a number in another unit, or no number."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds, measured beforehand.

    Args:
        target: of a pass, by its rows; None where there is no table.
        draft, start, catch_up: by drafter: of a draft token, of what a draft costs besides, and of
            a token of the text that a draft model reads. The name "" stands for every drafter.
    """

    target: Mapping[int, float] | None = None
    draft: Mapping[str, float] = field(default_factory=dict)
    start: Mapping[str, float] = field(default_factory=dict)
    catch_up: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> CostTable:
        """The table of `AutoController.costs`.

        Raises:
            InvalidInput: it is of another form, or holds what is no time.
        """
        if given is None:
            return cls()
        if not isinstance(given, Mapping) or "target" not in given or "draft" not in given:
            raise InvalidInput(
                "costs must map 'target' to seconds by rows and 'draft' to seconds a token; it is "
                f"{given!r:.80}"
            )
        if unknown := given.keys() - set(PARTS):
            raise InvalidInput(
                "costs take target, draft, draft_start and catch_up; they hold "
                f"{sorted(unknown)[0]!r}"
            )
        rows = by_rows("costs of the target must be seconds", given["target"])
        return cls(rows, *(_by_name(part, given) for part in PARTS[1:]))

    def check(self, drafters: Sequence[str]) -> None:
        """Refuse a table that leaves out a drafter, which would count as free.

        Raises:
            InvalidInput: a drafter is missing, or one is named that there is not.
        """
        for part, given in zip(PARTS[1:], (self.draft, self.start, self.catch_up), strict=True):
            if not given or "" in given:
                continue
            if not drafters:
                raise InvalidInput(
                    f"costs of {part} must be one number where there is one drafter; they are "
                    f"{dict(given)!r:.80}"
                )
            for name in {*drafters} ^ given.keys():
                state = "missing" if name in drafters else "not one of them"
                raise InvalidInput(
                    f"costs of {part} must hold the seconds of each drafter, which are "
                    f"{', '.join(drafters)}; {name} is {state}"
                )


def of_drafter(given: Mapping[str, float], name: str) -> float:
    """The seconds of a drafter."""
    return given.get(name, given.get("", 0.0))


def by_rows(what: str, given: Any) -> dict[int, float]:
    """Times by rows of a pass, from a mapping or a list that begins with one row.

    Args:
        what: how the error message begins.
        given: what the user gave.

    Raises:
        InvalidInput: no mapping or list of times.
    """
    target = given
    if not isinstance(target, Mapping):
        target = dict(enumerate(target, start=1)) if isinstance(target, (list, tuple)) else {}
    try:
        rows = {int(n): float(seconds) for n, seconds in target.items()}
        if any(float(n) != int(n) for n in target):
            rows = {}
    except (TypeError, ValueError, OverflowError):
        rows = {}
    if not rows or min(rows) < 1 or not all(0 < value < _TOO_LONG for value in rows.values()):
        raise InvalidInput(
            f"{what} above 0 by rows of a pass, as in {{1: 0.06, 6: 0.07}}; they are {given!r:.80}"
        )
    return rows


def by_drafter(what: str, given: Any, *, below: float = math.inf) -> dict[str, float]:
    """Numbers by drafter, from a mapping or one number for all.

    Args:
        what: how the error message begins.
        given: what the user gave.
        below: what each number has to stay below.

    Raises:
        InvalidInput: no number, or one below 0 or too large.
    """
    try:
        named = given if isinstance(given, Mapping) else {"": given}
        found = {str(name): float(value) for name, value in named.items()}
    except (TypeError, ValueError):
        found = {"": -1.0}
    if not all(0 <= value < below for value in found.values()):
        raise InvalidInput(f"{what}; they are {given!r:.80}")
    return found


def _by_name(part: str, given: Mapping[str, Any]) -> dict[str, float]:
    what = f"costs of {part} must be seconds, or seconds by drafter"
    return by_drafter(what, given.get(part, 0.0), below=_TOO_LONG)
