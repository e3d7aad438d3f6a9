"""From names to plug-ins, by entry points: listing imports nothing, loading imports one module.

The built-in drafters, rules and controllers are registered in the same way as those of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Literal

from paceline.errors import InvalidInput, PacelineError, UnknownName

Kind = Literal["drafter", "verifier", "controller"]


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


def names(kind: Kind) -> list[str]:
    """The registered names of a kind, sorted; imports nothing.

    >>> names("controller")[:1]
    ['adaedl']
    """
    return sorted({point.name for point in _registered(kind)})


def find(kind: Kind, name: str) -> Any:
    """The class registered under `name`.

    Raises:
        UnknownName: there is none; names the nearest.
        PacelineError: its module cannot be imported, or two packages claim a name.
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


def needs_draft_model(drafter: Any) -> bool:
    """Whether a drafter, or its class, drafts with a model of its own.

    One that does not say so has none; see `protocols.Drafter`.
    """
    return bool(getattr(drafter, "needs_draft_model", False))


def translates(drafter: Any) -> bool:
    """Whether a drafter, or its class, takes a draft model with another tokenizer.

    It takes both tokenizers, as its settings `tokenizer`, the target's, and `draft_tokenizer`.
    """
    return bool(getattr(drafter, "translates", False))


def combines(drafter: Any) -> bool:
    """Whether a drafter, or its class, holds others as its setting `drafters`.

    It can then be given by name, with the names of those.
    """
    return bool(getattr(drafter, "combines", False))


def looks_ahead(verifier: Any) -> bool:
    """Whether a rule asks for laws behind draft tokens that it may then reject.

    One that does not say so walks; see `protocols.Verifier`.
    """
    return bool(getattr(verifier, "looks_ahead", False))


def default_verifier(drafter: Any) -> str:
    """The rule that verifies a drafter's drafts where none is named: what it says, else "token".

    A drafter of trees names a rule that takes them, by `default_verifier: ClassVar[str]`.
    """
    return str(getattr(drafter, "default_verifier", "token"))


def settings_of(kind: Kind, name: str) -> list[str]:
    """The names of the settings of the plug-in `name`.

    >>> settings_of("controller", "fixed")
    ['num_draft_tokens']
    """
    plugin = find(kind, name)
    return [item.name for item in fields(plugin) if item.init] if is_dataclass(plugin) else []


def check_settings(kind: Kind, name: str, settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the plug-in `name` does not have.

    Raises:
        UnknownName: names the nearest of those that it has.
    """
    known = settings_of(kind, name)
    for setting in settings:
        if setting not in known:
            raise UnknownName.among(f"setting of {kind} {name!r}:", setting, known)


def missing_settings(kind: Kind, name: str, settings: Mapping[str, Any]) -> list[str]:
    """The settings that the plug-in `name` cannot do without and that are not in `settings`.

    >>> missing_settings("drafter", "reference", {"max_ngram": 3})
    ['references']
    """
    plugin = find(kind, name)
    return [
        item.name
        for item in (fields(plugin) if is_dataclass(plugin) else ())
        if item.init
        and item.default is MISSING
        and item.default_factory is MISSING
        and item.name not in settings
    ]


def make(kind: Kind, name: str, settings: Mapping[str, Any]) -> Any:
    """Build the plug-in `name` from its settings.

    Raises:
        UnknownName: an unknown name, or a setting that the plug-in does not have.
        InvalidInput: a setting is missing, or of the wrong type.
    """
    check_settings(kind, name, settings)
    try:
        return find(kind, name)(**settings)
    except TypeError as error:
        raise InvalidInput(f"{kind} {name!r}: {error}") from None


def _registered(kind: Kind) -> EntryPoints:
    return entry_points(group=f"paceline.{kind}s")


def _origin(point: EntryPoint) -> str:
    """The package that an entry point comes from, and the class that it names."""
    package = "an unknown package" if point.dist is None else point.dist.name
    return f"{package} ({point.value})"
