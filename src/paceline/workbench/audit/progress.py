"""How an audit reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what); each `what` is a step that goes from 0 to its total."""


def silent(done: int, total: int, text: str) -> None:
    """Report nothing."""
