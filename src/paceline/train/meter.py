"""How far a run is: what a command line shows while it lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

RECENT_S = 30.0
"""The shortest time, in seconds, over which the rate is taken."""


class Progressed(NamedTuple):
    """Where a stage stands.

    Args:
        stage: what is being done.
        done, total: answer tokens captured, or steps taken.
        unit: what is counted.
        tokens_per_second: of answers; None where that is not known yet.
        seconds_left: until the stage ends; None where that is not known yet.
        note: what else there is to say.
    """

    stage: str
    done: int
    total: int
    unit: str
    tokens_per_second: float | None
    seconds_left: float | None
    note: str = ""


Tell = Callable[[Progressed], object]


@dataclass(eq=False)
class Meter:
    """Counts, and finds rates.

    Args:
        stage, unit: see `Progressed`.
        clock: seconds.
        done: what was done before.
    """

    stage: str
    unit: str
    clock: Callable[[], float]
    done: int = 0

    def __post_init__(self) -> None:
        self._marks = [(self.clock(), self.done, 0)]
        self._tokens = 0

    def add(self, count: int, tokens: int) -> None:
        """Count what was done, and the tokens that went into it."""
        self.done += count
        self._tokens += tokens
        now = self.clock()
        self._marks.append((now, self.done, self._tokens))
        while len(self._marks) > 2 and self._marks[1][0] <= now - RECENT_S:
            self._marks.pop(0)

    def at(self, total: int, deadline: float | None, note: str = "") -> Progressed:
        """Where the stage stands; it ends with `total`, or at the deadline."""
        (start, before, some), (now, done, tokens) = self._marks[0], self._marks[-1]
        seconds = now - start
        rate = (done - before) / seconds if seconds > 0 else 0.0
        left = [max(0.0, deadline - now)] if deadline is not None else []
        if rate > 0:
            left.append(max(0, total - done) / rate)
        known = (tokens - some) / seconds if seconds > 0 and tokens > some else None
        return Progressed(self.stage, done, total, self.unit, known, min(left, default=None), note)
