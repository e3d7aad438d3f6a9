"""The result of a benchmark as a report: tables, plots, definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.economics import stats
from paceline.workbench.bench.results import BenchResult, Difference, Group
from paceline.workbench.bench.statistics import CONFIDENCE, Ratio
from paceline.workbench.report import (
    Block,
    Code,
    Definitions,
    Figure,
    Report,
    Section,
    Table,
    Text,
    Verdict,
    figures,
)

FEW_PROMPTS = 5
"""With fewer prompts a bootstrap interval is too narrow, since it cannot see what it lacks."""

DEFINITIONS = (
    (
        "tokens per second",
        "Tokens of the answers over the seconds of decoding. The prefill of the prompt is left "
        "out; `with prefill` counts it, that of a draft model too.",
    ),
    (
        "speed-up",
        "Tokens per second over those of plain decoding on the same prompt, in the same program, "
        "in turns. Over prompts: the geometric mean, so that twice as fast and half as fast make "
        f"1. Its interval ({CONFIDENCE:.0%}) is a paired bootstrap over prompts: how other prompts "
        "of this kind would fare.",
    ),
    (
        "noise",
        "Plain decoding runs twice in every cycle. The ratio of the two is 1 but for noise; its "
        "scatter gives that of one run. A method is called slower than plain on a prompt only if "
        f"its speed-up there is below 1 by more than noise does in {CONFIDENCE:.0%} of cases. Of "
        "equally fast methods about one prompt in 40 is called slower by chance.",
    ),
    (
        "mean acceptance length",
        "Tokens a round, which is a target pass, with the correction or bonus token: plain "
        "decoding is 1.00. Rounds without a draft count.",
    ),
    (
        "draft acceptance rate",
        "Accepted over all drafted tokens, those behind a rejection included. It falls as drafts "
        "get longer, for the same drafter.",
    ),
    (
        "acceptance by position, conditional",
        "Of the draft tokens at a position that were tested, the share accepted: tested are those "
        "with everything before them accepted. This is alpha of the cost model.",
    ),
    (
        "acceptance by position, unconditional",
        "Of all drafts, the share in which the token at this position was accepted, which needs "
        "all before it accepted. It cannot rise from one position to the next.",
    ),
    (
        "time",
        "Host seconds. prefill: the prompt through target and draft model; draft: proposing; "
        "target: passes of the target; verify: accepting and rejecting; rest: between them.",
    ),
    (
        "predicted",
        "What the cost model gives: conditional acceptance at each position, the price of a draft "
        "by its length, and the median price of a target pass by its number of rows.",
    ),
    (
        "same tokens",
        "Whether the answer had the tokens of plain decoding. A difference is a tie where the two "
        "best logits are so close that rounding between passes of different shapes explains it, "
        "else a fault.",
    ),
    (
        "peak memory",
        "The most that the process held at the end of a round. All models of all methods are "
        "loaded at once, so it says what a method adds, not what it would need alone.",
    ),
)


def report(result: BenchResult, *, plots: bool = True) -> Report:
    """The whole report.

    Args:
        result: what was measured.
        plots: make them; that needs matplotlib.
    """
    sections = [
        Section("Result", (*verdicts(result), overall_table(result))),
        Section("By category", category_blocks(result, plots=plots)),
        Section("Acceptance", acceptance_blocks(result, plots=plots)),
        Section("Time and memory", time_blocks(result, plots=plots)),
        Section("Predicted and measured", predicted_blocks(result, plots=plots)),
        Section("Prompt by prompt", (prompt_table(result),)),
        Section("Definitions", (Definitions(DEFINITIONS),)),
        Section("How it was measured", about_blocks(result.about)),
    ]
    prompts = len({run.item for run in result.runs})
    return Report(
        f"Paceline bench: {result.about.get('model', 'a model')}",
        f"{len(result.methods) - 1} methods against plain decoding on {prompts} prompts of "
        f"{len(result.categories)} categories, {len(result.runs)} runs.",
        sections,
    )


def terminal_sections(result: BenchResult) -> list[Section]:
    """What the terminal shows: the verdicts and the main tables."""
    return [
        Section("Result", (*verdicts(result), overall_table(result))),
        Section("By category", category_blocks(result, plots=False)),
    ]


def verdicts(result: BenchResult) -> list[Verdict]:
    """What came out, in sentences."""
    found: list[Verdict | None] = []
    if result.interrupted:
        found.append(
            Verdict("warning", "interrupted", "Stopped before the end; this is what was measured.")
        )
    found += [_best(result), _harm(result), _sameness(result), _noise(result)]
    return [verdict for verdict in found if verdict is not None]


def _noise(result: BenchResult) -> Verdict | None:
    noise = result.noise
    if noise.deviation is None:
        return None
    return Verdict(
        "neutral",
        "noise",
        f"One run scatters by {noise.deviation:.1%} (standard deviation, from "
        f"{noise.num_pairs} pairs of plain runs); the second plain run of a pair was "
        f"{noise.ratio:.3f} times as fast as the first.",
    )


def _best(result: BenchResult) -> Verdict | None:
    known = {
        place: ratio
        for place in range(1, len(result.methods))
        if (ratio := result.group(place).ratio) is not None
    }
    if not known:
        return None
    best = max(known, key=lambda place: known[place].value)
    ratio, name = known[best], result.methods[best].name
    if ratio.low is not None and ratio.low > 1:
        return Verdict("good", "faster", f"`{name}` was the fastest: {_ratio(ratio)} times plain.")
    if ratio.high is not None and ratio.high < 1:
        return Verdict(
            "bad", "slower", f"Even the fastest, `{name}`, was slower: {_ratio(ratio)} times plain."
        )
    return Verdict(
        "warning",
        "undecided",
        f"The fastest was `{name}`, {_ratio(ratio)} times plain. The interval holds 1, or there "
        "are too few prompts for one: take more prompts.",
    )


def _harm(result: BenchResult) -> Verdict | None:
    if result.noise.deviation is None:
        return None
    counts = {
        method.name: sum(ratio.is_slower for ratio in result.prompt_ratios(place))
        for place, method in enumerate(result.methods)
        if place
    }
    harmed = {name: count for name, count in counts.items() if count}
    if not harmed:
        return Verdict(
            "good", "no harm", "No method was slower than plain beyond noise on a prompt."
        )
    listed = ", ".join(f"`{name}` on {count}" for name, count in harmed.items())
    return Verdict("warning", "slower", f"Prompts slower than plain beyond noise: {listed}.")


def _sameness(result: BenchResult) -> Verdict | None:
    if not result.differences:
        return Verdict(
            "neutral", "not compared", "Tokens are drawn by chance, so they need not be the same."
        )
    every = [item for found in result.differences.values() for item in found]
    if not every:
        return Verdict("good", "same tokens", "Every answer had the tokens of plain decoding.")
    by_label: dict[str, list[Difference]] = {}
    for item in every:
        by_label.setdefault(item.label, []).append(item)
    plural = {"tie": "ties", "fault": "faults"}
    listed = ", ".join(
        f"{len(found)} {plural.get(label, label) if len(found) > 1 else label}"
        for label, found in by_label.items()
    )
    where = ", ".join(
        f"{result.items[item.item].id} (`{result.methods[item.method].name}`, token "
        f"{item.position + 1})"
        for item in every[:5]
    ) + (", ..." if len(every) > 5 else "")
    status = "bad" if "fault" in by_label else "warning"
    return Verdict(
        "bad" if status == "bad" else "warning",
        "fault" if status == "bad" else "ties",
        f"{len(every)} answers differ from plain decoding: {listed}. {where}. Ties are decided by "
        "rounding; invariant mode (`--invariant`) removes them.",
    )


def overall_table(result: BenchResult) -> Table:
    """One row a method."""
    headers = (
        "method", "tokens/s", "speed-up", "95 %", "with prefill", "predicted",
        "acceptance length", "draft acceptance", "same tokens",
    )  # fmt: skip
    rows = []
    for place, method in enumerate(result.methods):
        group = result.group(place)
        rows.append(
            (
                f"`{method.name}`",
                number(group.tokens_per_second, 1),
                _value(group.ratio),
                _interval(group.ratio),
                _value(group.total_ratio),
                number(group.predicted, 2) if place else "",
                number(group.mean_acceptance_length, 2),
                percent(group.draft_acceptance_rate),
                _same(result, place),
            )
        )
    return Table(headers, tuple(rows))


def _same(result: BenchResult, place: int) -> str:
    if place not in result.differences:
        return ""
    prompts = len({run.item for run in result.runs if run.method == place})
    return f"{prompts - len(result.differences[place])} of {prompts}"


def category_blocks(result: BenchResult, *, plots: bool) -> tuple[Block, ...]:
    """Speed-up by category, as a table and as a plot."""
    names = result.categories
    if not names:
        return ()
    sizes = {
        name: len({run.item for run in result.runs if result.items[run.item].category == name})
        for name in names
    }
    rows = []
    for place, method in enumerate(result.methods):
        cells = [_short(result.group(place, name).ratio) for name in names]
        if not place:
            cells = [number(result.group(0, name).tokens_per_second, 1) for name in names]
        rows.append((f"`{method.name}`" + ("" if place else ", tokens/s"), *cells))
    headers = ("speed-up", *(f"{name} ({sizes[name]})" for name in names))
    blocks: list[Block] = [
        Table(
            headers,
            tuple(rows),
            caption="Speed-up over plain decoding with its interval; in brackets the prompts of a "
            "category.",
        )
    ]
    if min(sizes.values()) < FEW_PROMPTS:
        blocks.append(
            Text(
                f"Intervals from fewer than {FEW_PROMPTS} prompts are too narrow: read them as the "
                "range that was seen."
            )
        )
    values = {
        method.name: {
            name: (ratio.value, ratio.low, ratio.high)
            for name in names
            if (ratio := result.group(place, name).ratio) is not None
        }
        for place, method in enumerate(result.methods)
        if place
    }
    if plots and any(values.values()):
        figure = figures.intervals(values, label="speed-up over plain decoding", reference=1.0)
        blocks.append(
            Figure(
                "Speed-up by category",
                figures.inline_svg(figure, "speedup", "Speed-up by category and method"),
                "Right of the dashed line is faster than plain decoding.",
            )
        )
    return tuple(blocks)


def acceptance_blocks(result: BenchResult, *, plots: bool) -> tuple[Block, ...]:
    """Acceptance by position."""
    groups = {
        method.name: group
        for place, method in enumerate(result.methods)
        if place and (group := result.group(place)).counts.num_drafts
    }
    if not groups:
        return (Text("Nothing was drafted."),)
    most = max(len(group.counts.drafted) for group in groups.values())
    shown = min(most, 8)
    headers = ("method", "", *(str(place + 1) for place in range(shown)))
    rows = []
    for name, group in groups.items():
        conditional = stats.conditional_acceptance_rate_per_position(group.counts) or ()
        unconditional = stats.acceptance_rate_per_position(group.counts) or ()
        rows.append((f"`{name}`", "conditional", *_padded(conditional, shown)))
        rows.append(("", "unconditional", *_padded(unconditional, shown)))
    blocks: list[Block] = [
        Table(headers, tuple(rows), num_names=2, caption="Acceptance by draft position.")
    ]
    if plots:
        for kind, title in (("conditional", "if tested"), ("unconditional", "of all drafts")):
            curves = {name: _curve(group, kind) for name, group in groups.items()}
            figure = figures.lines(
                curves,
                x_label="draft position",
                y_label=f"acceptance, {kind}",
                y_limits=(0.0, 1.02),
                whole_numbers=True,
            )
            blocks.append(
                Figure(
                    f"Acceptance by position, {title}",
                    figures.inline_svg(figure, kind, f"Acceptance by position, {kind}"),
                    "With the 95 % Wilson interval." if kind == "conditional" else "",
                )
            )
    return tuple(blocks)


def _curve(group: Group, kind: str) -> list[tuple[float, figures.Point]]:
    if kind == "unconditional":
        rates = stats.acceptance_rate_per_position(group.counts) or ()
        return [(place, (rate, None, None)) for place, rate in enumerate(rates, start=1)]
    conditional = stats.conditional_acceptance_rate_per_position(group.counts) or ()
    intervals = stats.conditional_acceptance_interval_per_position(group.counts) or ()
    return [
        (place, (rate, interval.low, interval.high))
        for place, (rate, interval) in enumerate(zip(conditional, intervals, strict=True), start=1)
        if rate is not None and interval is not None
    ]


def time_blocks(result: BenchResult, *, plots: bool) -> tuple[Block, ...]:
    """Where the time of a token went, and the memory."""
    parts = ("prefill", "draft", "target", "verify", "rest")
    rows, bars = [], {}
    for place, method in enumerate(result.methods):
        group = result.group(place)
        if not group.num_tokens:
            continue
        each = {part: 1000 * group.parts_s[part] / group.num_tokens for part in parts}
        bars[method.name] = each
        memory = "" if group.peak_bytes is None else f"{group.peak_bytes / 1e6:,.0f}"
        rows.append(
            (
                f"`{method.name}`",
                *(number(each[part], 2) for part in parts),
                number(sum(each.values()), 2),
                memory,
            )
        )
    table = Table(
        ("ms a token", *parts, "all", "peak MB"),
        tuple(rows),
        caption="Milliseconds for each token of the answers.",
    )
    if not plots or not bars:
        return (table,)
    figure = figures.stacked(bars, label="milliseconds a token")
    return (
        table,
        Figure(
            "Where the time went", figures.inline_svg(figure, "time", "Time by part and method")
        ),
    )


def predicted_blocks(result: BenchResult, *, plots: bool) -> tuple[Block, ...]:
    """The cost model against the clock, by method and category."""
    rows = []
    points: dict[str, list[tuple[float, float]]] = {}
    for place, method in enumerate(result.methods):
        if not place:
            continue
        for name in (None, *result.categories):
            group = result.group(place, name)
            if group.ratio is None or group.predicted is None:
                continue
            off = group.predicted / group.ratio.value - 1
            rows.append(
                (
                    f"`{method.name}`",
                    name or "overall",
                    number(group.predicted, 2),
                    number(group.ratio.value, 2),
                    f"{off:+.1%}",
                )
            )
            if name is not None:
                points.setdefault(method.name, []).append((group.predicted, group.ratio.value))
    if not rows:
        return (Text("No method was run."),)
    blocks: list[Block] = []
    if plots:
        figure = figures.against(points, x_label="predicted speed-up", y_label="measured speed-up")
        blocks.append(
            Figure(
                "Predicted against measured",
                figures.inline_svg(figure, "predicted", "Predicted against measured speed-up"),
                "One point a category. On the dashed line both agree.",
            )
        )
    headers = ("method", "category", "predicted", "measured", "off by")
    return (*blocks, Table(headers, tuple(rows), num_names=2))


def prompt_table(result: BenchResult) -> Table:
    """The speed-up on every prompt; those slower beyond noise are marked."""
    ratios = {
        (place, ratio.item): ratio
        for place in range(1, len(result.methods))
        for ratio in result.prompt_ratios(place)
    }
    rows = []
    for place in dict.fromkeys(run.item for run in result.runs):
        item = result.items[place]
        cells = []
        for number_ in range(1, len(result.methods)):
            ratio = ratios.get((number_, place))
            mark = " (slower)" if ratio is not None and ratio.is_slower else ""
            cells.append("" if ratio is None else f"{ratio.value:.2f}{mark}")
        rows.append((item.id, item.category, *cells))
    names = (f"`{method.name}`" for method in result.methods[1:])
    off = result.noise.interval(1, 2)
    return Table(
        ("prompt", "category", *names),
        tuple(rows),
        num_names=2,
        caption="Speed-up on each prompt."
        + (f" Noise alone moves one by up to {off - 1:.0%}." if off else ""),
    )


def about_blocks(about: Mapping[str, Any]) -> tuple[Block, ...]:
    """Command, environment, options."""
    environment = dict(about.get("environment", {}))
    command = environment.pop("command", None)
    facts = {**environment, **about.get("options", {}), "prompts": about.get("prompts_file")}
    rows = tuple((key, str(value)) for key, value in facts.items() if value is not None)
    blocks: list[Block] = [Code(command)] if command else []
    return (*blocks, Table(("what", "value"), rows, num_names=2))


def number(value: float | None, digits: int) -> str:
    """A number with so many digits behind the point; nothing where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent."""
    return "" if value is None else f"{value:.0%}"


def _value(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f}"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.value:.2f}" + (f" ({_interval(ratio)})" if ratio.low is not None else "")


def _short(ratio: Ratio | None) -> str:
    return "" if ratio is None else _ratio(ratio)


def _interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    return f"{ratio.low:.2f}-{ratio.high:.2f}"


def _padded(rates: Sequence[float | None], length: int) -> list[str]:
    cells = [number(rate, 2) for rate in rates[:length]]
    return cells + [""] * (length - len(cells))
