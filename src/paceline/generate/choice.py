"""Which drafter a call means, and what to build it from: checked before anything is loaded.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.traits import Traits, traits_of
from paceline.errors import InvalidInput, UnknownName
from paceline.generate import plugins
from paceline.generate.plugins import Plugin

if TYPE_CHECKING:
    from paceline.core.protocols import Drafter

_MEMBERS: dict[plugins.Kind, tuple[str, ...]] = {
    "drafter": ("name", "needs", "open"),
    "verifier": ("name", "exact", "couples", "schemes", "needs_chain", "verify"),
    "controller": ("name", "open"),
}


class Choice(NamedTuple):
    """A registered drafter and what to build it from.

    Args:
        name: the name under which it is registered.
        settings: its settings, without the draft model.
        draft_model: the draft model as it was given; None for a drafter that needs none.
        parts: the drafters that it combines, if any.
    """

    name: str
    settings: dict[str, Any]
    draft_model: Any
    parts: tuple[Choice | Drafter, ...] = ()

    @property
    def has_draft_model(self) -> bool:
        """Whether it, or a part of it, drafts with a model."""
        return next(self.with_draft_models(), None) is not None

    @property
    def has_head(self) -> bool:
        """Whether it, or a part of it, drafts with a head."""
        return next(self.of_heads(), None) is not None

    def with_draft_models(self) -> Iterator[Choice]:
        """The choices (this one or its parts) that draft with a model."""
        if self.draft_model is not None:
            yield self
        for part in self.parts:
            if isinstance(part, Choice):
                yield from part.with_draft_models()

    def of_heads(self) -> Iterator[Choice]:
        """The choices (this one or its parts) that draft with a head."""
        if plugins.find("drafter", self.name).traits.needs_draft_head:
            yield self
        for part in self.parts:
            if isinstance(part, Choice):
                yield from part.of_heads()

    def with_heads(self, opened: Callable[[Choice], Choice]) -> Choice:
        """The choice with `opened` applied to those (this one or its parts) that have a head."""
        parts = tuple(
            part.with_heads(opened) if isinstance(part, Choice) else part for part in self.parts
        )
        found = self._replace(parts=parts)
        takes = plugins.find("drafter", self.name).traits.needs_draft_head
        return opened(found) if takes else found


_COMBINED = "ngram,model"
"""The drafter that combines others if none is named."""


def choose_drafter(
    drafter: str | Sequence[str] | None,
    settings: Mapping[str, Any] | None = None,
    draft_model: Any = None,
    draft_head: Any = None,
    *,
    option: str = "draft_model",
    head_option: str = "draft_head",
) -> Choice:
    """Check that a drafter, its settings and a draft model or head go together; builds nothing.

    Args:
        drafter: a registered name; None means "model" if a draft model is given, "head" if a draft
            head is, else "ngram".
            Several names, in a list or separated by commas, mean a "cascade" of them.
        settings: the settings of the drafter. For a drafter that needs a draft model, the setting
            `model` is another way to give one, as is `head` for one that drafts with a head. A
            drafter that combines others takes its own
            settings and theirs, optionally prefixed with the drafter's name, as in
            "ngram.max_ngram".
        draft_model: the draft model, in any form.
        draft_head: the draft head: its path, or a loaded one. It becomes the setting `head`.
        option, head_option: what the caller calls these two options.

    Raises:
        UnknownName: there is no such drafter, or it has no such setting.
        InvalidInput: the drafter lacks a draft model or another setting that it needs, or is given
            two draft models, or one that it does not take.

    Example:
        >>> choose_drafter(None, {"max_ngram": 4})
        Choice(name='ngram', settings={'max_ngram': 4}, draft_model=None, parts=())
    """
    chosen = checked_settings(settings)
    if drafter is None:
        drafter = _default_drafter(
            with_model=draft_model is not None or "model" in chosen,
            with_head=draft_head is not None or "head" in chosen,
            options=(option, head_option),
        )
    names = _several(drafter)
    if names is not None:
        drafter, chosen = "cascade", {"drafters": names, **chosen}
    assert isinstance(drafter, str)
    plugin = plugins.find("drafter", drafter)
    if plugin.traits.combines:
        return _choose_parts(plugin, chosen, draft_model, draft_head, (option, head_option))
    needs_model = plugin.traits.needs_draft_model
    plugin.check(chosen)
    if draft_head is not None:
        if not plugin.traits.needs_draft_head:
            raise InvalidInput(f"drafter {drafter!r} takes no draft head; leave {head_option} out")
        if chosen.get("head") is not None:
            raise InvalidInput(
                f"the draft head is given twice, as {head_option} and as the setting 'head' of "
                f"drafter {drafter!r}; give one"
            )
        chosen["head"] = draft_head
    missing = plugin.missing(chosen)
    if "head" in missing and plugin.traits.needs_draft_head:
        raise InvalidInput(f"drafter {drafter!r} needs a draft head; give {head_option}")
    if needed := [name for name in missing if not (needs_model and name == "model")]:
        raise InvalidInput(
            f"drafter {drafter!r} needs the setting {needed[0]!r}; give it in drafter_options, on "
            "the command line with --drafter-option NAME=VALUE (texts with --reference or "
            "--prediction FILE)"
        )
    if not needs_model:
        if draft_model is not None:
            raise InvalidInput(f"drafter {drafter!r} takes no draft model; leave {option} out")
        return Choice(drafter, chosen, None)
    as_setting = chosen.pop("model", None)
    if draft_model is not None and as_setting is not None:
        raise InvalidInput(
            f"the draft model is given twice, as {option} and as the setting 'model' of drafter "
            f"{drafter!r}; give one"
        )
    draft_model = as_setting if draft_model is None else draft_model
    if draft_model is None:
        raise InvalidInput(f"drafter {drafter!r} needs a draft model; give {option}")
    return Choice(drafter, chosen, draft_model)


def _default_drafter(*, with_model: bool, with_head: bool, options: tuple[str, str]) -> str:
    """The drafter if none is named.

    Raises:
        InvalidInput: there are a draft model and a draft head.
    """
    if with_model and with_head:
        raise InvalidInput(
            f"{options[0]} and {options[1]} are both given, and either drafts by itself; leave one "
            "out, or name the drafters, as in model,head"
        )
    return "model" if with_model else "head" if with_head else "ngram"


def _several(drafter: Any) -> list[Any] | None:
    """Several drafters or their names; None if it is one name."""
    if isinstance(drafter, str):
        found: list[Any] = [name.strip() for name in drafter.split(",")]
    elif isinstance(drafter, Sequence) and drafter:
        found = list(drafter)
    else:
        raise InvalidInput(
            "drafter must be a registered name, a drafter, or a list of them; it is "
            f"{drafter!r:.80}"
        )
    return found if len(found) > 1 or not isinstance(drafter, str) else None


def _members(given: Any) -> list[Any]:
    """The drafters, or their names, that a combining drafter combines."""
    given = given.split(",") if isinstance(given, str) else given
    if not isinstance(given, Iterable):
        raise InvalidInput(f"drafters must be a list of names or drafters; it is {given!r:.80}")
    return [part.strip() if isinstance(part, str) else part for part in given]


def needs_draft_model(drafter: str, settings: Mapping[str, Any]) -> bool:
    """Whether a drafter given by name, or one of those that it combines, drafts with a model.

    Raises:
        UnknownName: there is no such drafter.
        InvalidInput: the setting `drafters` is not a list.

    Example:
        >>> needs_draft_model("hybrid", {"drafters": "ngram, recycling"})
        False
    """
    return any(traits.needs_draft_model for traits in _all_traits(drafter, settings))


def needs_draft_head(drafter: str, settings: Mapping[str, Any]) -> bool:
    """Whether a drafter given by name, or one of those that it combines, drafts with a head.

    Raises: see `needs_draft_model`.

    Example:
        >>> needs_draft_head("hybrid", {"drafters": "ngram, medusa"})
        True
    """
    return any(traits.needs_draft_head for traits in _all_traits(drafter, settings))


def _all_traits(drafter: str, settings: Mapping[str, Any]) -> Iterator[Traits]:
    """The traits of a drafter, or of those that it combines."""
    traits = plugins.find("drafter", drafter).traits
    if not traits.combines:
        yield traits
        return
    for part in _members(settings.get("drafters", _COMBINED)):
        if isinstance(part, str):
            yield plugins.find("drafter", part).traits
        else:
            yield traits_of(part)


def _choose_parts(
    plugin: Plugin,
    settings: dict[str, Any],
    draft_model: Any,
    draft_head: Any,
    options: tuple[str, str],
) -> Choice:
    """The choice of a drafter that combines others, and of its parts."""
    members = _members(settings.pop("drafters", _COMBINED))
    named = [part for part in members if isinstance(part, str)]
    own, theirs = _settings_by_part(plugin, named, settings)
    if not draft_model and "model" in own:
        draft_model = own.pop("model")
    option, head_option = options
    parts: list[Choice | Drafter] = []
    used = head_used = False
    for part in members:
        if not isinstance(part, str):
            check_members("drafter", "drafters", part)
            parts.append(part)
            continue
        traits = plugins.find("drafter", part).traits
        if traits.combines:
            raise InvalidInput(
                f"drafter {plugin.name!r} combines single drafters; {part!r} is not one"
            )
        takes, takes_head = traits.needs_draft_model, traits.needs_draft_head
        used, head_used = used or takes, head_used or takes_head
        source = draft_model if takes and "model" not in theirs[part] else None
        head = draft_head if takes_head and "head" not in theirs[part] else None
        parts.append(
            choose_drafter(part, theirs[part], source, head, option=option, head_option=head_option)
        )
    if draft_model is not None and not used:
        raise InvalidInput(
            f"none of the drafters {', '.join(named)} takes a draft model; leave {option} out"
        )
    if draft_head is not None and not head_used:
        raise InvalidInput(
            f"none of the drafters {', '.join(named)} takes a draft head; leave {head_option} out"
        )
    plugin.check(own)
    return Choice(plugin.name, own, None, tuple(parts))


def _settings_by_part(
    plugin: Plugin, parts: Sequence[str], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The settings of the combination itself and those of each part.

    Raises:
        UnknownName: none of them has the setting.
        InvalidInput: several parts have the setting, and it does not say whose it is.
    """
    own: dict[str, Any] = {}
    theirs: dict[str, dict[str, Any]] = {part: {} for part in parts}
    known = {part: plugins.find("drafter", part).settings for part in parts}
    for setting, value in settings.items():
        part, dot, rest = setting.partition(".")
        if dot and part in theirs:
            theirs[part][rest] = value
            continue
        takers = [part for part in parts if setting in known[part]]
        if setting in plugin.settings or setting == "model":
            own[setting] = value
        elif len(takers) == 1:
            theirs[takers[0]][setting] = value
        elif takers:
            raise InvalidInput(
                f"{setting!r} is a setting of {' and of '.join(takers)}; say whose, as in "
                f"{takers[0]}.{setting}"
            )
        else:
            every = sorted({item for part in parts for item in known[part]})
            raise UnknownName.among(f"setting of drafters {', '.join(parts)}:", setting, every)
    return own, theirs


def choose(
    drafter: str | Sequence[str] | Drafter | None,
    settings: Mapping[str, Any] | None = None,
    draft_model: Any = None,
    draft_head: Any = None,
) -> Choice | Drafter:
    """Like `choose_drafter`; a drafter object has its settings and stays as it is.

    Raises:
        InvalidInput: see `choose_drafter`; or settings, a draft model or a draft head are given
            with a drafter object.
    """
    if drafter is None or isinstance(drafter, (str, list, tuple)):
        return choose_drafter(drafter, settings, draft_model, draft_head)
    if settings or draft_model is not None or draft_head is not None:
        raise InvalidInput(
            "settings, a draft model and a draft head require a drafter given by name; the drafter "
            "given has its settings already"
        )
    check_members("drafter", "drafter", drafter)
    return drafter  # type: ignore[return-value]


def checked_settings(settings: Any, of: str = "a drafter") -> dict[str, Any]:
    """A copy; None means no settings."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise InvalidInput(
            f"the settings of {of} must map their names to values; they are {settings!r:.80}"
        )
    return dict(settings)


def check_members(kind: plugins.Kind, option: str, given: Any) -> None:
    """Refuse an object that cannot be a plug-in of the kind, or a class instead of an object."""
    missing = [name for name in _MEMBERS[kind] if not hasattr(given, name)]
    if missing or isinstance(given, type):
        reason = f"has no {missing[0]}" if missing else "is a class; make an object of it"
        raise InvalidInput(
            f"{option} must be a registered name or a {kind}; {given!r:.80} {reason}"
        )
