"""Shared by commands that run a model: drafting options, loading, the chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.cli import terminal, threads
from paceline.cli.inputs import named_values, read_tools
from paceline.cli.options import SAMPLED, without_defaults
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.generate.choice import choose_drafter
from paceline.generate.parts import make_controller, named_rule
from paceline.generate.settings import DRAFTING, with_settings
from paceline.models.known import refuse_other_tokenizer
from paceline.workbench.workload.methods import DraftSource, HeadForm, HeadSource

if TYPE_CHECKING:
    from paceline.generate.api import LanguageModel
    from paceline.generate.drafts import HeadTokens
    from paceline.models.cache import Progress as ReportProgress
    from paceline.workbench.report import Report
    from paceline.workbench.report.files import Outputs

DEFAULT_MODEL = "smollm2-135m"


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


def draft_sources(
    draft_model: str | None,
    draft_head: str | None,
    draft_storage: str | None,
    draft_head_tokens: HeadTokens,
) -> tuple[DraftSource | None, HeadSource | None]:
    """The draft model and the draft head of a command whose methods may name others.

    Raises:
        InvalidInput: options of a draft model without one.
    """
    form = HeadForm(draft_storage, draft_head_tokens)
    head = None if draft_head is None else HeadSource(draft_head, form)
    if draft_model is not None:
        return DraftSource(draft_model, *form), head
    if head is None and (draft_storage or draft_head_tokens):
        raise InvalidInput(
            "--draft-storage and --draft-head-tokens require --draft-model or --draft-head; give "
            "one, or write draft=NAME,storage=KIND in the method"
        )
    return None, head


def load_draft(
    name: str,
    storage: str | None,
    head_tokens: HeadTokens,
    loading: Mapping[str, Any],
    progress: ReportProgress,
) -> LanguageModel:
    """A draft model, on the device of its target and as trusted.

    Args:
        name, storage, head_tokens: of the draft model; None is the cheapest form that pays.
        loading: the options of the target, see `options.LOADED`.
    """
    from paceline.generate.api import load_draft

    return load_draft(
        name,
        storage,  # type: ignore[arg-type]
        head_tokens,
        progress=progress,
        **{option: loading[option] for option in ("device", "trust_remote_code", "allow_pickle")},
    )


def uses_chat(tokenizer: Any, *, raw: bool = False) -> bool:
    """Whether a text goes to the model as a user message, through its chat template."""
    return not raw and bool(getattr(tokenizer, "chat_template", None))


def settled(
    shared: Mapping[str, Any], of_drafter: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], tuple[Any, Any]]:
    """The options of a call as Python takes them, and how to store its draft model.

    Args:
        shared: options of the table.
        of_drafter: settings of the drafter that are not among its `drafter_options`.

    Raises:
        InvalidInput: an option is not of the form NAME=VALUE, a file of settings or tools is
            invalid, or there are options of a draft model without one.
    """
    given = dict(shared)
    for name, option in (
        ("drafter_options", "--drafter-option"),
        ("controller_options", "--controller-option"),
        ("verify_options", "--verify-option"),
        ("chat_template_kwargs", "--chat-option"),
    ):
        if name in given:
            given[name] = named_values(option, given[name] or ())
    given["drafter_options"] = {**(of_drafter or {}), **given["drafter_options"]}
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
    loading: Mapping[str, Any],
) -> LanguageModel:
    """The model that answers; the draft model that a request names is loaded into it.

    Args:
        request: see `settled`; what cannot work is refused before anything is loaded.
        form: how a draft model is stored: its storage and the tokens of its head.
        model: a name, folder or file.
        loading: how it is loaded, see `options.LOADED`.
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
            target = paceline.load(model, progress=progress, **loading)
            if request["draft_model"] is not None:
                request["draft_model"] = load_draft(
                    request["draft_model"], *form, loading, progress
                )
    return target


def print_result(
    found: Any,
    sections: Callable[[Any], Iterable[Any]],
    report: Callable[..., Report],
    outputs: Outputs,
    *,
    as_json: bool,
    more: Mapping[str, Callable[[], str]] | None = None,
) -> None:
    """Show what a command found, and write its reports.

    Args:
        found: the result; `to_json` gives it as plain values.
        sections: of a result, what the terminal shows.
        report: of a result, what the files contain, with plots or without.
        outputs: the files, by option.
        as_json: print JSON instead of the sections.
        more: the contents of files that are no reports, by option.
    """
    from paceline.workbench.report import to_html, to_markdown
    from paceline.workbench.report.console import show

    if as_json:
        terminal.print_json(found.to_json())
    else:
        for section in sections(found):
            show(terminal.out(), section)
    contents = {
        "--html": lambda: to_html(report(found)),
        "--markdown": lambda: to_markdown(report(found, plots=False)),
        **(more or {}),
    }
    print_written(outputs.write(contents))


def print_written(paths: list[Any]) -> None:
    """Say which files were written."""
    for path in paths:
        terminal.err().print(f"written: {path}", soft_wrap=True)
