"""Who is decoded, who waits, and whose prompt goes on in the next pass."""

from __future__ import annotations

from paceline.checks import require_int
from paceline.engine.sequence import ActiveSequence, Stage


class Scheduler:
    """First come, first served.

    Args:
        prefill_rows: the most rows of prompts in one pass.
        max_sequences: the most that are decoded at once; None has no limit.
    """

    def __init__(self, prefill_rows: int, max_sequences: int | None) -> None:
        self._prefill_rows = require_int("prefill_rows", prefill_rows, low=1)
        if max_sequences is not None:
            require_int("max_sequences", max_sequences, low=1)
        self._max_sequences = max_sequences
        self._waiting: dict[int, ActiveSequence] = {}
        self._running: dict[int, ActiveSequence] = {}
        self._cancelled: set[int] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a sequence waits or is decoded."""
        return bool(self._waiting or self._running)

    def add(self, sequence: ActiveSequence) -> None:
        """Let a sequence wait for its turn."""
        self._waiting[sequence.id] = sequence

    def admit(self) -> list[ActiveSequence]:
        """Those whose turn has come."""
        if not self._waiting:
            return []
        most = self._max_sequences
        room = len(self._waiting) if most is None else most - len(self._running)
        admitted = [self._waiting.pop(number) for number in list(self._waiting)[:room]]
        self._running |= {sequence.id: sequence for sequence in admitted}
        return admitted

    def running(self, stage: Stage) -> list[ActiveSequence]:
        """Those at a stage, in the order in which they came."""
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
        for number in cancelled:
            self._waiting.pop(number, None)
            if (sequence := self._running.pop(number, None)) is not None:
                sequence.close()

    def clear(self) -> list[ActiveSequence]:
        """Forget all; those that hold something."""
        held = list(self._running.values())
        self._waiting.clear()
        self._running.clear()
        return held
