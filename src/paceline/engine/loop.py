"""The loop: draft, score, verify, commit. Contracts in, events out; no plug-in has a name here."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from time import monotonic, perf_counter

from paceline.core.events import Event, Failed, FinishReason
from paceline.core.protocols import Target
from paceline.engine.admission import Admission
from paceline.engine.gather import advance_together, score_each
from paceline.engine.memory import is_out_of_memory, num_bytes
from paceline.engine.request import Request, StopRule
from paceline.engine.scheduler import Load, Scheduler
from paceline.engine.sequence import ActiveSequence, SharedPass, Stage
from paceline.engine.threads import THREADS

__all__ = ["PREFILL_ROWS", "Engine", "Request", "StopRule", "decode"]

PREFILL_ROWS = 512
"""The most rows of prompts in one pass. Bounds what an arrival adds to a round of the others."""


class Engine:
    """Requests that come and go, decoded together.

    One thread at a time. Each request gets what it would get alone, and an error that is its own
    (of its drafter, rule, processors, stop rules) ends it alone.

    Args:
        target: the model.
        prefill_rows: the most rows of prompts in one pass. A longer prompt comes in chunks, which
            share passes with the drafts of others; where a chunk ends follows from the prompt.
        max_sequences: how many are decoded at once; the others wait. None has no limit.
        max_waiting: how many may wait beyond those whose turn comes at the next step. None has no
            limit.
        memory: how many bytes the requests may take that are decoded at once: each is counted with
            the target's state, the drafter's and the logits of a round at its full length, prompt
            and `max_tokens` together. Weights, and what a pass computes, are not part of it. The
            others wait, in order. None has no limit.
        clock: seconds that only rise, for the time limits of requests.
        admission: cuts the drafts of a round to what a pass over all of them is worth; None scores
            them as they are.

    Example:
        >>> engine = Engine(target)  # doctest: +SKIP
        >>> number = engine.add(request)  # doctest: +SKIP
        >>> while engine.is_busy:  # doctest: +SKIP
        ...     for event in engine.step():
        ...         print(event)
    """

    def __init__(
        self,
        target: Target,
        *,
        prefill_rows: int = PREFILL_ROWS,
        max_sequences: int | None = None,
        max_waiting: int | None = None,
        memory: int | None = None,
        admission: Admission | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._target, self._admission, self._clock = target, admission, clock
        self._scheduler = Scheduler(prefill_rows, max_sequences, max_waiting, memory)
        self._count = 0
        self._stepping = False
        # In invariant mode nothing may change that rounds differently, threads included.
        self._threads = nullcontext if target.info.invariant else THREADS.decoding

    @property
    def is_busy(self) -> bool:
        """Whether a request waits or is decoded."""
        return self._scheduler.is_busy

    @property
    def load(self) -> Load:
        """How many requests are decoded and wait, and what they take."""
        return self._scheduler.load

    def add(self, request: Request) -> int:
        """Take a request; its slot and session are opened when its turn comes.

        Returns:
            Its id, which its events name.

        Raises:
            InvalidInput: a request that cannot be served, or takes more than `memory`.
            QueueFull: `max_waiting` requests wait.
        """
        sequence = ActiveSequence(self._count, request, self._target, self._clock())
        if self._scheduler.memory is not None:
            sequence.num_bytes = num_bytes(request, sequence.limit, self._target)
        self._scheduler.add(sequence)
        self._count += 1
        return self._count - 1

    def cancel(self, number: int) -> bool:
        """End a request without a further event; what it holds is freed.

        At once, or where a step is under way, at its end.

        Returns:
            Whether there was such a request.
        """
        found = self._scheduler.cancel(number)
        if found and not self._stepping:
            self._scheduler.drop_cancelled()
        return found

    def step(self) -> list[Event]:
        """One round for all: admit, draft, one pass of the target, verify; the events of it."""
        return list(self.events())

    def events(self) -> Generator[Event]:
        """The same, event by event; where it is not read to its end, only `close` may follow."""
        self._stepping, scheduler = True, self._scheduler
        for sequence in scheduler.overdue(self._clock()):
            yield from self._attempt(sequence, partial(sequence.end, FinishReason.TIMEOUT))
        for sequence in scheduler.admit():
            yield from self._attempt(sequence, sequence.start)
        for sequence in scheduler.running(Stage.READING):
            yield from self._attempt(sequence, partial(sequence.recall, scheduler.prefill_rows))
        for sequence in scheduler.running(Stage.READ):
            yield from self._attempt(sequence, sequence.observe_prompt)
        drafting = scheduler.running(Stage.DECODING)
        with self._threads():
            advance_together([sequence.drafting() for sequence in drafting])
        for sequence in drafting:
            if sequence.is_open and sequence.drafting().error is not None:
                yield from self._attempt(sequence, sequence.check_drafting, of_pass=True)
        drafted = [s for s in drafting if s.is_open and s.has_draft]
        prompts = scheduler.prompts()
        chosen, chunks = [*drafted, *prompts], [sequence.work() for sequence in prompts]
        if self._admission is not None and drafted:
            rows = sum(chunk.num_rows for chunk in chunks)
            cut = self._admission.cut([s.draft for s in drafted], other_rows=rows)
            for sequence, draft in zip(drafted, cut, strict=True):
                sequence.drafting().draft = draft
        work = [*(sequence.work() for sequence in drafted), *chunks]
        start = perf_counter()
        with self._threads():
            answers = score_each(self._target, work) if work else ()
        follow = [sequence.follows_load for sequence in chosen]
        shared = SharedPass.of(work, follow, perf_counter() - start)
        for sequence, item, answer in zip(chosen, work, answers, strict=True):
            if sequence.is_open:
                action = partial(sequence.take, item, answer, shared)
                of_pass = isinstance(answer, Exception)
                yield from self._attempt(sequence, action, of_pass=of_pass)
        self._stepping = False
        scheduler.drop_cancelled()

    def close(self) -> None:
        """End all requests; what they hold is freed, also where closing one of them fails."""
        with ExitStack() as stack:
            for sequence in self._scheduler.clear():
                stack.callback(sequence.close)

    def _attempt(
        self,
        sequence: ActiveSequence,
        action: Callable[[], Event | None],
        *,
        of_pass: bool = False,
    ) -> Generator[Event]:
        """Do a part of a sequence's work, and close it where that was the end; an error is one.

        Where memory did not suffice, it can try again later. After a pass, which changes nothing,
        the youngest makes room for it.
        """
        scheduler = self._scheduler
        if scheduler.is_cancelled(sequence):
            return
        try:
            with self._threads():
                event = action()
        except Exception as error:  # noqa: BLE001 - it ends this request alone
            if is_out_of_memory(error) and (
                scheduler.set_back_youngest() if of_pass else scheduler.set_back(sequence)
            ):
                return
            yield self._end(sequence, sequence.failed(error))
            return
        if event is not None:
            yield event
        if sequence.reason is not None:
            yield self._end(sequence, sequence.finished())

    def _end(self, sequence: ActiveSequence, event: Event) -> Event:
        self._scheduler.remove(sequence)
        return event


def decode(
    target: Target, requests: Sequence[Request], *, prefill_rows: int = PREFILL_ROWS
) -> Generator[Event]:
    """Decode the requests together, one target pass a round for all of them.

    Yields `Prefilled` for each, then its `Round`s, then `Finished`; ids are places in `requests`.
    Closing the generator, or an exception anywhere, closes the slots and sessions that were opened
    here and leaves a slot of the caller's at the tokens that were emitted: all but the last are
    cached.

    Raises:
        InvalidInput: a request that cannot be served; raised before the first event.
        ContractViolation: a plug-in broke its contract.
        Exception: what a plug-in raised.
    """
    with closing(Engine(target, prefill_rows=prefill_rows)) as engine:
        for request in requests:
            engine.add(request)
        while engine.is_busy:
            for event in engine.events():
                if isinstance(event, Failed):
                    raise event.error
                yield event
