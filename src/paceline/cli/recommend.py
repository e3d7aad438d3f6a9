"""`paceline recommend`: find the drafter and settings to use here, in a few minutes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import bench, bench_options, options, terminal, threads
from paceline.cli.calls import DEFAULT_MODEL, draft_sources, print_result, uses_chat
from paceline.cli.counting import steps
from paceline.cli.options import option
from paceline.drafting.tuned import tuned_file
from paceline.errors import InvalidInput, PacelineError
from paceline.workbench.report.files import Outputs
from paceline.workbench.workload import Item, read_items, select
from paceline.workbench.workload.methods import Method

if TYPE_CHECKING:
    from paceline.workbench.bench.running import Setting
    from paceline.workbench.recommend.measure import Measured
    from paceline.workbench.recommend.results import Recommendation

DEFAULT_BUDGET = 240
DEFAULT_MAX_TOKENS = 64
DEFAULT_FILE = Path("paceline-settings.json")
DEFAULT_PROMPTS = 24

Budget = Annotated[
    int,
    option(
        "--budget",
        metavar="SECONDS",
        min=1,
        panel="Run",
        about="How long to measure, once the models are loaded.",
    ),
]
Output = Annotated[
    Path,
    option(
        "--output",
        "-o",
        metavar="FILE",
        panel="Output",
        about="Write the settings here, for --settings FILE.",
    ),
]
Limit = Annotated[
    int,
    option(
        "--limit",
        metavar="N",
        min=1,
        panel="Prompts",
        about="At most N prompts, round-robin over categories.",
    ),
]
MaxTokens = Annotated[
    int,
    option(
        "--max-tokens",
        metavar="N",
        min=1,
        panel="Length",
        about="The maximum length of an answer, in tokens: about as long as yours will be.",
    ),
]


@options.takes(
    *options.LOADED,
    *options.DRAFT,
    *options.DISTRIBUTION,
    before="seed",
)
def recommend(
    shared: dict[str, Any],
    prompts: bench_options.PromptsFile,
    model: options.Model = DEFAULT_MODEL,
    budget: Budget = DEFAULT_BUDGET,
    categories: bench_options.Categories = None,
    limit: Limit = DEFAULT_PROMPTS,
    raw: options.Raw = False,
    seed: bench_options.Seed = 0,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    output: Output = DEFAULT_FILE,
    as_json: options.AsJson = False,
    markdown: bench_options.Markdown = None,
    html: bench_options.Html = None,
) -> None:
    """Find the drafter and the settings to use on this machine for your prompts.

    Every method that the model allows is tried, and most time is spent on those that may be the
    fastest. The gain of the best one is measured on other prompts, and its settings are written to
    a file. Ctrl-C keeps what was found.
    """
    bench.require_extra(plots=html is not None)
    outputs = Outputs({"--output": output, "--html": html, "--markdown": markdown})
    _refuse_to_replace(output)
    loading = options.pop(shared, options.LOADED)
    draft, head = draft_sources(**options.pop(shared, options.DRAFT))
    items = select(
        read_items(prompts),
        categories=categories,
        limit=limit,
    )
    sampling = options.without_defaults(shared)
    from paceline.workbench.recommend.candidates import candidates

    methods = candidates(
        items, draft, head=head, layer_skip=tuned_file("layer-skip", model).exists()
    )
    threads.give_way_where_busy()
    target, drafts = bench.load_models(model, methods, loading, sampling)
    from paceline.environment import environment
    from paceline.generate.results import sampling_of
    from paceline.workbench.bench.running import Setting
    from paceline.workbench.recommend.results import Recommendation

    chat = uses_chat(target.tokenizer, raw=raw)

    def setting_of(chosen: Sequence[Method]) -> Setting:
        return Setting(
            model=target,
            prompts=[item.as_prompt(chat=chat) for item in items],
            methods=[method.options(drafts) for method in chosen],
            common={**sampling, "max_tokens": max_tokens},
            seed=seed,
            drafting=[item.drafting for item in items],
            takes=[method.takes for method in chosen],
        )

    refused = _refused(setting_of(methods), methods, items)
    methods = [method for method in methods if method.name not in refused]
    start = monotonic()
    measured = _measure(setting_of(methods), start, budget)
    if measured is None:
        terminal.error("interrupted before every method had a turn; nothing can be recommended")
        raise typer.Exit(bench.INTERRUPTED)
    about: dict[str, Any] = {
        "model": model,
        "prompts_file": prompts,
        "settings_file": str(output),
        "seconds": monotonic() - start,
        "environment": environment(),
        "options": {
            **sampling_of(target.sampling(**sampling)),
            "max_tokens": max_tokens,
            "seed": seed,
            "budget": budget,
            "chat_template": chat,
            **bench.loaded_as(target, loading),
        },
    }
    _print_result(Recommendation(methods, measured, refused, about), outputs, as_json=as_json)
    if measured.interrupted:
        raise typer.Exit(bench.INTERRUPTED)


def _refuse_to_replace(file: Path) -> None:
    """Only a settings file may be overwritten, no other file."""
    if not file.exists():
        return
    from paceline.generate.settings import read_settings

    try:
        read_settings(file)
    except PacelineError as error:
        raise InvalidInput(
            f"--output: {file} exists and does not hold settings; remove it, or name another file"
        ) from error


def _refused(
    setting: Setting, methods: Sequence[Method], items: Sequence[Item]
) -> Mapping[str, str]:
    """The methods that this model does not allow, by name, with the reasons.

    Raises:
        InvalidInput: a prompt cannot be answered, or a draft model does not fit, since the user
            asked for these.
    """
    from paceline.workbench.bench.schedule import Step

    for place, item in enumerate(items):
        try:
            setting.model.prepare([setting.prompts[place]], **setting.options(Step(place, 0)))
        except InvalidInput as error:
            raise InvalidInput(f"{item.source}: {error}") from error
    found = {}
    for place, method in enumerate(methods):
        try:
            setting.model.prepare(setting.prompts[:1], **setting.options(Step(0, place)))
        except PacelineError as error:
            if method.drafters == ("model",):
                raise
            found[method.name] = str(error)
    return found


def _measure(setting: Setting, start: float, budget: int) -> Measured | None:
    from paceline.workbench.recommend.measure import measure

    with steps() as progress:

        def report_step(what: str) -> None:
            progress(min(int(monotonic() - start), budget), budget, what)

        return measure(setting, monotonic, start + budget, report_step)


def _print_result(found: Recommendation, outputs: Outputs, *, as_json: bool) -> None:
    from paceline.workbench.recommend.report import report, terminal_sections

    if not found.is_possible:
        outputs = Outputs({name: to for name, to in outputs.paths.items() if name != "--output"})
    settings = {"--output": lambda: json.dumps(found.settings(), indent=1) + "\n"}
    print_result(found, terminal_sections, report, outputs, as_json=as_json, more=settings)
