"""The parts of a call, drafter, rule and controller, from names or objects: for every door.

Nothing here imports torch, so that a name is refused before anything heavy is loaded.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from paceline.errors import InvalidInput, UnknownName
from paceline.generate import registry

if TYPE_CHECKING:
    from paceline.core.protocols import Controller, Drafter, Target, Verifier
    from paceline.core.target import TargetInfo

log = logging.getLogger("paceline")

PADDING = 0.01
"""Vocabularies of one tokenizer differ by padding alone, which is less than this share of them."""

_MEMBERS: dict[registry.Kind, tuple[str, ...]] = {
    "drafter": ("name", "needs", "open"),
    "verifier": ("name", "exact", "couples", "schemes", "needs_chain", "verify"),
    "controller": ("name", "open"),
}


class Foreign(NamedTuple):
    """A draft model whose tokenizer may be another, and both tokenizers; None where unknown."""

    target: Target
    tokenizer: Any
    draft_tokenizer: Any


class Choice(NamedTuple):
    """A registered drafter and what it is to be built from.

    Args:
        name: under which it is registered.
        settings: without the draft model.
        draft_model: as it was given; None for a drafter that needs none.
        parts: the drafters that it combines, where it combines some.
    """

    name: str
    settings: dict[str, Any]
    draft_model: Any
    parts: tuple[Choice | Drafter, ...] = ()


_COMBINED = "ngram,model"
"""What a drafter that combines others does where nobody says which."""


def choose_drafter(
    drafter: str | Sequence[str] | None,
    settings: Mapping[str, Any] | None = None,
    draft_model: Any = None,
    *,
    option: str = "draft_model",
) -> Choice:
    """Check that a drafter, its settings and a draft model go together; builds nothing.

    Args:
        drafter: a registered name; None is "model" where a draft model is given, else "ngram".
            Several, in a list or with commas between them, are a "cascade" of them.
        settings: of the drafter. The setting `model` of a drafter that needs a draft model is
            another way to give one. Of a drafter that combines others: its own, and theirs, which
            may carry the name of the one that they are for, as in "ngram.max_ngram".
        draft_model: in any form.
        option: what the caller calls the draft model.

    Raises:
        UnknownName: no such drafter, or no such setting of it.
        InvalidInput: a drafter without the draft model or another setting that it needs, with
            two draft models, or with one that it does not take.

    Example:
        >>> choose_drafter(None, {"max_ngram": 4})
        Choice(name='ngram', settings={'max_ngram': 4}, draft_model=None, parts=())
    """
    chosen = _checked_settings(settings)
    if drafter is None:
        drafter = "ngram" if draft_model is None and "model" not in chosen else "model"
    names = _several(drafter)
    if names is not None:
        drafter, chosen = "cascade", {"drafters": names, **chosen}
    assert isinstance(drafter, str)
    if registry.combines(registry.find("drafter", drafter)):
        return _choose_parts(drafter, chosen, draft_model, option)
    needs_model = registry.needs_draft_model(registry.find("drafter", drafter))
    registry.check_settings("drafter", drafter, chosen)
    missing = registry.missing_settings("drafter", drafter, chosen)
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


def _several(drafter: Any) -> list[Any] | None:
    """Several drafters or their names; None where it is one name."""
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
    """What a drafter that combines others combines: names, or drafters."""
    given = given.split(",") if isinstance(given, str) else given
    if not isinstance(given, Iterable):
        raise InvalidInput(f"drafters must be a list of names or drafters; it is {given!r:.80}")
    return [part.strip() if isinstance(part, str) else part for part in given]


def needs_draft_model(drafter: str, settings: Mapping[str, Any]) -> bool:
    """Whether a drafter given by name, or one of those that it combines, drafts with a model.

    Raises:
        UnknownName: no such drafter.
        InvalidInput: a setting `drafters` that is no list.

    Example:
        >>> needs_draft_model("hybrid", {"drafters": "ngram, recycling"})
        False
    """
    found = registry.find("drafter", drafter)
    if not registry.combines(found):
        return registry.needs_draft_model(found)
    members = _members(settings.get("drafters", _COMBINED))
    return any(
        registry.needs_draft_model(
            registry.find("drafter", part) if isinstance(part, str) else part
        )
        for part in members
    )


def _choose_parts(name: str, settings: dict[str, Any], draft_model: Any, option: str) -> Choice:
    """The choice of a drafter that combines others, and of those."""
    members = _members(settings.pop("drafters", _COMBINED))
    named = [part for part in members if isinstance(part, str)]
    own, theirs = _settings_by_part(name, named, settings)
    if not draft_model and "model" in own:
        draft_model = own.pop("model")
    parts: list[Choice | Drafter] = []
    used = False
    for part in members:
        if not isinstance(part, str):
            _check_members("drafter", "drafters", part)
            parts.append(part)
            continue
        if registry.combines(registry.find("drafter", part)):
            raise InvalidInput(f"drafter {name!r} combines single drafters; {part!r} is not one")
        takes = registry.needs_draft_model(registry.find("drafter", part))
        used = used or takes
        source = draft_model if takes and "model" not in theirs[part] else None
        parts.append(choose_drafter(part, theirs[part], source, option=option))
    if draft_model is not None and not used:
        raise InvalidInput(
            f"none of the drafters {', '.join(named)} takes a draft model; leave {option} out"
        )
    registry.check_settings("drafter", name, own)
    return Choice(name, own, None, tuple(parts))


def _settings_by_part(
    name: str, parts: Sequence[str], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The settings of the combination itself, and those of each part.

    Raises:
        UnknownName: a setting that nobody has.
        InvalidInput: one that several parts have, which does not say whose it is.
    """
    own: dict[str, Any] = {}
    theirs: dict[str, dict[str, Any]] = {part: {} for part in parts}
    known = {part: registry.settings_of("drafter", part) for part in parts}
    for setting, value in settings.items():
        part, dot, rest = setting.partition(".")
        if dot and part in theirs:
            theirs[part][rest] = value
            continue
        takers = [part for part in parts if setting in known[part]]
        if setting in registry.settings_of("drafter", name) or setting == "model":
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


def make_drafter(
    drafter: str | Sequence[str] | Drafter | None,
    settings: Mapping[str, Any] | None,
    draft_model: Any,
    *,
    as_target: Callable[[Any], Target],
    as_foreign: Callable[[Any], Foreign],
    encode: Callable[[str], Sequence[int]],
    fingerprint: Callable[[], str | None] = lambda: None,
) -> Drafter:
    """Build the drafter of a call.

    Args:
        drafter: a drafter, which then has its settings; or what `choose_drafter` takes.
        settings, draft_model: see `choose_drafter`.
        as_target: turns a draft model as it was given into a target. Called once it is sure that
            the drafter takes one, since that may load it.
        as_foreign: the same for drafters that take a draft model with another tokenizer.
        encode: the token ids of a text amid others, for the setting `references`: a text, or a
            list of texts and of token ids; and for `prediction`: a text or token ids.
        fingerprint: of the target's tokenizer, None where that is not known; called for a drafter
            with the setting `tokenizer_fingerprint`.

    Raises:
        PacelineError: see `choose_drafter`; a setting that the drafter refuses.
    """
    if drafter is not None and not isinstance(drafter, (str, list, tuple)):
        if settings or draft_model is not None:
            raise InvalidInput(
                "settings and a draft model go with a drafter given by name; the drafter given "
                "has its settings already"
            )
        _check_members("drafter", "drafter", drafter)
        return drafter  # type: ignore[return-value]
    choice = choose_drafter(drafter, settings, draft_model)
    return _build(choice, as_target, as_foreign, encode, fingerprint)


def _build(
    choice: Choice,
    as_target: Callable[[Any], Target],
    as_foreign: Callable[[Any], Foreign],
    encode: Callable[[str], Sequence[int]],
    fingerprint: Callable[[], str | None],
) -> Drafter:
    chosen = dict(choice.settings)
    if "tokenizer_fingerprint" in registry.settings_of("drafter", choice.name):
        chosen.setdefault("tokenizer_fingerprint", fingerprint())
    if "references" in chosen:
        chosen["references"] = encode_references(chosen["references"], encode)
    if "prediction" in chosen:
        chosen["prediction"] = _token_ids("a prediction", chosen["prediction"], encode)
    if choice.draft_model is not None:
        if registry.translates(registry.find("drafter", choice.name)):
            foreign = as_foreign(choice.draft_model)
            found = {"tokenizer": foreign.tokenizer, "draft_tokenizer": foreign.draft_tokenizer}
            chosen = {"model": foreign.target, **found, **chosen}
        else:
            chosen["model"] = as_target(choice.draft_model)
    if choice.parts:
        chosen["drafters"] = tuple(
            _build(part, as_target, as_foreign, encode, fingerprint)
            if isinstance(part, Choice)
            else part
            for part in choice.parts
        )
    made: Drafter = registry.make("drafter", choice.name, chosen)
    return made


def make_verifier(
    verify: str | Verifier | None,
    drafter: Drafter,
    settings: Mapping[str, Any] | None = None,
    *,
    controller: Controller | None = None,
    repeatable: bool = False,
) -> Verifier:
    """The rule of a call.

    Args:
        verify: a registered name, or a rule; None is the one that suits the drafter.
        drafter: whose drafts it is to verify.
        settings: of a rule given by name.
        controller: that of the call.
        repeatable: the call samples and was given a seed, so it has to give the same text again.
            Where the draft lengths depend on the clock, the rule that is taken where none is named
            is then "coupling", whose text does not depend on what is drafted.

    Raises:
        UnknownName: no such rule, or no such setting of it.
        InvalidInput: a setting that the rule refuses, or settings without a name.

    Example:
        >>> from paceline.drafters.ngram import NgramDrafter
        >>> make_verifier("lenience", NgramDrafter(), {"lenience": 0.8})
        LenienceVerifier(lenience=0.8)
    """
    chosen = _checked_settings(settings, "a rule")
    if chosen and not isinstance(verify, str):
        raise InvalidInput(
            "the settings of a rule go with one given by name: give verify, or leave them out"
        )
    if verify is None:
        verify = registry.default_verifier(drafter)
        if repeatable and uses_clock(controller):
            verify = "coupling"
    if not isinstance(verify, str):
        _check_members("verifier", "verify", verify)
        return verify
    made: Verifier = registry.make("verifier", verify, chosen)
    return made


def check_rule(verify: str | None, settings: Mapping[str, Any] | None) -> None:
    """Refuse a rule, or settings of it, before anything is loaded.

    Raises:
        InvalidInput: see `make_verifier`.
    """
    chosen = _checked_settings(settings, "a rule")
    if verify is not None:
        registry.make("verifier", verify, chosen)
    elif chosen:
        raise InvalidInput(f"{next(iter(chosen))!r} is a setting of a rule; name the rule too")


def check_processors(
    verifier: Verifier, processors: Iterable[Any], stateless: Iterable[Any]
) -> None:
    """Refuse logits processors that may keep a state under a rule that looks ahead.

    Such a rule has them called behind tokens that it may then reject.

    Args:
        verifier: the rule.
        processors: all of a call.
        stateless: those known to be functions of the text alone.
    """
    known = list(stateless)
    if registry.looks_ahead(verifier) and (others := [p for p in processors if p not in known]):
        raise InvalidInput(
            f"the rule {verifier.name!r} looks at draft tokens that it may then reject, which a "
            f"logits processor with a state must not see, and {others[0]!r:.80} may have one; "
            "choose a rule that walks (token, tree), or name the processor in draft_processors "
            "if it has no state"
        )


def uses_clock(controller: Any) -> bool:
    """Whether the draft lengths of a controller depend on timings; one that does not say has none.

    >>> uses_clock(make_controller()), uses_clock(make_controller(num_draft_tokens=3))
    (True, False)
    """
    return bool(getattr(controller, "uses_clock", False))


def make_controller(
    controller: str | Controller | None = None,
    num_draft_tokens: int | Literal["auto"] | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    drafter: Drafter | None = None,
    target: TargetInfo | None = None,
) -> Controller:
    """The controller of a call.

    Args:
        controller: a registered name, or a controller; None is "auto", or with a number of draft
            tokens "fixed".
        num_draft_tokens: its setting of that name; None or "auto" leaves it at its default.
        settings: others, of a controller given by name.
        drafter: that of the call. A controller that can choose between drafters is told their
            names.
        target: that of the call. A controller that weighs costs is told what is known of
            its passes.

    Raises:
        UnknownName: no such controller, or no such setting of it.
        InvalidInput: a controller that has its settings already, and some; a controller that
            cannot choose the length, and "auto".

    Example:
        >>> make_controller(num_draft_tokens=3)
        FixedController(num_draft_tokens=3)
        >>> make_controller().name
        'auto'
    """
    chosen = _checked_settings(settings, of="a controller")
    if controller is not None and not isinstance(controller, str):
        _check_members("controller", "controller", controller)
        for name, given in (("num_draft_tokens", num_draft_tokens), ("settings", settings)):
            if given:
                raise InvalidInput(
                    f"{name} goes with a controller given by name; the controller given has its "
                    "settings already: leave one of them out"
                )
        return controller
    if num_draft_tokens == "auto":
        if controller not in (None, "auto"):
            raise InvalidInput(
                f"num_draft_tokens 'auto' is what controller 'auto' does; with {controller!r} "
                "give a number, or leave one of them out"
            )
        controller, num_draft_tokens = "auto", None
    if controller is None:
        controller = "auto" if num_draft_tokens is None else "fixed"
    if num_draft_tokens is not None:
        if "num_draft_tokens" in chosen:
            raise InvalidInput("num_draft_tokens is given twice; leave one of them out")
        chosen["num_draft_tokens"] = num_draft_tokens
    names = getattr(drafter, "names", ())
    if names and "drafters" in registry.settings_of("controller", controller):
        chosen.setdefault("drafters", tuple(names))
    costs = {} if target is None else target.row_costs
    if costs and "row_costs" in registry.settings_of("controller", controller):
        chosen.setdefault("row_costs", costs)
    made: Controller = registry.make("controller", controller, chosen)
    return made


def encode_references(
    references: Any, encode: Callable[[str], Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """References as token ids. One text is one reference.

    >>> encode_references(["ab", [7]], lambda text: [ord(letter) for letter in text])
    ((97, 98), (7,))
    """
    if isinstance(references, str):
        references = [references]
    if isinstance(references, (bytes, Mapping)) or not isinstance(references, Iterable):
        raise InvalidInput(
            "references must be a text, or a list of texts and of lists of token ids; it is "
            f"{references!r:.80}"
        )
    return tuple(_token_ids("a reference", reference, encode) for reference in references)


def check_same_tokenizer(ours: Any, theirs: Any, *, target: str, draft: str) -> None:
    """Raise unless both tokenizers, of the models named, mean the same text by the same ids.

    Padding of the vocabularies, which no text uses, may differ.
    """
    our_ids, their_ids = ours.get_vocab(), theirs.get_vocab()
    if our_ids == their_ids:
        return
    differing = [
        token for token, number in our_ids.items() if their_ids.get(token, number) != number
    ]
    extra = our_ids.keys() ^ their_ids.keys()
    if differing or len(extra) > PADDING * len(our_ids):
        raise InvalidInput(
            f"the draft model {draft} has another tokenizer than {target}: "
            f"{len(extra)} tokens stand in one vocabulary alone and {len(differing)} have another "
            "number; choose a draft model of the same family, or the drafter 'universal' "
            "(--drafter universal), which takes another tokenizer"
        )


def warn_of_vocabularies(target: TargetInfo, draft: TargetInfo) -> None:
    """Where tokenizers cannot be compared: say so if the sizes differ by more than padding."""
    if abs(target.vocab_size - draft.vocab_size) > PADDING * target.vocab_size:
        log.warning(
            "the draft model %s has a vocabulary of %d tokens and %s one of %d: if their "
            "tokenizers differ, hardly a draft token will be accepted",
            draft.name,
            draft.vocab_size,
            target.name,
            target.vocab_size,
        )


def _token_ids(what: str, given: Any, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    if isinstance(given, str):
        return tuple(encode(given))
    try:
        if isinstance(given, (bytes, Mapping)):
            raise TypeError
        return tuple(operator.index(token) for token in given)
    except TypeError:
        raise InvalidInput(
            f"{what} must be a text or a list of token ids; it is {given!r:.80}"
        ) from None


def _checked_settings(settings: Any, of: str = "a drafter") -> dict[str, Any]:
    """A copy; None is no settings."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise InvalidInput(
            f"the settings of {of} must map their names to values; they are {settings!r:.80}"
        )
    return dict(settings)


def _check_members(kind: registry.Kind, option: str, given: Any) -> None:
    """Refuse an object that cannot be a plug-in of the kind, or is a class and not an object."""
    missing = [name for name in _MEMBERS[kind] if not hasattr(given, name)]
    if missing or isinstance(given, type):
        reason = f"has no {missing[0]}" if missing else "is a class; make an object of it"
        raise InvalidInput(
            f"{option} must be a registered name or a {kind}; {given!r:.80} {reason}"
        )
