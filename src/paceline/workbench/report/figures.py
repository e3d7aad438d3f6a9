"""Plots by matplotlib, as SVG that is inlined in a page and takes its colours from it.

Everything is laid out for the width of a phone: names run down the page, and the plot grows taller
with their number.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from paceline.errors import MissingExtra
from paceline.workbench.report.html import COLOURS, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDTH = 4.6
"""Inches: at SVG's 72 units per inch, about the width of a phone."""

Point = tuple[float, float | None, float | None]
"""A value and its interval, which may be unknown."""

INK, MUTED, LINE = "#010101", "#010102", "#010103"
"""Placeholders for the colours of the page; see `inline_svg`."""

_STANDINS = {INK: "ink", MUTED: "muted", LINE: "line"} | {
    f"#0101{0x10 + place:02x}": f"s{place}" for place in range(len(SERIES))
}


def require() -> None:
    """Raise unless plots can be made.

    Raises:
        MissingExtra: matplotlib is not installed; the message has the install line.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'paceline[workbench]'") from error


def colour(place: int) -> str:
    """The colour of the series number `place`, from 0."""
    return f"#0101{0x10 + place % len(SERIES):02x}"


def canvas(height: float, width: float = WIDTH) -> tuple[Canvas, Axes]:
    """A figure of one plot, without a frame."""
    require()
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=9, length=3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(MUTED)
        axis.label.set_fontsize(9)
    axes.grid(visible=True, color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def shortened(text: str, length: int = 44) -> str:
    """The text, with its middle left out if it is too long; names tend to differ at the ends.

    >>> shortened("model,draft=somewhere,k=3", 12)
    'model,...k=3'
    """
    if len(text) <= length:
        return text
    tail = (length - 3) // 3
    return f"{text[: length - 3 - tail]}...{text[-tail:]}"


def legend(axes: Axes, columns: int = 2) -> None:
    """A legend above the plot, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    labels = [shortened(label) for label in labels]
    axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1.01),
        ncols=1 if max(map(len, labels)) > 24 else columns,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        borderaxespad=0,
        handlelength=1.4,
    )


def inline_svg(figure: Canvas, key: str, description: str) -> str:
    """The figure as an SVG element for a page that defines the variables of `html.COLOURS`.

    Args:
        figure: made by `canvas`, with the colours of this module.
        key: unique on the page; it is put into ids, because those of two figures would collide.
        description: for readers who do not see it.
    """
    text = _svg(figure, key)
    for standin, name in _STANDINS.items():
        text = text.replace(standin, f"var(--{name})")
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1, flags=re.DOTALL)
    for name in re.findall(r'\bid="([^"]+)"', text):
        text = text.replace(f'id="{name}"', f'id="{key}-{name}"')
        text = text.replace(f'"#{name}"', f'"#{key}-{name}"').replace(
            f"url(#{name})", f"url(#{key}-{name})"
        )
    label = f'<svg role="img" aria-label="{escape(description)}"'
    return text.replace("<svg", label, 1)


def standalone_svg(figure: Canvas) -> str:
    """The figure as a separate file, in the colours of a light page."""
    text = _svg(figure, "paceline")
    for standin, name in _STANDINS.items():
        text = text.replace(standin, COLOURS[name][0])
    return text


def _svg(figure: Canvas, key: str) -> str:
    import matplotlib as mpl

    buffer = io.StringIO()
    # Keep text as text, so that it can be read out, searched and scaled.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return re.sub(r"font(-family)?: ([^;\"]*?)'[^;\"]*(?=[;\"])", r"font\1: \2sans-serif", text)


def intervals(
    values: Mapping[str, Mapping[str, Point]], *, label: str, reference: float | None = None
) -> Canvas:
    """For each group a row of points with their intervals, one per series.

    Args:
        values: by series, by group.
        label: of the axis.
        reference: where to draw a reference line.
    """
    groups = list(dict.fromkeys(group for points in values.values() for group in points))
    series = list(values)
    step = 1.0 / (len(series) + 1)
    figure, axes = canvas(1.1 + len(groups) * (0.22 + 0.17 * len(series)))
    for place, name in enumerate(series):
        found = [
            (row, values[name][group]) for row, group in enumerate(groups) if group in values[name]
        ]
        heights = [row + (place + 1) * step - 0.5 for row, _ in found]
        centres = [point[0] for _, point in found]
        below = [value - (value if low is None else low) for _, (value, low, _) in found]
        above = [(value if high is None else high) - value for _, (value, _, high) in found]
        axes.errorbar(
            centres,
            heights,
            xerr=(_at_least_0(below), _at_least_0(above)),
            fmt="o",
            markersize=4,
            linewidth=1.6,
            color=colour(place + 1),
            label=name,
        )
    for row in range(1, len(groups)):
        axes.axhline(row - 0.5, color=LINE, linewidth=0.6)
    if reference is not None:
        axes.axvline(reference, color=MUTED, linewidth=1.2, linestyle="--")
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(groups)), [shortened(group, 18) for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(label)
    legend(axes)
    return figure


def lines(
    values: Mapping[str, Sequence[tuple[float, Point]]],
    *,
    x_label: str,
    y_label: str,
    y_limits: tuple[float, float] | None = None,
    whole_numbers: bool = False,
) -> Canvas:
    """One line per series, with a band if intervals are known.

    Args:
        values: by series, x and the point there.
        x_label, y_label: of the axes.
        y_limits: the ends of the y axis; None fits them.
        whole_numbers: mark only whole numbers on the x axis.
    """
    figure, axes = canvas(3.1 + 0.1 * len(values))
    from matplotlib.ticker import MaxNLocator

    for place, (name, points) in enumerate(values.items(), start=1):
        xs = [x for x, _ in points]
        axes.plot(
            xs,
            [point[0] for _, point in points],
            color=colour(place),
            marker="o",
            markersize=4,
            linewidth=1.6,
            label=name,
        )
        known = [
            (x, low, high) for x, (_, low, high) in points if low is not None and high is not None
        ]
        if known:
            axes.fill_between(
                [x for x, _, _ in known],
                [low for _, low, _ in known],
                [high for _, _, high in known],
                color=colour(place),
                alpha=0.15,
                linewidth=0,
            )
    if y_limits is not None:
        axes.set_ylim(*y_limits)
    if whole_numbers:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    legend(axes)
    return figure


def stacked(rows: Mapping[str, Mapping[str, float]], *, label: str) -> Canvas:
    """One bar per row, of the same parts in the same order.

    Args:
        rows: by row, by part.
        label: of the axis.
    """
    parts = list(dict.fromkeys(part for values in rows.values() for part in values))
    figure, axes = canvas(1.2 + 0.42 * len(rows))
    left = [0.0] * len(rows)
    for place, part in enumerate(parts):
        widths = [values.get(part, 0.0) for values in rows.values()]
        axes.barh(range(len(rows)), widths, left=left, height=0.45, color=colour(place), label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.grid(visible=False, axis="y")
    axes.set_yticks([])
    for place, name in enumerate(rows):
        # Put the name above its bar: a long name at the side would leave no room for the bar.
        axes.text(0, place - 0.28, shortened(name, 52), va="bottom", fontsize=9, color=INK)
    axes.set_ylim(len(rows) - 0.6, -0.7)
    axes.set_xlabel(label)
    legend(axes, columns=3)
    return figure


def against(
    values: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str, y_label: str
) -> Canvas:
    """Points, and the line on which both coordinates are equal.

    Args:
        values: by series, x and y.
        x_label, y_label: of the axes.
    """
    figure, axes = canvas(3.6 + 0.1 * len(values))
    numbers = [number for points in values.values() for pair in points for number in pair]
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    margin = 0.08 * (high - low) or 0.1
    ends = (low - margin, high + margin)
    axes.plot(ends, ends, color=MUTED, linewidth=1.2, linestyle="--")
    for place, (name, points) in enumerate(values.items(), start=1):
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            "o",
            color=colour(place),
            markersize=5,
            label=name,
        )
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    legend(axes)
    return figure


def _at_least_0(lengths: Sequence[float]) -> list[float]:
    """A bootstrap interval need not contain the estimate; matplotlib needs lengths of 0 or more."""
    return [max(0.0, length) for length in lengths]
