"""The parts of a call (drafter, rule, controller) from names or objects, for all interfaces.

Nothing here imports torch, so a wrong name is refused before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from paceline.checks import token_ids
from paceline.core.traits import traits_of
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.generate.choice import Choice, check_members, checked_settings
from paceline.text.fingerprint import tokenizer_fingerprint
from paceline.text.prompt import encode_plain

if TYPE_CHECKING:
    from paceline.core.protocols import Controller, Drafter, Verifier
    from paceline.core.target import TargetInfo
    from paceline.generate.draft_models import OpenDraft


def make_drafter(
    choice: Choice | Drafter, drafts: Mapping[int, OpenDraft], tokenizer: Any = None
) -> Drafter:
    """Build the chosen drafter; a drafter object stays as it is.

    Args:
        choice: see `choice.choose`.
        drafts: the draft models that it names, see `draft_models.DraftModels.open`.
        tokenizer: the target's, for drafters that translate, and for settings that may be text:
            `references`, a text or a list of texts and of token ids, and `prediction`.

    Raises:
        InvalidInput: the drafter refuses a setting, or a text is given without a tokenizer.
    """
    if not isinstance(choice, Choice):
        return choice
    chosen = dict(choice.settings)
    plugin = plugins.find("drafter", choice.name)
    if "tokenizer_fingerprint" in plugin.settings and "tokenizer_fingerprint" not in chosen:
        chosen["tokenizer_fingerprint"] = tokenizer and tokenizer_fingerprint(tokenizer)
    if "references" in chosen:
        chosen["references"] = encode_references(chosen["references"], tokenizer)
    if "prediction" in chosen:
        chosen["prediction"] = _encoded("a prediction", chosen["prediction"], tokenizer)
    if choice.draft_model is not None:
        draft = drafts[id(choice.draft_model)]
        tokenizers = {"tokenizer": tokenizer, "draft_tokenizer": draft.tokenizer}
        found = tokenizers if plugin.traits.translates else {}
        chosen = {"model": draft.target, **found, **chosen}
    if choice.parts:
        chosen["drafters"] = tuple(make_drafter(part, drafts, tokenizer) for part in choice.parts)
    made: Drafter = plugin.make(chosen)
    return made


def make_verifier(
    rule: Verifier | None,
    drafter: Drafter,
    *,
    controller: Controller | None = None,
    repeatable: bool = False,
) -> Verifier:
    """The rule of a call.

    Args:
        rule: what the user named, see `named_rule`; None uses the one that suits the drafter.
        drafter: the drafter whose drafts it verifies.
        controller: the controller of the call.
        repeatable: whether the call samples with a given seed, so that it must give the same text
            again. If draft lengths depend on the clock and no rule is named, the rule is then
            "coupling", whose text does not depend on what is drafted.

    Example:
        >>> from paceline.drafters.ngram import NgramDrafter
        >>> make_verifier(None, NgramDrafter())
        TokenVerifier()
    """
    if rule is not None:
        return rule
    coupled = repeatable and traits_of(controller).uses_clock
    name = "coupling" if coupled else traits_of(drafter).default_verifier
    made: Verifier = plugins.find("verifier", name).make({})
    return made


def named_rule(
    verify: str | Verifier | None, settings: Mapping[str, Any] | None = None
) -> Verifier | None:
    """The rule that the user named; None if it was left to Paceline.

    Raises:
        UnknownName: there is no such rule, or it has no such setting.
        InvalidInput: the rule refuses a setting, or there are settings without a name.

    Example:
        >>> named_rule("lenience", {"lenience": 0.8})
        LenienceVerifier(lenience=0.8)
    """
    chosen = checked_settings(settings, "a rule")
    if isinstance(verify, str):
        made: Verifier = plugins.find("verifier", verify).make(chosen)
        return made
    if chosen:
        raise InvalidInput(
            f"{next(iter(chosen))!r} is a setting of a rule, and settings require a rule given by "
            "name: name the rule too (verify), or leave it out"
        )
    if verify is not None:
        check_members("verifier", "verify", verify)
    return verify


def check_processors(
    verifier: Verifier, processors: Iterable[Any], stateless: Iterable[Any]
) -> None:
    """Refuse logits processors that may be stateful under a rule that looks ahead.

    Such a rule has them called after tokens that it may still reject.

    Args:
        verifier: the rule.
        processors: all processors of a call.
        stateless: those known to be functions of the text only.
    """
    known = list(stateless)
    if traits_of(verifier).looks_ahead and (others := [p for p in processors if p not in known]):
        raise InvalidInput(
            f"the rule {verifier.name!r} looks at draft tokens that it may still reject, which a "
            f"logits processor with a state must not see, and {others[0]!r:.80} may have one; "
            "choose a rule that walks (token, tree), or name the processor in draft_processors "
            "if it has no state"
        )


def draft_weights(drafter: Any) -> int | dict[str, int]:
    """The number of weights that a prompt token goes through before a drafter can draft.

    By name, if it combines several. 0 if it drafts without a model, or if the model does not report
    it.
    """
    traits = traits_of(drafter)
    if traits.combines:
        parts = {part.name: draft_weights(part) for part in drafter.drafters}
        counts = {name: found for name, found in parts.items() if isinstance(found, int)}
        return counts if any(counts.values()) else 0
    if not traits.needs_draft_model:
        return 0
    found: int = drafter.model.info.num_weights
    return found


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
        controller: a registered name, or a controller; None means "auto", or "fixed" with a number
            of draft tokens.
        num_draft_tokens: its setting of that name; None or "auto" keeps its default.
        settings: the other settings of a controller given by name.
        drafter: the drafter of the call. A controller that can choose between drafters gets their
            names.
        target: the target of the call. A controller that weighs costs gets what is known about its
            passes.

    Raises:
        UnknownName: there is no such controller, or it has no such setting.
        InvalidInput: settings are given with a controller object, or "auto" with a controller that
            cannot choose the length.

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
                    f"{name} requires a controller given by name; the controller given has its "
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
    if drafter is not None and "draft_weights" in plugin.settings:
        chosen.setdefault("draft_weights", draft_weights(drafter))
    made: Controller = plugin.make(chosen)
    return made


def encode_references(references: Any, tokenizer: Any = None) -> tuple[tuple[int, ...], ...]:
    """References as token ids. A single text is one reference.

    >>> encode_references([[5, 6], (7,)])
    ((5, 6), (7,))
    """
    if isinstance(references, str):
        references = [references]
    if isinstance(references, (bytes, Mapping)) or not isinstance(references, Iterable):
        raise InvalidInput(
            "references must be a text, or a list of texts and of lists of token ids; it is "
            f"{references!r:.80}"
        )
    return tuple(_encoded("a reference", reference, tokenizer) for reference in references)


def _encoded(what: str, given: Any, tokenizer: Any) -> tuple[int, ...]:
    if not isinstance(given, str):
        return token_ids(f"{what} must be a text or a list of token ids", given)
    if tokenizer is None:
        raise InvalidInput(
            "a text to draft from needs the tokenizer of the target, and there is none; pass it, "
            "or give token ids"
        )
    return tuple(encode_plain(tokenizer, given))
