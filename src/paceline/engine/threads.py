"""Fewer threads while other processes use the cores.

The threads of a product wait for each other, so a product takes as long as its slowest thread.
Where another process runs on the core of one of them, that one is late by whole time slices of the
scheduler, and the others spin: with one of two cores taken, a pair of 1.5 and .5 billion weights
reached 3.5 tokens/s in two threads and 10 in one, against 17 on an idle machine. So the engine
looks how long the threads of this process waited for a core, which Linux counts for each of them.
While they wait for long, it runs in fewer, and in all of them again once cores are idle.

How many threads run changes no bit of a product of the compiled loops. It may change those of other
products over many rows, so the passes that read prompts always have all threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

MOST_ROWS = 64
"""A pass over more rows has all threads."""

TAKEN = 0.4
"""From this many waiting threads on, as a mean over time, cores are taken. On two cores it is .04
where nobody else runs, and .8 where one other process does."""

_WINDOW = 0.15
"""Seconds of decoding over which that mean is taken."""
_PAUSE = 0.02
"""After this many seconds in which nothing was decoded, a new window begins."""
_FREE = 0.8
"""A core that is idle for this share of a window is free."""
_FIRST_GAP, _MOST_GAP = 0.5, 16.0
"""Seconds until a core that is free is used again: the first ones; and the most, where each time it
was soon taken."""
_UNSEEN = 4.0
"""The same where no core is seen idle, as a multiple: a process that gives way to others uses one
without need. And so soon after it was used again, it was not free."""

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")


class Usage(NamedTuple):
    """What the cores did so far.

    Args:
        waited: for each thread of this process, seconds for which it was ready to run and had to
            wait for a core.
        idle: seconds for which cores had nothing to do, over all that this process may use.
    """

    waited: Mapping[str, float]
    idle: float

    def since(self, before: Usage) -> tuple[float, float]:
        """Seconds for which threads waited, and cores were idle, since then."""
        waited = sum(
            seconds - before.waited[name]
            for name, seconds in self.waited.items()
            if name in before.waited
        )
        return waited, self.idle - before.idle


def usage() -> Usage | None:
    """What Linux has counted; None on systems that do not count it."""
    waited = {}
    try:
        for name in os.listdir(_TASKS):
            try:
                waited[name] = int((_TASKS / name / "schedstat").read_text().split()[1]) / 1e9
            except (FileNotFoundError, ProcessLookupError):
                continue  # a thread that has ended meanwhile
        return (
            Usage(waited, _idle_seconds(_STAT.read_text()) if waited else 0.0) if waited else None
        )
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _idle_seconds(stat: str) -> float:
    own = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = (line.split() for line in stat.splitlines())
    ticks = sum(int(line[4]) + int(line[5]) for line in lines if line and line[0] in own)
    return ticks / os.sysconf("SC_CLK_TCK")


class Threads:
    """How many threads of torch decode, by what others leave.

    Args:
        look: see `usage`.
        clock: seconds.
    """

    def __init__(
        self,
        look: Callable[[], Usage | None] = usage,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._look, self._clock = look, clock
        self.gives_way = True
        """Whether it runs in fewer threads at all."""
        self.taken = 0
        """The cores that are left to others."""
        self._own = _Own()
        self._start, self._before = 0.0, Usage({}, 0.0)
        self._end = self._changed = -float("inf")
        self._gap = _FIRST_GAP
        self._is_counted = True

    @contextmanager
    def decoding(self) -> Generator[None]:
        """Run what is inside in as many threads as there are cores that others leave."""
        full = torch.get_num_threads()
        if self._own.full or full == 1 or not (self.gives_way and self._is_counted):
            yield
            return
        if self._clock() - self._end > _PAUSE:
            self._begin()
        self._own.full = full
        _set(max(full - self.taken, 1))
        try:
            yield
        finally:
            _set(full)
            self._own.full = 0
            self._judge(full)

    @contextmanager
    def all(self) -> Generator[None]:
        """Run what is inside in all threads, within `decoding` as well."""
        full, now = self._own.full, torch.get_num_threads()
        if full <= now:
            yield
            return
        _set(full)
        try:
            yield
        finally:
            _set(now)
            self._begin()  # what waited meanwhile says nothing of fewer threads

    def _begin(self) -> None:
        self._start = self._clock()
        now = self._look()
        self._is_counted = now is not None
        self._before = now or self._before

    def _judge(self, full: int) -> None:
        now = self._end = self._clock()
        seconds = now - self._start
        if seconds < _WINDOW:
            return
        before = self._before
        self._begin()
        waited, idle = (spent / seconds for spent in self._before.since(before))
        since = now - self._changed
        if waited > TAKEN and self.taken < full - 1:
            # Taken again soon after it seemed to be free: the next try has to wait longer.
            soon = since < _UNSEEN * self._gap
            self._gap = min(2 * self._gap, _MOST_GAP) if soon else _FIRST_GAP
            self.taken = min(self.taken + max(int(waited), 1), full - 1)
            self._changed = now
        elif self.taken and since >= self._gap * (1.0 if idle >= _FREE else _UNSEEN):
            self.taken = max(min(self.taken, full - 1) - max(int(idle + 1 - _FREE), 1), 0)
            self._changed = now


class _Own(threading.local):
    """What belongs to the calling thread."""

    full = 0
    """All threads, while it decodes; 0 while it does not."""


def _set(threads: int) -> None:
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


THREADS = Threads()
"""Those of this process, whose engines share the cores."""
