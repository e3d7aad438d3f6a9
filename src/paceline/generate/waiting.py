"""A line for whoever waits at a terminal while a model loads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from paceline.models.cache import Progress, no_progress

SLOW_S = 2.0
"""A load that takes longer is worth a line."""


@contextmanager
def told_if_slow(name: str, progress: Progress | None, after: float = SLOW_S) -> Iterator[Progress]:
    """What tells of slow steps: the caller's own, else lines on a terminal, else nothing.

    Args:
        name: of the model.
        progress: the caller's; it is then told alone.
        after: seconds until it is said that the model is loading.
    """
    if progress is not None or sys.stderr is None or not sys.stderr.isatty():
        yield progress or no_progress
        return
    timer = Timer(after, _say, [f"loading {name}"])
    timer.daemon = True
    timer.start()
    told: set[str] = set()

    def tell(done: int, total: int, text: str) -> None:
        if text not in told:
            told.add(text)
            _say(text)

    try:
        yield tell
    finally:
        timer.cancel()


def _say(text: str) -> None:
    sys.stderr.write(f"paceline: {text} ...\n")
    sys.stderr.flush()
