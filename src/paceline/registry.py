"""From names to plug-ins, by entry points: listing imports nothing, loading imports one module.

The built-in drafters, rules and controllers are registered in the same way as those of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from paceline.errors import InvalidInput, PacelineError, UnknownName

Kind = Literal["drafter", "verifier", "controller"]


def points(kind: Kind) -> dict[str, EntryPoint]:
    """The entry points of a kind, by name; imports nothing."""
    return {point.name: point for point in entry_points(group=f"paceline.{kind}s")}


def names(kind: Kind) -> list[str]:
    """The registered names of a kind, sorted; imports nothing.

    >>> names("verifier")
    ['coupling', 'token']
    """
    return sorted(points(kind))


def find(kind: Kind, name: str) -> Any:
    """The class registered under `name`.

    Raises:
        UnknownName: there is none; names the nearest.
        PacelineError: its module cannot be imported.
    """
    known = points(kind)
    if name not in known:
        raise UnknownName.among(kind, name, known)
    try:
        return known[name].load()
    except (ImportError, AttributeError) as error:
        raise PacelineError(
            f"the {kind} {name!r} is registered as {known[name].value}, which cannot be "
            f"imported: {error}; reinstall the package that brings it"
        ) from error


def make(kind: Kind, name: str, settings: Mapping[str, Any]) -> Any:
    """Build the plug-in `name` from its settings.

    Raises:
        UnknownName: an unknown name, or a setting that the plug-in does not have.
    """
    plugin = find(kind, name)
    known = [item.name for item in fields(plugin) if item.init] if is_dataclass(plugin) else []
    for setting in settings:
        if setting not in known:
            raise UnknownName.among(f"setting of {kind} {name!r}:", setting, known)
    try:
        return plugin(**settings)
    except TypeError as error:
        raise InvalidInput(f"{kind} {name!r}: {error}") from None
