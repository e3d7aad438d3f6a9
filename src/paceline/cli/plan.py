"""`paceline plan`: what speculation would gain here, from a formula or from measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import options, plan_measured, plan_view, terminal
from paceline.cli.options import option, switch
from paceline.economics import cost as model_of_cost
from paceline.errors import InvalidInput
from paceline.workbench.plan import formula
from paceline.workbench.plan.plots import check_plot_path, save_plot

_FORMULA, _MEASURED, _RESULT = "By the formula", "By measurement", "Result"


def parse_rates(text: str) -> list[float]:
    """`0.8`, or one rate per position: `0.9,0.8,0.7`.

    Raises:
        InvalidInput: they are not numbers.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"--alpha must be a number from 0 to 1, or several separated by commas; it is {text!r}"
        ) from None


def parse_lengths(texts: Sequence[str], option: str = "--num-draft-tokens") -> list[int]:
    """Numbers from `4`, `2,4,8` or `1-8`.

    Raises:
        InvalidInput: it is not of that form, or a range has no end.

    Example:
        >>> parse_lengths(["1-3", "8,4"])
        [1, 2, 3, 8, 4]
    """
    found: list[int] = []
    for part in ",".join(texts).split(",") if texts else ():
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidInput(
                f"{option} must be numbers of tokens such as 4, 2,4,8 or 1-8; it is {part!r}"
            )
        low, high = int(first), int(last) if dash else int(first)
        if low > high or high > model_of_cost.MAX_NUM_DRAFT_TOKENS:
            raise InvalidInput(
                f"{option} must rise to at most {model_of_cost.MAX_NUM_DRAFT_TOKENS}; it is "
                f"{part!r}"
            )
        found += range(low, high + 1)
    return list(dict.fromkeys(found))


@options.takes(*options.LOADED, "drafter", *options.DRAFT, before="costs")
def plan(
    shared: dict[str, Any],
    alpha: Annotated[
        str | None,
        option(
            "--alpha",
            "-a",
            panel=_FORMULA,
            metavar="RATE[,RATE...]",
            about="Acceptance rate of a tested draft token, from 0 to 1; or one for each draft "
            "position, given that those before it were accepted.",
        ),
    ] = None,
    cost: Annotated[
        float | None,
        option(
            "--cost",
            "-c",
            panel=_FORMULA,
            metavar="X",
            about="Time of one draft step relative to a target pass; about 0 for n-grams.",
        ),
    ] = None,
    num_draft_tokens: Annotated[
        list[str] | None,
        option(
            "--num-draft-tokens",
            "-k",
            panel=_FORMULA,
            metavar="K",
            about="Draft lengths: 4, 2,4,8 or 1-8. Default: a range up to the best.",
        ),
    ] = None,
    verify_cost: Annotated[
        float,
        option(
            "--verify-cost",
            panel=_FORMULA,
            metavar="X",
            about="Time of a target pass over k + 1 tokens relative to one token; 1 if reading "
            "the weights takes longer than the arithmetic.",
        ),
    ] = 1.0,
    overhead: Annotated[
        float,
        option(
            "--overhead",
            panel=_FORMULA,
            metavar="X",
            about="The rest of a round, relative to a target pass.",
        ),
    ] = 0.0,
    plot: Annotated[
        list[str] | None,
        option(
            "--plot",
            panel=_FORMULA,
            metavar="terminal|FILE",
            about="Plot the speed-up over k, alpha and c: in the terminal, or to a .png or .svg.",
        ),
    ] = None,
    published: Annotated[
        bool,
        switch(
            "--published",
            panel=_FORMULA,
            about="Show the published tables of Leviathan and of Chen next to the formula.",
        ),
    ] = False,
    model: Annotated[
        str | None,
        option(
            "--model",
            "-m",
            panel=_MEASURED,
            metavar="NAME|FOLDER|GGUF",
            about="Measure this target on this machine.",
        ),
    ] = None,
    acceptance: Annotated[
        Path | None,
        option(
            "--from",
            panel=_MEASURED,
            metavar="FILE",
            about="Acceptance by position: the JSON of `paceline replay` or `paceline bench`. "
            "It also determines the methods; otherwise --drafter and --alpha do.",
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        option(
            "--costs",
            panel=_MEASURED,
            metavar="FILE",
            about="Use costs written by --save-costs instead of measuring again.",
        ),
    ] = None,
    save_costs: Annotated[
        Path | None,
        option(
            "--save-costs",
            panel=_MEASURED,
            metavar="FILE",
            about="Write the measured costs, JSON.",
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        option(
            "--context",
            panel=_MEASURED,
            metavar="N",
            about="Longer contexts to predict for, in tokens. Repeatable. Default: 1000 and 4000.",
        ),
    ] = None,
    export: Annotated[
        str | None,
        option(
            "--export",
            panel=_RESULT,
            metavar="ENGINE",
            about="Print the settings for the serving engine: transformers, vllm, sglang, "
            "llama.cpp, tensorrt-llm or paceline.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """What speculation would gain: by a formula, or by measuring this machine.

    With only --alpha and --cost it uses the formula of the papers. With --model it measures the
    time of passes and drafts here, takes acceptance from `replay` or `bench`, and says what to do.
    """
    lengths = parse_lengths(num_draft_tokens or [])
    rates = None if alpha is None else parse_rates(alpha)
    measured = options.are_given(shared) or _any_given(acceptance, export, save_costs, context)
    if published:
        if measured or _any_given(alpha, cost, num_draft_tokens, plot, model, costs):
            raise InvalidInput(
                "--published shows the published tables; leave out all options but --json"
            )
        plan_view.print_published(as_json=as_json)
    elif model is not None or costs is not None:
        if cost is not None or plot or verify_cost != 1.0 or overhead != 0.0:
            raise InvalidInput(
                "--cost, --verify-cost, --overhead and --plot belong to the formula; with --model "
                "or --costs the costs are measured: leave them out"
            )
        request = plan_measured.Request(
            model=model,
            acceptance=acceptance,
            rates=rates,
            lengths=lengths,
            loading=options.pop(shared, options.LOADED),
            draft=options.pop(shared, options.DRAFT),
            drafter=shared["drafter"],
            costs=costs,
            save_costs=save_costs,
            contexts=context or [1000, 4000],
            engine=export,
        )
        plan_measured.run(request, as_json=as_json)
    else:
        if measured:
            raise InvalidInput(
                "--from, --drafter, the options of a draft model or head and of loading a model, "
                "--save-costs, --context and --export go with measured costs; give --model or "
                "--costs as well"
            )
        if rates is None or cost is None:
            missing = "--alpha" if rates is None else "--cost"
            raise InvalidInput(
                f"a plan by the formula needs --alpha and --cost, and {missing} is missing; to "
                "measure this machine instead, give --model"
            )
        _by_formula(rates, cost, lengths, verify_cost, overhead, plot or [], as_json=as_json)


def _any_given(*values: Any) -> bool:
    return any(value is not None and value != [] for value in values)


def _by_formula(
    rates: Sequence[float],
    cost: float,
    lengths: Sequence[int],
    verify_cost: float,
    overhead: float,
    plots: Sequence[str],
    *,
    as_json: bool,
) -> None:
    files = [Path(name) for name in plots if name != "terminal"]
    for file in files:
        check_plot_path(file)
    found = formula.plan_by_formula(rates, cost, lengths, verify_cost, overhead)
    for file in files:
        save_plot(file, rates[0], cost)
        terminal.note(f"wrote {file}")
    if as_json:
        terminal.print_json(found.to_json())
        return
    console = terminal.out()
    bars = console.is_terminal and not console.legacy_windows
    console.print(plan_view.formula_table(found, bars=bars))
    console.print()
    for sentence in plan_view.formula_sentences(found):
        console.print(sentence, soft_wrap=True)
    if "terminal" in plots:
        console.print()
        console.print(plan_view.terminal_plot(rates[0], cost))
