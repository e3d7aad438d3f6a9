"""`paceline bench`: every method on your own prompts, interleaved, with the effect of noise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli import bench_options as own
from paceline.cli import options, terminal, threads
from paceline.cli.calls import (
    DEFAULT_MODEL,
    draft_sources,
    load_draft,
    print_result,
    refuse_draft,
    uses_chat,
)
from paceline.cli.counting import counting
from paceline.errors import InvalidInput, MissingExtra
from paceline.workbench.report.files import Outputs
from paceline.workbench.workload import Item, read_items, select, to_json
from paceline.workbench.workload.methods import DraftSource, Method, check_items, parse_methods

if TYPE_CHECKING:
    from paceline.generate.api import LanguageModel
    from paceline.workbench.bench.results import BenchResult, Difference
    from paceline.workbench.bench.running import Setting
    from paceline.workbench.bench.runs import Run

DEFAULT_MAX_TOKENS = 128
INTERRUPTED = 130


@options.takes(
    *options.LOADED,
    *options.DRAFT,
    *options.DISTRIBUTION,
    "max_tokens",
    before="seed",
    max_tokens=DEFAULT_MAX_TOKENS,
)
def bench(
    shared: dict[str, Any],
    prompts: own.PromptsFile,
    method: own.Methods = None,
    model: options.Model = DEFAULT_MODEL,
    categories: own.Categories = None,
    per_category: own.PerCategory = None,
    limit: own.Limit = None,
    raw: options.Raw = False,
    seed: own.Seed = 0,
    repeats: own.Repeats = 1,
    as_json: options.AsJson = False,
    markdown: own.Markdown = None,
    html: own.Html = None,
    save_answers: own.SaveAnswers = None,
) -> None:
    """Measure what each method gives on your prompts. Ctrl-C keeps what was measured."""
    # All errors in the input are detected before models are loaded and anything is run.
    require_extra(plots=html is not None)
    outputs = Outputs({"--html": html, "--markdown": markdown, "--save-answers": save_answers})
    loading = options.pop(shared, options.LOADED)
    draft, head = draft_sources(**options.pop(shared, options.DRAFT))
    methods = parse_methods(method or (), draft, head=head, prompts_bring=True)
    if len(methods) == 1:
        raise InvalidInput(
            "there is nothing to compare with plain decoding; give --method, as in "
            "--method ngram,k=4"
        )
    items = select(
        read_items(prompts),
        categories=categories,
        per_category=per_category,
        limit=limit,
    )
    check_items(methods, items)
    if (max_tokens := shared.pop("max_tokens")) < 1:
        raise InvalidInput("there is nothing to time in an answer without tokens; --max-tokens 1")
    sampling = options.without_defaults(shared)
    threads.give_way_where_busy()
    target, drafts = load_models(model, methods, loading, sampling)
    from paceline.environment import environment
    from paceline.generate.results import sampling_of
    from paceline.workbench.bench.report import report, terminal_sections
    from paceline.workbench.bench.running import Setting, check

    chat = uses_chat(target.tokenizer, raw=raw)
    setting = Setting(
        model=target,
        prompts=[item.as_prompt(chat=chat) for item in items],
        methods=[item.options(drafts) for item in methods],
        common={**sampling, "max_tokens": max_tokens},
        seed=seed,
        drafting=[item.drafting for item in items],
        takes=[item.takes for item in methods],
    )
    check(setting, [item.source for item in items])
    if later := sum(bool(item.later_turns) for item in items):
        terminal.note(
            f"{later} prompts have further turns; only the first one is used as the prompt"
        )
    about = {
        "model": model,
        "prompts_file": prompts,
        "environment": environment(),
        "options": {
            **sampling_of(target.sampling(**sampling)),
            "max_tokens": max_tokens,
            "seed": seed,
            "repeats": repeats,
            "chat_template": chat,
            **loaded_as(target, loading),
        },
    }
    result = measure(setting, items, methods, repeats, about)
    if not any(run.method for run in result.runs):
        terminal.error("interrupted before a method was measured; there is nothing to report")
        raise typer.Exit(INTERRUPTED)
    answers = {"--save-answers": lambda: _answers(result, target, max_tokens)}
    print_result(result, terminal_sections, report, outputs, as_json=as_json, more=answers)
    if result.interrupted:
        terminal.error("interrupted; the report holds what was measured")
        raise typer.Exit(INTERRUPTED)


def require_extra(*, plots: bool) -> None:
    """Raise unless the packages for the measurement are installed.

    Raises:
        MissingExtra: names the install line.
    """
    try:
        import psutil  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as error:
        raise MissingExtra.needed("workbench", "benchmarks") from error
    if plots:
        from paceline.workbench.report.figures import require

        require()


def load_models(
    name: str,
    methods: list[Method],
    loading: Mapping[str, Any],
    sampling: Mapping[str, Any],
) -> tuple[LanguageModel, dict[DraftSource, LanguageModel]]:
    """The target, and every draft model once.

    Args:
        name: of the target.
        methods: what is compared, with the draft models.
        loading: how the target is loaded, see `options.LOADED`.
        sampling: what is refused before anything is loaded.
    """
    with terminal.progress(f"loading {name}") as progress:
        import paceline
        from paceline.core.sampling import SamplingParams

        SamplingParams(**sampling)
        for item in methods:
            if item.draft is not None:
                refuse_draft(name, item.drafter, item.draft.name)
        with terminal.transformers_is_quiet():
            target = paceline.load(name, progress=progress, **loading)
            drafts = {
                source: load_draft(*source, loading, progress)
                for source in dict.fromkeys(item.draft for item in methods)
                if source is not None
            }
    return target, drafts


def loaded_as(target: LanguageModel, loading: Mapping[str, Any]) -> dict[str, Any]:
    """How the target was loaded, for the report."""
    dtype = getattr(target.decoder, "dtype", loading["dtype"])
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(target.decoder.device),
        **{name: loading[name] for name in ("adapter", "storage", "invariant")},
    }


def measure(
    setting: Setting,
    items: list[Item],
    methods: list[Method],
    repeats: int,
    about: dict[str, Any],
) -> BenchResult:
    """Make all runs, until the end or until the user stops; examine differences."""
    from paceline.workbench.bench import running
    from paceline.workbench.bench.results import BenchResult
    from paceline.workbench.bench.schedule import num_steps, schedule

    total = num_steps(len(items), len(methods), repeats)
    found: list[Run] = []
    interrupted = False
    with counting(total) as step:
        try:
            step("warming up")
            running.warm_up(setting)
            for at in schedule(len(items), len(methods), repeats):
                if found:
                    step(f"{items[at.item].id}: {methods[at.method].name}")
                found.append(running.run(setting, at))
        except KeyboardInterrupt:
            interrupted = True
    return BenchResult(
        items=items,
        methods=methods,
        runs=found,
        differences=_differences(setting, methods, found, look=not interrupted),
        interrupted=interrupted,
        about=about,
    )


def _differences(
    setting: Setting, methods: list[Method], found: list[Run], *, look: bool
) -> dict[int, list[Difference]]:
    """Every answer that differs where it should not, and why."""
    from paceline.workbench.bench import running
    from paceline.workbench.bench.results import Difference

    if setting.common["temperature"]:
        return {}  # tokens are sampled, and drafts use their own random numbers
    different: dict[int, list[Difference]] = {place: [] for place in range(len(methods))}
    for (item, place), position in running.differing(found).items():
        try:
            parting = running.parting(setting, item, place, position) if look else None
        except KeyboardInterrupt:
            look, parting = False, None
        different[place].append(Difference(item, place, position, parting, look))
    return different


def _answers(result: BenchResult, target: LanguageModel, max_tokens: int) -> str:
    """The first answer of plain decoding to each prompt, as JSON lines."""
    from dataclasses import replace

    lines = []
    done: set[int] = set()
    for run in result.runs:
        if run.method or run.item in done:
            continue
        done.add(run.item)
        text = ""
        if target.tokenizer is not None:
            text = target.tokenizer.decode(list(run.tokens), skip_special_tokens=True)
        item = replace(
            result.items[run.item], answer=text, answer_tokens=run.tokens, max_tokens=max_tokens
        )
        lines.append(json.dumps(to_json(item), ensure_ascii=False) + "\n")
    return "".join(lines)
