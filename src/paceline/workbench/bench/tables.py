"""The tables of speed-ups: over all prompts, by category, prompt by prompt."""

from __future__ import annotations

from paceline.workbench.bench import cells
from paceline.workbench.bench.results import BenchResult
from paceline.workbench.bench.statistics import FEWEST_PROMPTS
from paceline.workbench.report import Block, Figure, Table, Text, figures


def overall_table(result: BenchResult) -> Table:
    """One row per method."""
    headers = (
        "method", "tokens/s", "speed-up", "95\N{NO-BREAK SPACE}%", "with prefill", "predicted",
        "acceptance length", "draft acceptance", "same tokens",
    )  # fmt: skip
    rows = []
    for place, method in enumerate(result.methods):
        group = result.group(place)
        rows.append(
            (
                f"`{method.name}`",
                cells.number(group.tokens_per_second, 1),
                cells.value(group.ratio),
                cells.interval(group.ratio),
                cells.value(group.total_ratio),
                cells.number(group.predicted, 2) if place else "",
                cells.number(group.mean_acceptance_length, 2),
                cells.percent(group.draft_acceptance_rate),
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
        shown = [cells.with_interval(result.group(place, name).ratio) for name in names]
        if not place:
            shown = [cells.number(result.group(0, name).tokens_per_second, 1) for name in names]
        rows.append((f"`{method.name}`" + ("" if place else ", tokens/s"), *shown))
    headers = ("speed-up", *(f"{name} ({sizes[name]})" for name in names))
    blocks: list[Block] = [
        Table(
            headers,
            tuple(rows),
            caption="Speed-up over plain decoding with its interval; in brackets the prompts of a "
            "category.",
        )
    ]
    if min(sizes.values()) < FEWEST_PROMPTS:
        blocks.append(
            Text(f"There is no interval for categories of fewer than {FEWEST_PROMPTS} prompts.")
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


def prompt_table(result: BenchResult) -> Table:
    """The speed-up on every prompt; those that are slower beyond noise are marked."""
    ratios = {
        (place, ratio.item): ratio
        for place in range(1, len(result.methods))
        for ratio in result.prompt_ratios(place)
    }
    rows = []
    for item in dict.fromkeys(run.item for run in result.runs):
        shown = []
        for place in range(1, len(result.methods)):
            ratio = ratios.get((place, item))
            mark = " (slower)" if ratio is not None and ratio.is_slower else ""
            shown.append("" if ratio is None else f"{ratio.value:.2f}{mark}")
        rows.append((result.items[item].id, result.items[item].category, *shown))
    names = (f"`{method.name}`" for method in result.methods[1:])
    off = result.noise.interval(1, 2)
    return Table(
        ("prompt", "category", *names),
        tuple(rows),
        num_names=2,
        caption="Speed-up on each prompt."
        + (f" Noise alone changes one by up to {off - 1:.0%}." if off else ""),
    )
