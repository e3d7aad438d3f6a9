"""Drafters for what happens while requests are on their way: one that waits, one that fails."""

from __future__ import annotations

from threading import Event
from typing import Any

from paceline.drafters.none import NoDrafter

SECRET = "what a client wrote"


class Gate:
    """Drafts nothing, and holds the engine at the opening of a request until `gate` is set."""

    name, needs = "gate", frozenset[Any]()

    def __init__(self) -> None:
        self.gate = Event()

    def open(self, target: Any, capacity: int) -> Any:
        self.gate.wait(10)
        return NoDrafter().open(target, capacity)


class Faulty:
    """Cannot open, for a reason that no other client may read."""

    name, needs = "faulty", frozenset[Any]()

    def open(self, target: Any, capacity: int) -> Any:
        raise ArithmeticError(SECRET)
