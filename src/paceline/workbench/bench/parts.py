"""The sections that explain a speed-up: acceptance, time, and the cost model."""

from __future__ import annotations

from paceline.economics import stats
from paceline.workbench.bench import cells
from paceline.workbench.bench.results import BenchResult, Group
from paceline.workbench.report import Block, Figure, Table, Text, figures


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
        rows.append((f"`{name}`", "conditional", *cells.padded(conditional, shown)))
        rows.append(("", "unconditional", *cells.padded(unconditional, shown)))
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
    """The time per token by part, and the memory."""
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
                *(cells.number(each[part], 2) for part in parts),
                cells.number(sum(each.values()), 2),
                memory,
            )
        )
    table = Table(
        ("ms per token", *parts, "all", "peak MB"),
        tuple(rows),
        caption="Milliseconds for each token of the answers.",
    )
    if not plots or not bars:
        return (table,)
    figure = figures.stacked(bars, label="milliseconds per token")
    return (
        table,
        Figure(
            "Where the time went", figures.inline_svg(figure, "time", "Time by part and method")
        ),
    )


def predicted_blocks(result: BenchResult, *, plots: bool) -> tuple[Block, ...]:
    """Predicted and measured speed-ups, by method and category."""
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
                    cells.number(group.predicted, 2),
                    cells.number(group.ratio.value, 2),
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
                "One point per category. On the dashed line both agree.",
            )
        )
    headers = ("method", "category", "predicted", "measured", "off by")
    return (*blocks, Table(headers, tuple(rows), num_names=2))
