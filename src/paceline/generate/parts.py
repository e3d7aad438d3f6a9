"""The parts of a call, drafter, rule and controller, from names or objects: for every door.

Nothing here imports torch, so that a name is refused before anything heavy is loaded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from paceline.core.traits import traits_of
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.generate.choice import Choice, check_members, checked_settings, choose_drafter

if TYPE_CHECKING:
    from paceline.core.protocols import Controller, Drafter, Target, Verifier
    from paceline.core.target import TargetInfo


class Foreign(NamedTuple):
    """A draft model whose tokenizer may be another, and both tokenizers; None where unknown."""

    target: Target
    tokenizer: Any
    draft_tokenizer: Any


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
        check_members("drafter", "drafter", drafter)
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
    plugin = plugins.find("drafter", choice.name)
    if "tokenizer_fingerprint" in plugin.settings:
        chosen.setdefault("tokenizer_fingerprint", fingerprint())
    if "references" in chosen:
        chosen["references"] = encode_references(chosen["references"], encode)
    if "prediction" in chosen:
        chosen["prediction"] = _token_ids("a prediction", chosen["prediction"], encode)
    if choice.draft_model is not None:
        if plugin.traits.translates:
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
    made: Drafter = plugin.make(chosen)
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
    chosen = checked_settings(settings, "a rule")
    if chosen and not isinstance(verify, str):
        raise InvalidInput(
            "the settings of a rule go with one given by name: give verify, or leave them out"
        )
    if verify is None:
        verify = traits_of(drafter).default_verifier
        if repeatable and traits_of(controller).uses_clock:
            verify = "coupling"
    if not isinstance(verify, str):
        check_members("verifier", "verify", verify)
        return verify
    made: Verifier = plugins.find("verifier", verify).make(chosen)
    return made


def check_rule(verify: str | None, settings: Mapping[str, Any] | None) -> None:
    """Refuse a rule, or settings of it, before anything is loaded.

    Raises:
        InvalidInput: see `make_verifier`.
    """
    chosen = checked_settings(settings, "a rule")
    if verify is not None:
        plugins.find("verifier", verify).make(chosen)
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
    if traits_of(verifier).looks_ahead and (others := [p for p in processors if p not in known]):
        raise InvalidInput(
            f"the rule {verifier.name!r} looks at draft tokens that it may then reject, which a "
            f"logits processor with a state must not see, and {others[0]!r:.80} may have one; "
            "choose a rule that walks (token, tree), or name the processor in draft_processors "
            "if it has no state"
        )


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
    chosen = checked_settings(settings, of="a controller")
    if controller is not None and not isinstance(controller, str):
        check_members("controller", "controller", controller)
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
    plugin = plugins.find("controller", controller)
    names = traits_of(drafter).names
    if names and "drafters" in plugin.settings:
        chosen.setdefault("drafters", names)
    costs = {} if target is None else target.row_costs
    if costs and "row_costs" in plugin.settings:
        chosen.setdefault("row_costs", costs)
    made: Controller = plugin.make(chosen)
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
