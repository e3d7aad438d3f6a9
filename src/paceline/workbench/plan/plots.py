"""Plots of the speed-up over draft length, acceptance rate and cost, as PNG or SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.economics.cost import speedup
from paceline.errors import InvalidInput, MissingExtra

ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
COSTS = (0.0, 0.05, 0.1, 0.2, 0.4)
LENGTHS = tuple(range(13))
FORMATS = (".png", ".svg")


def check_plot_path(path: Path) -> None:
    """Refuse a plot that could not be written, before any work is done.

    Raises:
        InvalidInput: the file is not PNG or SVG, or its folder does not exist.
    """
    if path.suffix not in FORMATS:
        raise InvalidInput(f"--plot writes {' or '.join(FORMATS)} files; it is {str(path)!r}")
    if not path.parent.is_dir():
        raise InvalidInput(f"--plot: there is no folder {str(path.parent)!r}; create it first")


def save_plot(path: Path, alpha: float, cost: float) -> None:
    """Three panels around one setting: speed-up over k for several alpha, for several c, and best.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure_of(alpha, cost).savefig(path, dpi=150)


def figure_of(alpha: float, cost: float) -> Any:
    """The figure that `save_plot` writes."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra.needed("workbench", "plots") from error
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for value in sorted({*ALPHAS, alpha}):
        _line(left, speedup_curve(value, cost), f"alpha {value:g}", bold=value == alpha)
    left.set_title(f"by acceptance rate, c = {cost:g}")
    for value in sorted({*COSTS, cost}):
        _line(middle, speedup_curve(alpha, value), f"c {value:g}", bold=value == cost)
    middle.set_title(f"by draft cost, alpha = {alpha:g}")
    for axes in (left, middle):
        axes.axhline(1, color="grey", linewidth=0.8, linestyle="--")
        axes.set_xlabel("draft tokens per round (k)")
        axes.legend(fontsize="small", frameon=False)
    left.set_ylabel("speed-up over plain decoding")
    rates = [i / 50 for i in range(50)]
    for value in COSTS:
        best = [max(speedup_curve(rate, value)) for rate in rates]
        right.plot(rates, best, label=f"c {value:g}")
    right.plot([alpha], [max(speedup_curve(alpha, cost))], "o", color="black")
    right.set_yscale("log", base=2)
    right.set_yticks([1, 2, 4, 8], labels=["1", "2", "4", "8"])
    right.set_xlabel("acceptance rate (alpha)")
    right.set_title("at the best k")
    right.legend(fontsize="small", frameon=False)
    return figure


def speedup_curve(alpha: float, cost: float) -> list[float]:
    """The speed-up at each of `LENGTHS`."""
    return [speedup(alpha, cost, k) for k in LENGTHS]


def _line(axes: Any, values: Sequence[float], label: str, *, bold: bool) -> None:
    axes.plot(LENGTHS, values, label=label, linewidth=2.5 if bold else 1.2)
