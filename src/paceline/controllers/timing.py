"""What rounds cost, learnt from rounds: robust against a machine that others use as well."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from paceline.economics.curve import interpolated

SLOPE = 0.03
"""What a further row adds to a pass, in passes over one row, before anything is known."""

_SLOPE_WEIGHT = 4.0
_UNSEEN = 0.25
"""The weight of a number of rows that was not timed, beside 1 for each timing of others."""
_RECENT = 9
"""As many timings are kept for each number of rows: their median moves with the machine."""
_KNOWN = 3
"""From so many timings on, a number of rows says whether the machine became slower."""


class PassTimes:
    """T(n), the time of a target pass over n rows, in seconds of the machine as it now is.

    A line through the medians for each n, with a prior for its slope, times what is known of the
    shape beforehand; near an n that was seen, its own median; and never less for more rows. A
    machine that slows down slows passes of every size, so timings are kept relative to its level,
    which the recent ones tell: T(1) can so be compared with T(6) though it was seen long ago.

    Args:
        table: seconds by rows; given, nothing is learnt from the clock.
        shape: the time by rows in passes over one row, as far as it is known beforehand: where a
            pass becomes dearer all at once, say.
    """

    def __init__(
        self, table: Mapping[int, float] | None = None, shape: Mapping[int, float] | None = None
    ) -> None:
        self.learns = table is None
        self._seen: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._ratios: deque[float] = deque(maxlen=7)
        self._level = 1.0
        self._shape = Curve.of_shape(shape or {1: 1.0})
        self._prior = 0.0 if shape else SLOPE
        self._fitted = replace(self._shape, slope=self._shape.slope + self._prior)
        if table is not None:
            self._fitted = Curve.of_table(table)

    @property
    def level(self) -> float:
        """How slow the machine is now, against the timings that are kept."""
        return self._level

    def count(self, rows: int) -> int:
        """How many timings of exactly so many rows are kept."""
        return len(self._seen.get(rows, ()))

    def observe(self, rows: int, seconds: float) -> None:
        """Take in the time of one pass."""
        if not self.learns or seconds <= 0:
            return
        seen = self._seen.setdefault(rows, deque(maxlen=_RECENT))
        if len(seen) >= _KNOWN:
            self._ratios.append(seconds / self._medians[rows])
            self._level = median(self._ratios)
        seen.append(seconds / self._level)
        self._medians[rows] = median(seen)
        self._fit()

    def __call__(self, rows: float) -> float:
        """Seconds of a pass over so many rows, between whole numbers as well."""
        fitted = self._fitted
        found, missing = fitted(rows), fitted.places[0] - rows
        if missing > 0:
            found = max(found - fitted.slope * missing, 0.5 * found)
        return found * self._level

    def _fit(self) -> None:
        shape = self._shape
        start, slope = line(
            [
                (rows - 1.0, middle / shape(rows), float(len(self._seen[rows])))
                for rows, middle in sorted(self._medians.items())
            ],
            self._prior,
        )
        known = shape.places if self._prior == 0 else []
        places = sorted({*known, *self._seen})
        own = []
        for rows in places:
            fitted, weight = (start + slope * (rows - 1)) * shape(rows), _UNSEEN
            if seen := self.count(int(rows)):
                fitted += (self._medians[int(rows)] - fitted) * seen / (seen + 1)
                weight = float(seen)
            own.append((fitted, weight))
        further = start * shape.slope + slope * shape.values[-1]
        self._fitted = Curve(places, rising(own), further)


@dataclass(frozen=True, slots=True)
class Curve:
    """Values by place, a line from point to point that goes on behind the last one by `slope`."""

    places: Sequence[float]
    values: Sequence[float]
    slope: float

    @classmethod
    def of_shape(cls, points: Mapping[int, float]) -> Curve:
        """Going on as it did on the whole."""
        places, values = sorted(points), [points[place] for place in sorted(points)]
        wide = places[-1] - places[0]
        return cls(places, values, (values[-1] - values[0]) / wide if wide else 0.0)

    @classmethod
    def of_table(cls, points: Mapping[int, float]) -> Curve:
        """Going on as it did last; from one point, by the slope that is taken beforehand."""
        places, values = sorted(points), [points[place] for place in sorted(points)]
        if len(places) == 1:
            return cls(places, values, SLOPE * values[0])
        return cls(places, values, (values[-1] - values[-2]) / (places[-1] - places[-2]))

    def __call__(self, place: float) -> float:
        """The value at a place, from the first one on."""
        return interpolated(self.places, self.values, place, self.slope)


class DraftTimes:
    """What a drafter's part of a round costs: a start, and so much a token.

    Args:
        token, start: seconds; given, nothing is learnt from the clock.
    """

    def __init__(self, token: float | None = None, start: float = 0.0) -> None:
        self.learns = token is None
        self.known = not self.learns
        self.token, self.start = token or 0.0, start
        self.catch_up = 0.0
        """Seconds for each token that it missed while it was not asked."""
        self._seen: deque[tuple[int, float]] = deque(maxlen=24)
        self._late: deque[float] = deque(maxlen=5)

    def __call__(self, tokens: float) -> float:
        """Seconds for so many draft tokens."""
        return self.start + self.token * tokens

    def observe(self, tokens: int, seconds: float, idle: int) -> None:
        """Take in one round; `idle` tokens were committed since the last one without this drafter.

        Where it had to catch up, what it took beyond a usual round says what that costs.
        """
        if not self.learns:
            return
        if idle > 3:
            rest = seconds - self(tokens) if self.known else seconds / (1 + tokens / 3)
            self._late.append(max(rest, 0.0) / idle)
            self.catch_up = median(self._late)
            if not self.known:
                self.token = max(seconds - rest, 0.0) / max(tokens, 1)
            return
        self.known = True
        self._seen.append((tokens, seconds))
        # The median of each length, so that disturbed rounds do not count; the start is held near
        # zero unless rounds of different lengths say otherwise.
        lengths: dict[int, list[float]] = {}
        for length, took in self._seen:
            lengths.setdefault(length, []).append(took)
        n, x, xx, y, xy = 2.0, 0.0, 0.0, 0.0, 0.0
        for length, times in lengths.items():
            weight, typical = len(times), median(times)
            n += weight
            x += weight * length
            xx += weight * length * length
            y += weight * typical
            xy += weight * length * typical
        if xx == 0:
            self.start, self.token = y / (n - 2), 0.0
            return
        self.token = max((n * xy - x * y) / (n * xx - x * x), 0.0)
        self.start = max((y - self.token * x) / n, 0.0)
        if self.start == 0.0:
            self.token = xy / xx


def line(points: Iterable[tuple[float, float, float]], prior: float) -> tuple[float, float]:
    """Start a and slope b of y = a + b x through points (x, y, weight), with a prior b = prior a.

    Least squares of the weighted residuals and of 4 (b - prior a)^2; b is at least .002 a.

    >>> start, slope = line([(0.0, 1.0, 9.0), (5.0, 1.5, 9.0)], 0.03)
    >>> round(start, 3), round(slope, 3)
    (1.007, 0.097)
    """
    w = x = xx = y = xy = 0.0
    for place, value, weight in points:
        w += weight
        x += weight * place
        xx += weight * place * place
        y += weight * value
        xy += weight * place * value
    aa, ab, bb = w + prior**2 * _SLOPE_WEIGHT, x - prior * _SLOPE_WEIGHT, xx + _SLOPE_WEIGHT
    det = aa * bb - ab * ab
    a, b = (bb * y - ab * xy) / det, (aa * xy - ab * y) / det
    if b < 0.002 * a or a <= 0:
        a, b = y / w, 0.002 * y / w
    return a, b


def rising(points: Iterable[tuple[float, float]]) -> list[float]:
    """The nearest values that never fall, by weighted least squares (pool adjacent violators).

    >>> rising([(1.0, 1.0), (3.0, 1.0), (2.0, 1.0)])
    [1.0, 2.5, 2.5]
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in points:
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (b, wb, nb), (a, wa, na) = blocks.pop(), blocks.pop()
            blocks.append(((a * wa + b * wb) / (wa + wb), wa + wb, na + nb))
    return [value for value, _, count in blocks for _ in range(count)]
