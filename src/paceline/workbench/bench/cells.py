"""Numbers as table cells; an unknown number is an empty cell."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.workbench.bench.statistics import Ratio


def number(value: float | None, digits: int) -> str:
    """A number with `digits` decimal places."""
    return "" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent."""
    return "" if value is None else f"{value:.0%}"


def value(ratio: Ratio | None) -> str:
    """A speed-up."""
    return "" if ratio is None else f"{ratio.value:.2f}"


def interval(ratio: Ratio | None) -> str:
    """The interval of a speed-up."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    return f"{ratio.low:.2f}-{ratio.high:.2f}"


def with_interval(ratio: Ratio | None) -> str:
    """A speed-up, and in brackets its interval.

    >>> with_interval(Ratio(1.5, 1.25, 1.8, 6)), with_interval(Ratio(1.5, None, None, 1))
    ('1.50 (1.25-1.80)', '1.50')
    """
    known = interval(ratio)
    return f"{value(ratio)} ({known})" if known else value(ratio)


def padded(rates: Sequence[float | None], length: int) -> list[str]:
    """Rates by position, padded with empty cells to `length` positions."""
    cells = [number(rate, 2) for rate in rates[:length]]
    return cells + [""] * (length - len(cells))
