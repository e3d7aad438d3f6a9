"""Who is decoded, who waits, and whose prompt goes on in the next pass."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import accumulate, compress
from typing import NamedTuple

from paceline.checks import require_int
from paceline.engine.sequence import ActiveSequence, Stage
from paceline.errors import InvalidInput, QueueFull


class Load(NamedTuple):
    """How much an engine has to do.

    Args:
        num_running: the requests that are decoded.
        num_waiting: the requests that wait for their turn, those that were set back included.
        num_bytes: the memory that those that are decoded take at their full length; 0 where the
            engine has no budget of it.
        num_set_back: how often a request was set back because memory did not suffice.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_bytes: int = 0
    num_set_back: int = 0


class Scheduler:
    """First come, first served, within each priority; nobody overtakes.

    Args:
        prefill_rows: the most rows of prompts in one pass.
        max_sequences: the most that are decoded at once; None has no limit.
        max_waiting: the most that wait beyond those whose turn comes at the next step; None has no
            limit.
        memory: the most bytes that those that are decoded take, at their full lengths; None has no
            limit.
    """

    def __init__(
        self,
        prefill_rows: int,
        max_sequences: int | None = None,
        max_waiting: int | None = None,
        memory: int | None = None,
    ) -> None:
        self.prefill_rows = require_int("prefill_rows", prefill_rows, low=1)
        if max_sequences is not None:
            require_int("max_sequences", max_sequences, low=1)
        if max_waiting is not None:
            require_int("max_waiting", max_waiting, low=0)
        if memory is not None:
            require_int("memory", memory, low=1)
        self._max_sequences, self._max_waiting = max_sequences, max_waiting
        self.memory = memory
        self._num_set_back = 0
        self._is_full = False
        self._waiting: dict[int, ActiveSequence] = {}
        self._running: dict[int, ActiveSequence] = {}
        self._cancelled: set[int] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a sequence waits or is decoded."""
        return bool(self._waiting or self._running)

    @property
    def load(self) -> Load:
        """How many are decoded and wait, and what they take."""
        taken = sum(sequence.num_bytes for sequence in self._running.values())
        return Load(len(self._running), len(self._waiting), taken, self._num_set_back)

    def add(self, sequence: ActiveSequence) -> None:
        """Let a sequence wait for its turn.

        Raises:
            InvalidInput: it takes more memory than there is for all.
            QueueFull: as many wait as may.
        """
        if self.memory is not None and sequence.num_bytes > self.memory:
            raise InvalidInput(
                f"the request takes {_megabytes(sequence.num_bytes)} at its full length of "
                f"{sequence.limit} tokens, and there are {_megabytes(self.memory)} for all "
                "requests; give a smaller max_tokens, a shorter prompt, or the engine more memory"
            )
        most = self._max_waiting
        if most is not None and len(self._waiting) - len(self._next()) >= most:
            raise QueueFull(
                f"{len(self._running)} requests are decoded and {len(self._waiting)} wait, as many "
                "as may; send this one again later"
            )
        self._waiting[sequence.id] = sequence

    def _next(self) -> list[ActiveSequence]:
        """Those whose turn has come: of the ones that wait, the first for which there is room."""
        if self._is_full:
            return []
        most, memory = self._max_sequences, self.memory
        room = len(self._waiting) if most is None else most - len(self._running)
        first = sorted(self._waiting.values(), key=lambda sequence: sequence.rank)[:room]
        if memory is None:
            return first
        totals = accumulate((one.num_bytes for one in first), initial=self.load.num_bytes)
        fits = [total <= memory for total in totals][1:]
        return list(compress(first, fits))

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
        read: set[tuple[int, ...] | None] = set()
        left = self.prefill_rows
        for sequence in self.running(Stage.READING):
            text = sequence.shared_text(self.prefill_rows)
            if text is not None and text in read:
                continue  # it is there to be taken after this pass
            left -= len(sequence.next_chunk(self.prefill_rows))
            if chosen and left < 0:
                break
            read.add(text)
            chosen.append(sequence)
        return chosen

    def set_back(self, sequence: ActiveSequence) -> bool:
        """Let a sequence wait again, so that the others have its memory; whether that helps.

        It comes before those that came after it, but nobody comes until another one has left.
        """
        if len(self._running) == 1 or not sequence.can_be_set_back:
            return False
        sequence.set_back()
        self._waiting[sequence.id] = self._running.pop(sequence.id)
        self._num_set_back, self._is_full = self._num_set_back + 1, True
        return True

    def set_back_youngest(self) -> bool:
        """Let the one wait again that would have come last; whether that helps."""
        able = [sequence for sequence in self._running.values() if sequence.can_be_set_back]
        return bool(able) and self.set_back(max(able, key=lambda sequence: sequence.rank))

    def remove(self, sequence: ActiveSequence) -> None:
        """Forget a sequence that has ended."""
        self._waiting.pop(sequence.id, None)
        if self._running.pop(sequence.id, None) is not None:
            self._is_full = False

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
                    self._is_full = False
                    stack.callback(sequence.close)

    def clear(self) -> list[ActiveSequence]:
        """Forget all; those that hold something."""
        held = list(self._running.values())
        self._waiting.clear()
        self._running.clear()
        return held


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
