"""From names to plug-ins, by entry points: listing imports nothing, finding imports one module.

The built-in drafters, rules and controllers are registered in the same way as those of others.
Entry points are read once per process, and again for a name that is not among them: a package may
have been installed since.
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
    """A registered plug-in, imported: how to make it, and what it declares.

    Args:
        kind: what it is.
        name: under which it is registered.
        factory: its class.
        settings: the names of its settings; none where the class is no dataclass.
        required: those of them without a default.
        traits: of the class.
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
            UnknownName: names the nearest of those that it has.
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
            UnknownName: a setting that it does not have.
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
        PacelineError: two packages register different things under one name. Which of them a
            name means would depend on the order in which they were installed.
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
        UnknownName: there is none; names the nearest.
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
    """Read the entry points again when they are needed next."""
    _groups.cache_clear()
    _loaded.cache_clear()


def _registered(kind: Kind) -> EntryPoints:
    return _groups(tuple(sys.path)).get(kind, EntryPoints())


@functools.lru_cache(maxsize=1)
def _groups(path: tuple[str, ...]) -> dict[Kind, EntryPoints]:
    """The entry points of each kind in the packages on `path`, which is the one to import from."""
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
            f"imported: {error}; reinstall the package that brings it"
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
