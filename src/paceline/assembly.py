"""The parts of a call, drafter, rule and controller, from names or objects: for every door.

Nothing here imports torch, so that a name is refused before anything heavy is loaded.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline import registry
from paceline.errors import InvalidInput

if TYPE_CHECKING:
    from paceline.protocols import Controller, Drafter, Target, Verifier
    from paceline.types import TargetInfo

log = logging.getLogger("paceline")

PADDING = 0.01
"""Vocabularies of one tokenizer differ by padding alone, which is less than this share of them."""

_MEMBERS: dict[registry.Kind, tuple[str, ...]] = {
    "drafter": ("name", "needs", "open"),
    "verifier": ("name", "exact", "couples", "schemes", "needs_chain", "verify"),
    "controller": ("name", "open"),
}


class Choice(NamedTuple):
    """A registered drafter and what it is to be built from.

    Args:
        name: under which it is registered.
        settings: without the draft model.
        draft_model: as it was given; None for a drafter that needs none.
    """

    name: str
    settings: dict[str, Any]
    draft_model: Any


def choose_drafter(
    drafter: str | None,
    settings: Mapping[str, Any] | None = None,
    draft_model: Any = None,
    *,
    option: str = "draft_model",
) -> Choice:
    """Check that a drafter, its settings and a draft model go together; builds nothing.

    Args:
        drafter: a registered name; None is "model" where a draft model is given, else "ngram".
        settings: of the drafter. The setting `model` of a drafter that needs a draft model is
            another way to give one.
        draft_model: in any form.
        option: what the caller calls the draft model.

    Raises:
        UnknownName: no such drafter, or no such setting of it.
        InvalidInput: a drafter without the draft model that it needs, with two, or with one that
            it does not take.

    Example:
        >>> choose_drafter(None, {"max_ngram": 4})
        Choice(name='ngram', settings={'max_ngram': 4}, draft_model=None)
    """
    chosen = _checked_settings(settings)
    if drafter is None:
        drafter = "ngram" if draft_model is None and "model" not in chosen else "model"
    needs_model = registry.needs_draft_model(registry.find("drafter", drafter))
    registry.check_settings("drafter", drafter, chosen)
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


def make_drafter(
    drafter: str | Drafter | None,
    settings: Mapping[str, Any] | None,
    draft_model: Any,
    *,
    as_target: Callable[[Any], Target],
    encode: Callable[[str], Sequence[int]],
) -> Drafter:
    """Build the drafter of a call.

    Args:
        drafter: a drafter, which then has its settings; or what `choose_drafter` takes.
        settings, draft_model: see `choose_drafter`.
        as_target: turns a draft model as it was given into a target. Called once it is sure that
            the drafter takes one, since that may load it.
        encode: the token ids of a text amid others, for the setting `references`: a text, or a
            list of texts and of token ids.

    Raises:
        PacelineError: see `choose_drafter`; a setting that the drafter refuses.
    """
    if drafter is not None and not isinstance(drafter, str):
        if settings or draft_model is not None:
            raise InvalidInput(
                "settings and a draft model go with a drafter given by name; the drafter given "
                "has its settings already"
            )
        _check_members("drafter", "drafter", drafter)
        return drafter
    name, chosen, source = choose_drafter(drafter, settings, draft_model)
    if "references" in chosen:
        chosen["references"] = encode_references(chosen["references"], encode)
    if source is not None:
        chosen["model"] = as_target(source)
    made: Drafter = registry.make("drafter", name, chosen)
    return made


def make_verifier(verify: str | Verifier | None, drafter: Drafter) -> Verifier:
    """The rule of a call, by name or as an object; None is the one that suits the drafter."""
    if verify is None:
        verify = registry.default_verifier(drafter)
    if not isinstance(verify, str):
        _check_members("verifier", "verify", verify)
        return verify
    made: Verifier = registry.make("verifier", verify, {})
    return made


def make_controller(
    controller: str | Controller | None = None, num_draft_tokens: int | None = None
) -> Controller:
    """The controller of a call.

    Args:
        controller: a registered name, or a controller; None is "fixed".
        num_draft_tokens: its setting of that name; None leaves it at its default.

    Raises:
        InvalidInput: a controller that has its settings already, and `num_draft_tokens`.

    Example:
        >>> make_controller(num_draft_tokens=3)
        FixedController(num_draft_tokens=3)
    """
    if controller is not None and not isinstance(controller, str):
        _check_members("controller", "controller", controller)
        if num_draft_tokens is not None:
            raise InvalidInput(
                "num_draft_tokens goes with a controller given by name; the controller given has "
                "its settings already: leave one of them out"
            )
        return controller
    settings = {} if num_draft_tokens is None else {"num_draft_tokens": num_draft_tokens}
    name = "fixed" if controller is None else controller
    made: Controller = registry.make("controller", name, settings)
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
    return tuple(_token_ids(reference, encode) for reference in references)


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
            "number; choose a draft model of the same family"
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


def _token_ids(reference: Any, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    if isinstance(reference, str):
        return tuple(encode(reference))
    try:
        if isinstance(reference, (bytes, Mapping)):
            raise TypeError
        return tuple(operator.index(token) for token in reference)
    except TypeError:
        raise InvalidInput(
            f"a reference must be a text or a list of token ids; it is {reference!r:.80}"
        ) from None


def _checked_settings(settings: Any) -> dict[str, Any]:
    """A copy; None is no settings."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise InvalidInput(
            f"the settings of a drafter must map their names to values; they are {settings!r:.80}"
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
