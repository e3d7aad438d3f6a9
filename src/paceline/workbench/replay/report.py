"""The result of a replay as a report."""

from __future__ import annotations

from paceline.economics import stats
from paceline.workbench.replay.results import Part, ReplayResult
from paceline.workbench.report import (
    Block,
    Code,
    Definitions,
    Figure,
    Report,
    Section,
    Table,
    Text,
    figures,
)

SHOWN = 8

DEFINITIONS = (
    (
        "replay",
        "The rounds that decoding would have made along the recorded text: the drafter drafts "
        "after the recorded tokens, and the target shows what would have been accepted.",
    ),
    (
        "mean acceptance length",
        "Tokens per round, including the correction or bonus token: plain decoding is 1.00.",
    ),
    (
        "acceptance by position",
        "conditional: the share accepted of the draft tokens that were tested at a position; "
        "unconditional: the share of all drafts.",
    ),
    (
        "alpha",
        "The sum over the vocabulary of min(p, q), p the distribution of the target and q that of "
        "the draft model, as a mean over all recorded tokens. Unknown for drafters that are not "
        "a model.",
    ),
    (
        "predicted speed-up",
        "Expected tokens per round divided by its cost: target passes and draft steps were timed "
        "here, alternately, on the text. The interval (95 %) is a bootstrap over texts and over "
        "the timings. No prediction exceeds the acceptance length. If the model was not loaded, "
        "nothing was timed; the mean acceptance length is then the speed-up that free drafts and "
        "free rows would give.",
    ),
)


def report(result: ReplayResult, *, plots: bool = True) -> Report:
    """The whole report; plots need matplotlib."""
    environment = dict(result.about.get("environment", {}))
    command = environment.pop("command", None)
    facts = {**environment, **result.about.get("options", {})}
    rows = tuple((key, str(value)) for key, value in facts.items() if value is not None)
    about: list[Block] = [Code(command)] if command else []
    about.append(Table(("what", "value"), rows, num_names=2))
    sections = [
        *terminal_sections(result),
        Section("Definitions", (Definitions(DEFINITIONS),)),
        Section("How it was replayed", tuple(about)),
    ]
    if plots and (curves := _curves(result)):
        figure = figures.lines(
            curves,
            x_label="draft position",
            y_label="acceptance, conditional",
            y_limits=(0.0, 1.02),
            whole_numbers=True,
        )
        svg = figures.inline_svg(figure, "acceptance", "Acceptance by position and method")
        plot = Figure("Acceptance by position, if tested", svg, "With the 95 % Wilson interval.")
        sections.insert(1, Section("Acceptance", (plot,)))
    tokens = sum(len(text.answer) for text in result.texts)
    return Report(
        f"Paceline replay: {result.about.get('model', 'a model')}",
        f"{len(result.methods)} methods on {len(result.texts)} recorded texts, {tokens} tokens.",
        sections,
    )


def terminal_sections(result: ReplayResult) -> list[Section]:
    """The tables."""
    most = min(
        SHOWN, max((len(_rates(result.part(n))) for n in range(len(result.methods))), default=0)
    )
    rows = []
    for place, method in enumerate(result.methods):
        part = result.part(place)
        rates = [_number(rate) for rate in _rates(part)[:most]]
        rows.append(
            (
                f"`{method.name}`",
                _number(stats.mean_acceptance_length(part.counts)),
                _number(None if part.predicted is None else part.predicted.value),
                _interval(part),
                _number(part.alpha),
                *rates,
                *[""] * (most - len(rates)),
            )
        )
    percent = "95\N{NO-BREAK SPACE}%"
    headers = ("method", "acceptance length", "predicted speed-up", percent, "alpha")
    blocks: list[Block] = [
        Table(
            (*headers, *(f"at {n}" for n in range(1, most + 1))),
            tuple(rows),
            caption="at n: conditional acceptance at draft position n.",
        )
    ]
    if result.passes is None:
        blocks.append(
            Text("The target was not loaded, so nothing was timed and no speed-up is predicted.")
        )
    by_category = Table(
        ("acceptance length", *result.categories),
        tuple(
            (
                f"`{method.name}`",
                *(
                    _number(stats.mean_acceptance_length(result.part(place, name).counts))
                    for name in result.categories
                ),
            )
            for place, method in enumerate(result.methods)
        ),
    )
    return [Section("Result", tuple(blocks)), Section("By category", (by_category,))]


def _curves(result: ReplayResult) -> dict[str, list[tuple[float, figures.Point]]]:
    curves: dict[str, list[tuple[float, figures.Point]]] = {}
    for place, method in enumerate(result.methods):
        counts = result.part(place).counts
        rates = stats.conditional_acceptance_rate_per_position(counts) or ()
        intervals = stats.conditional_acceptance_interval_per_position(counts) or ()
        points: list[tuple[float, figures.Point]] = [
            (at, (rate, interval.low, interval.high))
            for at, (rate, interval) in enumerate(zip(rates, intervals, strict=True), start=1)
            if rate is not None and interval is not None
        ]
        if points:
            curves[method.name] = points
    return curves


def _rates(part: Part) -> tuple[float | None, ...]:
    return stats.conditional_acceptance_rate_per_position(part.counts) or ()


def _interval(part: Part) -> str:
    found = part.predicted
    return "" if found is None else f"{found.low:.2f}-{found.high:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
