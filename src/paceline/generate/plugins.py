"""From names to plug-ins, by entry points: listing imports nothing, finding imports one module.

The built-in drafters, rules and controllers are registered in the same way as third-party ones.
Entry points are read once per process, and again if a name is not found: a package may have been
installed since.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Literal

from paceline.core.traits import Traits, traits_of
from paceline.errors import InvalidInput, PacelineError, UnknownName

Kind = Literal["drafter", "verifier", "controller"]


@dataclass(frozen=True, slots=True)
class Plugin:
    """A registered plug-in, imported: how to build it, and what it declares.

    Args:
        kind: drafter, rule or controller.
        name: the name under which it is registered.
        factory: its class.
        settings: the names of its settings; empty if the class is not a dataclass.
        required: the settings without a default.
        traits: the traits of the class.
    """

    kind: Kind
    name: str
    factory: Callable[..., Any]
    settings: tuple[str, ...]
    required: tuple[str, ...]
    traits: Traits

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse a setting that the plug-in does not have.

        Raises:
            UnknownName: suggests the closest existing name.
        """
        for setting in settings:
            if setting not in self.settings:
                raise UnknownName.among(
                    f"setting of {self.kind} {self.name!r}:", setting, self.settings
                )

    def missing(self, settings: Mapping[str, Any]) -> list[str]:
        """The settings without a default that are not in `settings`.

        >>> find("drafter", "reference").missing({"max_ngram": 3})
        ['references']
        """
        return [name for name in self.required if name not in settings]

    def make(self, settings: Mapping[str, Any]) -> Any:
        """Build the plug-in.

        Raises:
            UnknownName: it does not have a setting.
            InvalidInput: a setting is missing, or of the wrong type.
        """
        self.check(settings)
        try:
            return self.factory(**settings)
        except TypeError as error:
            raise InvalidInput(f"{self.kind} {self.name!r}: {error}") from None


def names(kind: Kind) -> list[str]:
    """The registered names of a kind, sorted; imports nothing.

    >>> names("controller")[:1]
    ['adaedl']
    """
    return sorted({point.name for point in _registered(kind)})


def points(kind: Kind) -> dict[str, EntryPoint]:
    """The entry points of a kind, by name; imports nothing.

    Raises:
        PacelineError: two packages register different things under one name. Which of them is meant
            would depend on the order of installation.
    """
    found: dict[str, EntryPoint] = {}
    for point in _registered(kind):
        first = found.setdefault(point.name, point)
        if first.value != point.value:
            raise PacelineError(
                f"two packages register a {kind} under the name {point.name!r}: {_origin(first)} "
                f"and {_origin(point)}; uninstall one of them, or rename its entry point"
            )
    return found


def find(kind: Kind, name: str) -> Plugin:
    """The plug-in registered under `name`.

    Raises:
        UnknownName: there is none; suggests the closest.
        PacelineError: its module cannot be imported, or two packages claim a name.

    Example:
        >>> find("controller", "fixed").settings
        ('num_draft_tokens',)
    """
    known = points(kind)
    if name not in known:
        forget()
        known = points(kind)
    if name not in known:
        raise UnknownName.among(kind, name, known)
    return _loaded(kind, known[name])


def forget() -> None:
    """Read the entry points again the next time they are needed."""
    _groups.cache_clear()
    _loaded.cache_clear()


def _registered(kind: Kind) -> EntryPoints:
    return _groups(tuple(sys.path)).get(kind, EntryPoints())


@functools.lru_cache(maxsize=1)
def _groups(path: tuple[str, ...]) -> dict[Kind, EntryPoints]:
    """The entry points of each kind in the packages on `path`, the import path."""
    every = entry_points()
    kinds: tuple[Kind, ...] = ("drafter", "verifier", "controller")
    return {kind: every.select(group=f"paceline.{kind}s") for kind in kinds}


@functools.cache
def _loaded(kind: Kind, point: EntryPoint) -> Plugin:
    try:
        factory = point.load()
    except (ImportError, AttributeError) as error:
        raise PacelineError(
            f"the {kind} {point.name!r} is registered as {point.value}, which cannot be "
            f"imported: {error}; reinstall the package that provides it"
        ) from error
    settings = [item for item in fields(factory) if item.init] if is_dataclass(factory) else []
    return Plugin(
        kind,
        point.name,
        factory,
        tuple(item.name for item in settings),
        tuple(
            item.name
            for item in settings
            if item.default is MISSING and item.default_factory is MISSING
        ),
        traits_of(factory),
    )


def _origin(point: EntryPoint) -> str:
    """The package that an entry point comes from, and the class that it names."""
    package = "an unknown package" if point.dist is None else point.dist.name
    return f"{package} ({point.value})"
