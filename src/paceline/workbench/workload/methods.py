"""The grammar of `--method`: a drafter, or several, and settings; lists of values make a grid.

    METHOD  = DRAFTER ["+" DRAFTER ...] ["," SETTING ...]
    SETTING = NAME "=" VALUE ["," VALUE ...]

A part without "=" is another value of the setting before it, so `ngram,k=2,4` is two methods. A
list value is written as in JSON: `hybrid,drafters=["ngram","recycling"]`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from paceline.errors import InvalidInput, UnknownName
from paceline.generate import plugins
from paceline.generate.choice import choose_drafter, needs_draft_head, needs_draft_model
from paceline.workbench.workload.items import DRAFTING, Item

PLAIN = "none"
"""The drafter, and the method name, that every other method is compared with."""

STORAGES = ("auto", "plain", "packed", "int8", "int4")

_OWN = ("k", "draft", "storage", "head_tokens", "verify")
"""Settings of the method itself; all others are settings of its drafter."""


class DraftSource(NamedTuple):
    """A draft model and how it is loaded. Methods with equal sources share one.

    Args:
        name: as `paceline.load` takes it.
        storage: of its weights; None is the cheapest that pays on this machine, as in
            `paceline.generate.api.load_draft`.
        head_tokens: the size that its output head is cut to, or "all"; None as for `storage`.
    """

    name: str
    storage: str | None = None
    head_tokens: int | Literal["all"] | None = None


class HeadForm(NamedTuple):
    """How a draft head is loaded.

    Args:
        storage: of its weights; None is the default.
        head_tokens: how many of the most frequent tokens it may propose, or "all"; None is all.
    """

    storage: str | None = None
    head_tokens: int | Literal["all"] | None = None

    def options(self) -> dict[str, Any]:
        """As options of `LanguageModel.generate`.

        >>> HeadForm("int8").options()
        {'draft_storage': 'int8'}
        """
        found = {"draft_storage": self.storage, "draft_head_tokens": self.head_tokens}
        return {name: value for name, value in found.items() if value is not None}


USUAL_FORM = HeadForm()
"""A head as it is loaded where nothing is said."""


class HeadSource(NamedTuple):
    """A draft head, by its path or hub name, and how it is loaded."""

    name: str
    form: HeadForm = USUAL_FORM


@dataclass(frozen=True)
class Method:
    """One way to decode.

    Args:
        drafters: registered names.
        num_draft_tokens: k: a number, or "auto"; None leaves it to the default.
        draft: the draft model; None if the drafters need none.
        verify: the rule; None means the one that suits the drafter.
        settings: of the drafter.
        takes: the settings that it takes from a prompt, if the prompt has them.
        head: how a draft head is loaded, if the drafter has one and no draft model.
    """

    drafters: tuple[str, ...]
    num_draft_tokens: int | str | None = None
    draft: DraftSource | None = None
    verify: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    takes: tuple[str, ...] = ()
    head: HeadForm = USUAL_FORM

    @property
    def drafter(self) -> str:
        """The drafters as `generate` takes them."""
        return ",".join(self.drafters)

    @property
    def loads_a_draft(self) -> bool:
        """Whether it drafts with a model or a head."""
        return self.draft is not None or any(
            needs_draft_head(name, self.settings) for name in self.drafters
        )

    @property
    def form(self) -> dict[str, Any]:
        """How its draft model, or else its draft head, is loaded, by the names of the options."""
        form = self.head if self.draft is None else self.draft
        return {"draft_storage": form.storage, "draft_head_tokens": form.head_tokens}

    def options(self, drafts: Mapping[DraftSource, Any]) -> dict[str, Any]:
        """The options of `LanguageModel.generate` for this method.

        Args:
            drafts: the loaded draft models.
        """
        found: dict[str, Any] = {"drafter": self.drafter, "drafter_options": dict(self.settings)}
        if self.num_draft_tokens == "auto":
            found["controller"] = "auto"
        elif self.num_draft_tokens is not None:
            found["controller"], found["num_draft_tokens"] = "fixed", self.num_draft_tokens
        if self.draft is not None:
            found["draft_model"] = drafts[self.draft]
        found |= self.head.options()
        if self.verify is not None:
            found["verify"] = self.verify
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        draft = self.draft
        return {
            "name": self.name,
            "drafter": self.drafter,
            "draft_model": None if draft is None else draft.name,
            **self.form,
            "num_draft_tokens": self.num_draft_tokens,
            "verify": self.verify,
            "settings": dict(self.settings),
        }


def parse_methods(
    texts: Sequence[str],
    draft: DraftSource | None = None,
    *,
    head: HeadSource | None = None,
    with_plain: bool = True,
    prompts_bring: bool = False,
) -> list[Method]:
    """The methods that the texts describe.

    Args:
        texts: each in the grammar above.
        draft: the draft model for methods that need one and name none.
        head: the draft head for methods that need one and name none.
        with_plain: put plain decoding first, whether or not it is named.
        prompts_bring: whether settings that come with prompts (`items.DRAFTING`) may be left out.

    Raises:
        InvalidInput: a text does not follow the grammar, or a method is given twice.
        UnknownName: there is no such drafter, rule or setting.

    Example:
        >>> [method.name for method in parse_methods(["ngram,k=2,4", "ngram,max_ngram=5"])]
        ['none', 'ngram,k=2', 'ngram,k=4', 'ngram,max_ngram=5']
    """
    methods = [Method((PLAIN,), name=PLAIN)] if with_plain else []
    seen = {method.name for method in methods}
    for text in texts:
        for method in _methods(text, draft, head, prompts_bring=prompts_bring):
            if method.name == PLAIN and with_plain:
                continue
            if method.name in seen:
                raise InvalidInput(f"the method {method.name!r} is given twice; name it once")
            seen.add(method.name)
            methods.append(method)
    return methods


def check_items(methods: Sequence[Method], items: Iterable[Item]) -> None:
    """Refuse a prompt without a setting that a method requires.

    Raises:
        InvalidInput: the message names the prompt, the method and the setting.
    """
    needed = [
        (method, setting)
        for method in methods
        for drafter in method.drafters
        for setting in plugins.find("drafter", drafter).missing(method.settings)
        if setting in method.takes and f"{drafter}.{setting}" not in method.settings
    ]
    for item in items:
        for method, setting in needed:
            if setting not in item.drafting:
                raise InvalidInput(
                    f"{item.source}: --method {method.name} needs a {setting!r} with each prompt, "
                    "and this one has none; add it to the object, or leave the method out"
                )


def _methods(
    text: str, default: DraftSource | None, head: HeadSource | None, *, prompts_bring: bool
) -> Iterator[Method]:
    drafters, settings = _split(text)
    for name in drafters:
        if name not in (known := plugins.names("drafter")):
            raise UnknownName.among("drafter", name, known)
    if PLAIN in drafters and (settings or len(drafters) > 1):
        raise _malformed(text, f"{PLAIN!r} is plain decoding, alone and without settings")
    for values in itertools.product(*settings.values()):
        own = dict(zip(settings, values, strict=True))
        yield _method(text, drafters, own, default, head, prompts_bring=prompts_bring)


def _split(text: str) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    first, *parts = _split_at_commas(text)
    drafters = tuple(name.strip() for name in first.split("+"))
    settings: dict[str, list[str]] = {}
    if not all(drafters) or "=" in first:
        raise _malformed(text, "a method begins with the name of a drafter")
    current: list[str] | None = None
    for part in parts:
        name, equals, value = part.strip().partition("=")
        if equals:
            if not name or name in settings:
                raise _malformed(text, f"the setting {name!r} is given twice, or has no name")
            current = settings[name] = [value]
        elif current is None:
            raise _malformed(
                text, f"{part.strip()!r} is neither NAME=VALUE nor another value of a setting"
            )
        else:
            current.append(name)
        if not current[-1]:
            raise _malformed(text, "a value is empty")
    return drafters, settings


def _split_at_commas(text: str) -> list[str]:
    """The parts of a text, split at commas outside JSON lists, objects and strings."""
    parts, depth, quoted = [""], 0, False
    for before, character in pairwise(f" {text}"):
        if character == '"' and before != "\\":
            quoted = not quoted
        depth += 0 if quoted else (character in "[{") - (character in "]}")
        if character == "," and not quoted and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _method(
    text: str,
    drafters: tuple[str, ...],
    values: dict[str, str],
    default: DraftSource | None,
    head: HeadSource | None,
    *,
    prompts_bring: bool,
) -> Method:
    name = ",".join(["+".join(drafters), *(f"{key}={value}" for key, value in values.items())])
    own = {key: values.pop(key) for key in _OWN if key in values}
    settings = {name: _value(value) for name, value in values.items()}
    needs = any(needs_draft_model(name, settings) for name in drafters)
    with_head = any(needs_draft_head(name, settings) for name in drafters)
    form = USUAL_FORM
    if with_head and head is not None and not any(_is_head(name) for name in settings):
        settings["head"], form = head
    if with_head and not needs and "draft" not in own:
        storage, cut = own.pop("storage", form.storage), own.pop("head_tokens", None)
        form = HeadForm(
            _storage(text, storage), form.head_tokens if cut is None else _head_tokens(text, cut)
        )
    source = _draft_source(text, own, default)
    explicit = "draft" in own or "storage" in own or "head_tokens" in own
    used = source if needs or explicit else None
    takes = _taken_from_prompts(drafters) if prompts_bring else ()
    # Refuse what cannot work before a model is loaded, which takes seconds.
    choose_drafter(
        ",".join(drafters),
        {**dict.fromkeys(takes), **settings},
        used,
        option="draft=NAME in the method, or --draft-model",
        head_option="head=PATH in the method, or --draft-head",
    )
    if (verify := own.get("verify")) is not None:
        plugins.find("verifier", verify)
    length = _length(text, own.get("k"))
    return Method(drafters, length, used, verify, settings, name, takes, form)


def _taken_from_prompts(drafters: tuple[str, ...]) -> tuple[str, ...]:
    """The settings that may come with prompts and that one of the drafters has."""
    every = {setting for name in drafters for setting in plugins.find("drafter", name).settings}
    return tuple(name for name in DRAFTING if name in every)


def _draft_source(
    text: str, own: Mapping[str, str], default: DraftSource | None
) -> DraftSource | None:
    name = own.get("draft", None if default is None else default.name)
    if name is None:
        if "storage" in own or "head_tokens" in own:
            raise _malformed(
                text,
                "storage and head_tokens go with a draft model or a draft head; add draft=NAME, or "
                "head=PATH to a drafter of heads",
            )
        return None
    # Options for the default draft model do not apply to another one.
    base = default if default is not None and name == default.name else DraftSource(name)
    storage = _storage(text, own.get("storage", base.storage))
    head = own.get("head_tokens")
    cut = base.head_tokens if head is None else _head_tokens(text, head)
    return DraftSource(name, storage, cut)


def _head_tokens(text: str, given: str) -> int | Literal["all"]:
    if given == "all":
        return "all"
    if not given.isdecimal() or int(given) < 1:
        raise _malformed(
            text, f"head_tokens must be a whole number above 0, or all; it is {given!r}"
        )
    return int(given)


def _storage(text: str, storage: str | None) -> str | None:
    if storage is not None and storage not in STORAGES:
        raise _malformed(text, f"storage is one of {', '.join(STORAGES)}; it is {storage!r}")
    return storage


def _is_head(setting: str) -> bool:
    """Whether a setting names a head, perhaps that of one drafter of several."""
    return setting.rpartition(".")[2] == "head"


def _length(text: str, value: str | None) -> int | str | None:
    if value is None:
        return None
    if value == "auto":
        plugins.find("controller", "auto")
        return value
    if not value.isdecimal():
        raise _malformed(text, f"k must be a whole number, or auto; it is {value!r}")
    return int(value)


def _value(text: str) -> Any:
    """A number, true, false or null if `text` is one; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _malformed(text: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"--method {text}: {reason}. Write DRAFTER, or DRAFTER+DRAFTER, then settings, as in "
        "'ngram,k=4' or 'model,draft=NAME,k=3,5'"
    )
