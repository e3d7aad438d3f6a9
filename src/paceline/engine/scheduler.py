"""Who is decoded, who waits, and whose prompt goes on in the next pass."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

from paceline.checks import require_int
from paceline.engine.sequence import ActiveSequence, Stage
from paceline.errors import QueueFull


class Load(NamedTuple):
    """How much an engine has to do.

    Args:
        num_running: the requests that are decoded.
        num_waiting: the requests that wait for their turn.
    """

    num_running: int = 0
    num_waiting: int = 0


class Scheduler:
    """First come, first served, within each priority; nobody overtakes.

    Args:
        prefill_rows: the most rows of prompts in one pass.
        max_sequences: the most that are decoded at once; None has no limit.
        max_waiting: the most that wait beyond those whose turn comes at the next step; None has no
            limit.
    """

    def __init__(
        self, prefill_rows: int, max_sequences: int | None = None, max_waiting: int | None = None
    ) -> None:
        self._prefill_rows = require_int("prefill_rows", prefill_rows, low=1)
        if max_sequences is not None:
            require_int("max_sequences", max_sequences, low=1)
        if max_waiting is not None:
            require_int("max_waiting", max_waiting, low=0)
        self._max_sequences, self._max_waiting = max_sequences, max_waiting
        self._waiting: dict[int, ActiveSequence] = {}
        self._running: dict[int, ActiveSequence] = {}
        self._cancelled: set[int] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a sequence waits or is decoded."""
        return bool(self._waiting or self._running)

    @property
    def load(self) -> Load:
        """How many are decoded, and how many wait."""
        return Load(len(self._running), len(self._waiting))

    def add(self, sequence: ActiveSequence) -> None:
        """Let a sequence wait for its turn.

        Raises:
            QueueFull: as many wait as may.
        """
        most = self._max_waiting
        if most is not None and len(self._waiting) - len(self._next()) >= most:
            raise QueueFull(
                f"{len(self._running)} requests are decoded and {len(self._waiting)} wait, as many "
                "as may; send this one again later"
            )
        self._waiting[sequence.id] = sequence

    def _next(self) -> list[ActiveSequence]:
        """Those whose turn has come: of the ones that wait, the first for which there is room."""
        most = self._max_sequences
        room = len(self._waiting) if most is None else most - len(self._running)
        return sorted(self._waiting.values(), key=lambda sequence: sequence.rank)[:room]

    def admit(self) -> list[ActiveSequence]:
        """Let those go on whose turn has come."""
        admitted = self._next() if self._waiting else []
        for sequence in admitted:
            self._running[sequence.id] = self._waiting.pop(sequence.id)
        return admitted

    def overdue(self, now: float) -> list[ActiveSequence]:
        """Those whose time is over, decoded or not."""
        return [
            sequence
            for sequence in (*self._running.values(), *self._waiting.values())
            if sequence.deadline is not None and sequence.deadline <= now
        ]

    def running(self, stage: Stage) -> list[ActiveSequence]:
        """Those at a stage, in the order in which they were admitted."""
        return [sequence for sequence in self._running.values() if sequence.stage is stage]

    def prompts(self) -> list[ActiveSequence]:
        """Those whose next chunk fits into a pass, in order; the first goes on in any case.

        A chunk is taken whole or not at all, so that where it ends follows from the prompt alone.
        """
        chosen: list[ActiveSequence] = []
        left = self._prefill_rows
        for sequence in self.running(Stage.READING):
            left -= len(sequence.next_chunk(self._prefill_rows))
            if chosen and left < 0:
                break
            chosen.append(sequence)
        return chosen

    def remove(self, sequence: ActiveSequence) -> None:
        """Forget a sequence that has ended."""
        self._waiting.pop(sequence.id, None)
        self._running.pop(sequence.id, None)

    def cancel(self, number: int) -> bool:
        """Mark a sequence; whether there is one."""
        found = number in self._waiting or number in self._running
        if found:
            self._cancelled.add(number)
        return found

    def is_cancelled(self, sequence: ActiveSequence) -> bool:
        """Whether it was marked."""
        return sequence.id in self._cancelled

    def drop_cancelled(self) -> None:
        """Close and forget those that were marked."""
        if not self._cancelled:
            return
        cancelled, self._cancelled = self._cancelled, set()
        with ExitStack() as stack:  # one that fails to close does not keep the others open
            for number in cancelled:
                self._waiting.pop(number, None)
                if (sequence := self._running.pop(number, None)) is not None:
                    stack.callback(sequence.close)

    def clear(self) -> list[ActiveSequence]:
        """Forget all; those that hold something."""
        held = list(self._running.values())
        self._waiting.clear()
        self._running.clear()
        return held
