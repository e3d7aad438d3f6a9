"""How an audit tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Told (done, total, what); each `what` is a step that goes from 0 to its total."""


def silent(done: int, total: int, text: str) -> None:
    """Tell nobody."""
