"""Shared by commands that run a model: drafting options, loading, the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paceline.cli import terminal, threads
from paceline.cli.inputs import named_values, read_tools
from paceline.cli.options import SAMPLED, without_defaults
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.generate.choice import choose_drafter
from paceline.generate.parts import make_controller, named_rule
from paceline.generate.settings import DRAFTING, with_settings
from paceline.models.known import refuse_other_tokenizer
from paceline.workbench.workload.methods import DraftSource, HeadSource

if TYPE_CHECKING:
    from paceline.generate.api import LanguageModel
    from paceline.generate.drafts import HeadTokens
    from paceline.models.cache import Progress as ReportProgress

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """The options for drafting and verification, as they were given."""

    drafter: str | None
    settings: Mapping[str, Any]
    num_draft_tokens: int | Literal["auto"] | None
    controller: str | None
    controller_settings: Mapping[str, Any]
    verify: str | None
    verify_settings: Mapping[str, Any]
    draft_model: str | None
    draft_head: str | None
    draft_storage: str | None
    draft_head_tokens: HeadTokens

    def check(self) -> None:
        """Refuse what cannot work before a model is loaded, which takes seconds.

        Raises:
            InvalidInput: a name or setting is unknown, or parts do not go together.
        """
        check_drafting(
            {
                "verify": self.verify,
                "verify_options": self.verify_settings,
                "drafter": self.drafter,
                "drafter_options": self.settings,
                "draft_model": self.draft_model,
                "draft_head": self.draft_head,
                "controller": self.controller,
                "num_draft_tokens": self.num_draft_tokens,
                "controller_options": self.controller_settings,
            }
        )

    def request(self, draft: LanguageModel | None) -> dict[str, Any]:
        """Its part of the options of `LanguageModel.generate`."""
        found: dict[str, Any] = {
            "drafter": self.drafter,
            "drafter_options": self.settings,
            "num_draft_tokens": self.num_draft_tokens,
            "controller": self.controller,
            "controller_options": self.controller_settings,
            "verify": self.verify,
            "verify_options": self.verify_settings,
            "draft_head": self.draft_head,
        }
        if draft is None:  # a draft model is loaded in its form; a head is not yet
            form = self.draft_storage, self.draft_head_tokens
            return {**found, "draft_storage": form[0], "draft_head_tokens": form[1]}
        return {**found, "draft_model": draft}


def check_drafting(given: Mapping[str, Any]) -> None:
    """Refuse what cannot work before a model is loaded, which takes seconds.

    Args:
        given: options of the Python interface, by name.

    Raises:
        InvalidInput: a name or setting is unknown, or parts do not go together.
    """
    named_rule(given["verify"], given["verify_options"])
    choose_drafter(
        given["drafter"],
        given["drafter_options"],
        given["draft_model"],
        given["draft_head"],
        option="--draft-model",
        head_option="--draft-head",
    )
    make_controller(given["controller"], given["num_draft_tokens"], given["controller_options"])


def refuse_draft(target: str, drafter: str | None, draft: str) -> None:
    """Refuse a draft model whose tokenizer is known not to fit, before it is fetched."""
    names = (drafter or "model").split(",")
    if not any(plugins.find("drafter", name.strip()).traits.translates for name in names):
        refuse_other_tokenizer(target, draft)


def check_draft_storage(
    draft_model: str | None,
    storage: str | None,
    head_tokens: HeadTokens,
    draft_head: str | None = None,
) -> None:
    """Refuse options of a draft model if there is none; a draft head has a storage too."""
    if draft_model is None and draft_head is None and (storage or head_tokens):
        raise InvalidInput(
            "--draft-storage and --draft-head-tokens require --draft-model or --draft-head; give "
            "one, or leave them out"
        )


def default_draft(
    name: str | None, storage: str | None, head_tokens: HeadTokens, head: str | None = None
) -> DraftSource | None:
    """The draft model of the options of a command whose methods may name another.

    Args:
        name, storage, head_tokens: of the options.
        head: the draft head, which has a storage too.

    Raises:
        InvalidInput: options of a draft model without one.
    """
    if name is None:
        if head_tokens or (storage and head is None):
            raise InvalidInput(
                "--draft-storage and --draft-head-tokens require --draft-model; give one, or "
                "write draft=NAME,storage=KIND in the method"
            )
        return None
    return DraftSource(name, storage, head_tokens)


def default_head(name: str | None, storage: str | None) -> HeadSource | None:
    """The draft head of the options of a command whose methods may name another."""
    return None if name is None else HeadSource(name, storage)


def load_draft(
    name: str, storage: str | None, head_tokens: HeadTokens, progress: ReportProgress, **trust: Any
) -> LanguageModel:
    """A draft model, stored as the options say, by default in the cheapest form that pays."""
    from paceline.generate.api import load_draft

    return load_draft(name, storage, head_tokens, progress=progress, **trust)  # type: ignore[arg-type]


def uses_chat(tokenizer: Any, *, raw: bool = False) -> bool:
    """Whether a text goes to the model as a user message, through its chat template."""
    return not raw and bool(getattr(tokenizer, "chat_template", None))


def settled(shared: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Any, Any]]:
    """The options of a call as Python takes them, and how to store its draft model.

    Args:
        shared: options of the table, `drafter_options` being read already.

    Raises:
        InvalidInput: an option is not of the form NAME=VALUE, a file of settings or tools is
            invalid, or there are options of a draft model without one.
    """
    given = dict(shared)
    for name, option in (
        ("controller_options", "--controller-option"),
        ("verify_options", "--verify-option"),
        ("chat_template_kwargs", "--chat-option"),
    ):
        given[name] = named_values(option, given[name] or ())
    if given.get("tools") is not None:
        given["tools"] = read_tools(given["tools"])
    request = without_defaults({**dict.fromkeys(DRAFTING), **with_settings(given)})
    form = request["draft_storage"], request["draft_head_tokens"]
    check_draft_storage(request["draft_model"], *form, request["draft_head"])
    if request["draft_model"] is not None:
        del request["draft_storage"], request["draft_head_tokens"]  # it is loaded in this form
    return request, form


def load_for(
    request: dict[str, Any],
    form: tuple[Any, Any],
    model: str,
    trust: Mapping[str, Any],
    **kept: Any,
) -> LanguageModel:
    """The model that answers; the draft model that a request names is loaded into it.

    Args:
        request: see `settled`; what cannot work is refused before anything is loaded.
        form: how a draft model is stored: its storage and the tokens of its head.
        model: a name, folder or file.
        trust: whether to run code that comes with a model.
        kept: how it is loaded: its dtype and storage, and whether it is invariant.
    """
    threads.give_way_where_busy()
    with terminal.progress(f"loading {model}") as progress:
        import paceline
        from paceline.core.sampling import SamplingParams

        SamplingParams(**{name: request[name] for name in SAMPLED if name in request})
        check_drafting(request)
        if request["draft_model"] is not None:
            refuse_draft(model, request["drafter"], request["draft_model"])
        with terminal.transformers_is_quiet():
            target = paceline.load(model, progress=progress, **kept, **trust)
            if request["draft_model"] is not None:
                request["draft_model"] = load_draft(
                    request["draft_model"], *form, progress, **trust
                )
    return target


def print_written(paths: list[Any]) -> None:
    """Say which files were written."""
    for path in paths:
        terminal.err().print(f"written: {path}", soft_wrap=True)
