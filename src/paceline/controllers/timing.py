"""What rounds cost, learnt from rounds: robust against a machine that others use as well."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from paceline.economics.curve import interpolated

SLOPE = 0.03
"""What a further row adds to a pass, in passes over one row, before anything is known."""

_SLOPE_WEIGHT = 4.0
"""The least weight of the prior slope, in timings at a distance of one row."""
_SLOPE_SPREAD = 0.03
"""How far slopes lie from the prior one (standard deviation): against the noise of timings, it says
how much that weighs."""
_LEAST_SLOPE = 0.002
"""A further row costs at least this, in passes: a line through noise must not fall."""
_UNSEEN = 0.25
"""The weight of a number of rows that was not timed, beside 1 for each timing of others."""
_STEP_SPREAD = 0.15
"""How far numbers of rows lie off the line through all of them (standard deviation of the log),
where kernels change from one to another: against the noise of timings, it says how many are needed
to believe it. On a noisy clock one disturbed pass so rules out no length for good."""
_NOISE = 0.1
"""The noise of a timing (standard deviation of the log) before it was seen."""
_CENTRE_VARIANCE = 1.57
"""The variance of a median against that of a mean, for normal noise."""
_MAD = 1.48
"""From the median absolute deviation to the standard deviation of normal noise."""
_RECENT = 15
"""How many timings are kept for each number of rows: their median moves with the machine."""
_KNOWN = 3
"""From this many timings on, what a number of rows takes is believed, however much it is, and says
whether the machine became slower."""
_MOST_AT_ONCE = 1.6
"""Until then it counts for at most this many times what the others suggest."""
_LEVEL = 7
"""How many of the last passes tell the level of the machine, by their median, at the least."""
_MOST_LEVEL = 24
"""How many do on the noisiest of clocks."""
_LEVEL_SPREAD = 0.1
"""How well the level is to be known (standard deviation of the log): on a noisy clock it takes more
passes. What is believed of rows and drafts that are not timed meanwhile moves with it."""

_DRAFTS = 24
"""How many drafts are kept: a disturbance has to last half as long before it is believed."""
_NEWS = 7
"""How many of the last drafts may say that drafts have become cheaper, by their median. Timings
err to one side: a pass takes longer than it needs where it is disturbed, and never less. So good
news is believed sooner than bad news."""
_FEWEST_NEWS = 3
"""The fewest drafts that may say so, while there are not many."""
_NEWS_MARGIN = 1.25
"""Good news is taken with this factor, so that it has to be better than noise."""
_SETTLED = 8
"""From this many drafts on the price of a draft rises slowly only."""
_RISE = 1.03
"""The most by which a settled price rises with a draft: a busy neighbour is mostly gone again
before it is believed, and a machine that has changed is followed within some thirty rounds."""
_UP_TO_DATE = 3
"""A draft model that missed up to this many tokens feeds them with its first step."""
_TELLING = 16
"""From this many missed tokens on what they took stands out from the noise of the draft."""
_READ_SHARE = 1 / 4
"""A token that is read with others takes at most this share of one that is drafted alone, which
has all of the weights read for it."""


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
        self._centres: dict[int, float] = {}
        self._ratios: deque[float] = deque([1.0] * (_LEVEL - 1), maxlen=_MOST_LEVEL)
        self._level = 1.0
        self._errors: deque[float] = deque([_NOISE / _MAD] * 3, maxlen=_DRAFTS)
        self._shape = Curve.of_shape(shape or {1: 1.0})
        self._prior = 0.0 if shape else SLOPE
        self._fitted = replace(self._shape, slope=self._shape.slope + self._prior)
        if table is not None:
            self._fitted = Curve.of_table(table)
        self._whole: list[float] = []
        self._start, self._slope = 1.0, self._prior

    @property
    def level(self) -> float:
        """How slow the machine is now, against the timings that are kept."""
        return self._level

    def count(self, rows: int) -> int:
        """How many timings of exactly this number of rows are kept."""
        return len(self._seen.get(rows, ()))

    def observe(self, rows: int, seconds: float) -> None:
        """Take in the time of one pass."""
        if not self.learns or seconds <= 0:
            return
        seen = self._seen.setdefault(rows, deque(maxlen=_RECENT))
        if len(seen) >= _KNOWN:
            self._errors.append(abs(math.log(seconds / (self._centres[rows] * self._level))))
            self._ratios.append(seconds / self._centres[rows])
        elif self._centres and seconds < self._level * self._fitted(rows):
            # Faster than thought: rows that are new tell that a machine is no longer slow, and
            # not that it has become slow, since they may be dearer than thought.
            self._ratios.append(seconds / self._fitted(rows))
        self._level = self._found_level()
        seen.append(seconds / self._level)
        self._centres[rows] = median_low(seen)
        self._fit()

    @property
    def noise(self) -> float:
        """The noise of a timing (standard deviation of the log), as far as it is not a spike."""
        return _MAD * median(self._errors)

    def _found_level(self) -> float:
        # As many passes as it takes for a median that is within `_LEVEL_SPREAD`.
        needed = int(_CENTRE_VARIANCE * (self.noise / _LEVEL_SPREAD) ** 2)
        return median(list(self._ratios)[-max(needed, _LEVEL) :])

    def forget(self, rows: int, plain: int) -> None:
        """A pass over `rows` rows took much less than was believed; so may others.

        Where only one number of rows is timed for a while, a machine that changes in the meantime
        cannot be distinguished from the price of those rows. What was believed of all but plain
        passes goes.
        """
        seen = self._seen.get(rows)
        self._seen = {n: times for n, times in self._seen.items() if n == plain}
        self._centres = {n: self._centres[n] for n in self._seen}
        if seen and rows != plain:
            self._seen[rows] = deque([seen[-1]], maxlen=_RECENT)
            self._centres[rows] = seen[-1]
        self._fit()

    def undisturbed(self, seconds: float, rows: int, pass_seconds: float, expected: float) -> float:
        """What something would have taken at the level to which the timings kept are relative.

        A slow moment of the machine made the pass of the same round longer as well; a disturbed
        pass says nothing of what came before it. Of the two, the round and the level of the last
        ones, that counts by which the timing is less of a surprise.

        Args:
            seconds: what it took.
            rows: of the pass of the same round.
            pass_seconds: what that took.
            expected: what was expected; 0 where nothing was.
        """
        if not self.learns or pass_seconds <= 0 or seconds <= 0:
            return seconds
        by_round, by_level = seconds * self._fitted(rows) / pass_seconds, seconds / self._level
        if expected <= 0:
            return math.sqrt(by_round * by_level)
        return min(by_round, by_level, key=lambda found: abs(math.log(found / expected)))

    @property
    def row(self) -> float:
        """The time of a further row of a long pass, in passes over one row, known beforehand."""
        return max(self._shape.slope, _LEAST_SLOPE) if self._prior == 0 else SLOPE

    def __call__(self, rows: float) -> float:
        """Seconds of a pass over a number of rows, between whole numbers as well."""
        whole = int(rows)
        while len(self._whole) < whole + 2:
            self._whole.append(self._at(len(self._whole)))
        low, high = self._whole[whole], self._whole[whole + 1]
        return (low + (high - low) * (rows - whole)) * self._level

    def _at(self, rows: int) -> float:
        """Undisturbed seconds of a pass; its numbers of rows are whole, and lines lie between."""
        fitted = self._fitted
        found, missing = fitted(rows), fitted.places[0] - rows
        if missing > 0:
            found = max(found - fitted.slope * missing, 0.5 * found)
        return found

    def _fit(self) -> None:
        shape, noise = self._shape, self.noise
        weight = max((noise / _SLOPE_SPREAD) ** 2, _SLOPE_WEIGHT)

        def through(centres: Mapping[int, float]) -> tuple[float, float]:
            points = [
                (rows - 1.0, centre / shape(rows), float(len(self._seen[rows])))
                for rows, centre in sorted(centres.items())
            ]
            return line(points, self._prior, weight)

        # A number of rows that was timed once or twice may have been disturbed each time, and by
        # any factor: it counts up to what the others, or the least of them, allow.
        sure = {n: centre for n, centre in self._centres.items() if self.count(n) >= _KNOWN}
        if not sure and self._centres:
            least = min(self._centres, key=lambda n: self._centres[n] / self._beforehand(n))
            sure = {least: self._centres[least]}
        start, slope = through(sure)
        centres = {
            n: centre
            if n in sure
            else min(centre, _MOST_AT_ONCE * (start + slope * (n - 1)) * shape(n))
            for n, centre in self._centres.items()
        }
        start, slope = through(centres)
        known = shape.places if self._prior == 0 else []
        places = sorted({*known, *self._seen})
        of_line = max(_CENTRE_VARIANCE * (noise / _STEP_SPREAD) ** 2, 1.0)
        own = []
        for rows in places:
            fitted, weight = (start + slope * (rows - 1)) * shape(rows), _UNSEEN
            if seen := self.count(int(rows)):
                fitted += (centres[int(rows)] - fitted) * seen / (seen + of_line)
                weight = float(seen)
            own.append((fitted, weight))
        further = start * shape.slope + slope * shape.values[-1]
        self._fitted = Curve(places, rising(own), further)
        self._start, self._slope = start, slope
        self._whole = []

    def _beforehand(self, rows: int) -> float:
        return (1 + self._prior * (rows - 1)) * self._shape(rows)

    def hoped(self, rows: float) -> float:
        """Seconds if this number of rows lies on the line through all, where that is less."""
        if not self.learns or not self._seen:
            return self(rows)
        of_line = (self._start + self._slope * (rows - 1)) * self._shape(rows) * self._level
        return min(self(rows), of_line)


@dataclass(frozen=True, slots=True)
class Curve:
    """Values by place, a line from point to point that goes on after the last one by `slope`."""

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
    """What a drafter's part of a round costs: a start, and so much a token, and what it missed.

    Args:
        token, start, catch_up: seconds of a draft token, of a draft besides, and of a token of the
            text that the drafter has to read first; given, nothing is learnt from the clock.
    """

    def __init__(
        self, token: float | None = None, start: float = 0.0, catch_up: float = 0.0
    ) -> None:
        self.learns = token is None
        self.known = not self.learns
        """Whether a usual draft was timed."""
        self.token, self.start = token or 0.0, start
        self.catch_up: float | None = None if self.learns else catch_up
        """Seconds for each token that it has to read first; None before that was timed."""
        self._seen: deque[tuple[int, float]] = deque(maxlen=_DRAFTS)
        self._late: deque[tuple[int, int, float]] = deque(maxlen=5)

    def __call__(self, tokens: float) -> float:
        """Seconds for a number of draft tokens."""
        return self.start + self.token * tokens

    def hoped(self, tokens: float) -> float:
        """Seconds if half of what drafts of one length take is their start.

        Where all of them are of one length, they do not tell what comes with each token.
        """
        found, lengths = self(tokens), {length for length, _ in self._seen}
        if len(lengths) != 1 or lengths == {0}:
            return found
        (length,) = lengths
        return min(found, self(length) * (1 + tokens / length) / 2)

    def observe(self, tokens: int, seconds: float, missed: int) -> None:
        """Take in one round.

        Args:
            tokens: that were drafted.
            seconds: what the drafter took, reading included.
            missed: the tokens of the text that it read first.
        """
        if not self.learns:
            return
        if missed >= _TELLING:
            self._late.append((tokens, missed, seconds))
        # With reading it took less than a draft alone was thought to take: that is news.
        is_news = self.known and seconds < self(tokens)
        if is_news or missed <= _UP_TO_DATE or (not self.known and missed < _TELLING):
            self.known = True
            self._seen.append((tokens, seconds))
            self._fit()
        if self.known and self._late:
            found = median(took - self(drafted) for drafted, _, took in self._late)
            read = median(missed for _, missed, _ in self._late)
            self.catch_up = min(max(found, 0.0) / read, _READ_SHARE * self(1))

    def _fit(self) -> None:
        """By the median of each length, so that disturbed rounds do not count."""
        before = self(self._seen[-1][0])
        self.start, self.token = _start_and_token(self._seen, self.start)
        now = self(self._seen[-1][0])
        if len(self._seen) > _SETTLED and 0 < _RISE * before < now:
            self.start, self.token = (_RISE * before / now * x for x in (self.start, self.token))
        recent = list(self._seen)[-min(_NEWS, max(_FEWEST_NEWS, len(self._seen) // 2)) :]
        if len(recent) >= _FEWEST_NEWS:
            news = [took / max(self(length), 1e-12) for length, took in recent]
            better = min(_NEWS_MARGIN * median(news), 1.0)
            self.start, self.token = better * self.start, better * self.token


def _start_and_token(seen: Iterable[tuple[int, float]], before: float) -> tuple[float, float]:
    """The start is held near the one before unless drafts of different lengths say otherwise."""
    lengths: dict[int, list[float]] = {}
    for length, took in seen:
        lengths.setdefault(length, []).append(took)
    n, x, xx, y, xy = 2.0, 0.0, 0.0, 2.0 * before, 0.0
    for length, times in lengths.items():
        weight, typical = len(times), median(times)
        n += weight
        x += weight * length
        xx += weight * length * length
        y += weight * typical
        xy += weight * length * typical
    if xx == 0:
        return (y - 2 * before) / (n - 2), 0.0
    token = max((n * xy - x * y) / (n * xx - x * x), 0.0)
    start = max((y - token * x) / n, 0.0)
    return (start, token) if start else (0.0, xy / xx)


def line(
    points: Iterable[tuple[float, float, float]], prior: float, prior_weight: float
) -> tuple[float, float]:
    """Start a and slope b of y = a + b x through points (x, y, weight), with a prior b = prior a.

    Least squares of the weighted residuals and of prior_weight (b - prior a)^2; b is at least
    .002 a.

    >>> start, slope = line([(0.0, 1.0, 9.0), (5.0, 1.5, 9.0)], 0.03, 4.0)
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
    aa, ab, bb = w + prior**2 * prior_weight, x - prior * prior_weight, xx + prior_weight
    det = aa * bb - ab * ab
    a, b = (bb * y - ab * xy) / det, (aa * xy - ab * y) / det
    if b < _LEAST_SLOPE * a or a <= 0:
        a, b = y / w, _LEAST_SLOPE * y / w
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
