"""Options of a call, checked: each comes back in the one form that the engine takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline.checks import token_id_set
from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput


def flag(name: str, given: Any) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(given, bool):
        raise InvalidInput(f"{name} must be True or False; it is {given!r:.80}")
    return given


def functions(name: str, given: Any) -> tuple[Callable[..., Any], ...]:
    """Several functions.

    >>> functions("processors", [len])
    (<built-in function len>,)
    """
    found: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(map(callable, found)):
        raise InvalidInput(f"{name} must be a list of functions; it is {given!r:.80}")
    return found


def stop_strings(given: Any, *, option: str = "stop") -> list[str]:
    """The texts that end an answer; None is none, one text is one.

    >>> stop_strings("END")
    ['END']
    """
    if given is None:
        return []
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        raise InvalidInput(f"{option} must be a text or a list of texts; it is {given!r:.80}")
    stops = [given] if isinstance(given, str) else list(given)
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise InvalidInput(f"a stop string must be a text of at least one character: {stop!r}")
    return stops


def stop_token_ids(given: Any, target: TargetInfo) -> frozenset[int]:
    """The tokens that end an answer, as the user named them; None is none."""
    ids = token_id_set("stop_token_ids", () if given is None else given)
    if outside := [token for token in ids if not 0 <= token < target.vocab_size]:
        raise InvalidInput(
            f"stop_token_ids take ids from 0 to {target.vocab_size - 1}; got {outside[0]}"
        )
    return ids
