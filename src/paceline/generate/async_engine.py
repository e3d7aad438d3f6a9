"""One model for many callers at once: a thread decodes for all of them, together.

The thread alone touches the engine. Callers, which are coroutines of asyncio, hand it functions to
run between two rounds, and get what an answer adds through a queue of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic
from types import TracebackType
from typing import Self, Unpack, overload

from paceline.checks import require_int
from paceline.core.events import Event, Failed, Finished, Prefilled, Round
from paceline.core.protocols import Drafter, Target
from paceline.core.traits import models_of
from paceline.engine import loop
from paceline.engine.scheduler import Load
from paceline.errors import EngineStopped, InvalidInput, QueueFull
from paceline.generate.api import LanguageModel, Prompt
from paceline.generate.jobs import Job
from paceline.generate.options import Options
from paceline.generate.results import Chunk, Generation

MAX_SEQUENCES = 16
"""How many answers are decoded at once, unless it is said."""


class Cancelled(Exception):
    """The caller ended the answer."""


CANCELLED = Cancelled("the caller ended the answer")


@dataclass(slots=True, kw_only=True)
class Times:
    """When what happened to an answer, in seconds of `time.monotonic`; None is not yet."""

    arrived: float
    prefilled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None


@dataclass(eq=False, slots=True)
class Member:
    """One of the answers of a submission.

    Args:
        group: the submission.
        index: its place in it.
        job: the answer in the making.
        times: when what happened to it.

    Attributes:
        number: its id in the engine, once it is there.
        drafted, accepted: round by round, the draft tokens that were scored, and those of them that
            became final.
        num_cached_tokens: how much of its prompt had been read for another.
    """

    group: Answers
    index: int
    job: Job
    times: Times
    number: int | None = field(default=None, init=False)
    drafted: list[int] = field(default_factory=list, init=False)
    accepted: list[int] = field(default_factory=list, init=False)
    num_cached_tokens: int = field(default=0, init=False)


class Observer:
    """What an engine tells of its answers, on its own thread. The base class notes nothing."""

    def came(self, member: Member) -> None:
        """An answer was asked for."""

    def took(self, member: Member, event: Event) -> None:
        """The engine reported an event of it."""

    def ended(self, member: Member, error: Exception | None) -> None:
        """It is finished, or has ended by an error, which is `CANCELLED` if the caller ended it."""


class Answers:
    """The answers to one submission, in the making.

    Iterating gives pairs of an answer's place and what it added: its `Chunk`s, then its
    `Generation`. An error of one of them is raised, and the others are cancelled. What a caller has
    not taken yet is kept for it, and nobody waits for it; that is never more than the answers.
    """

    def __init__(self, jobs: Iterable[Job], cancel: Callable[[Answers], None]) -> None:
        now = monotonic()
        self.members = [
            Member(self, index, job, Times(arrived=now)) for index, job in enumerate(jobs)
        ]
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[int, Chunk | Generation | Exception]] = asyncio.Queue()
        self._left = len(self.members)

    @property
    def is_open(self) -> bool:
        """Whether more is to come."""
        return self._left > 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Chunk | Generation]:
        if not self._left:
            raise StopAsyncIteration
        index, item = await self._items.get()
        if isinstance(item, Exception):
            self._left = 0
            self.cancel()
            raise item
        if isinstance(item, Generation):
            self._left -= 1
        return index, item

    async def gather(self) -> list[Generation]:
        """The finished answers, in order; cancelled with the coroutine that waits for them."""
        try:
            found = {index: item async for index, item in self if isinstance(item, Generation)}
        finally:
            self.cancel()
        return [found[index] for index in sorted(found)]

    def cancel(self) -> None:
        """End those that are not finished, within a round; nothing more comes of them."""
        self._cancel(self)

    def deliver(self, index: int, item: Chunk | Generation | Exception) -> None:
        """Hand over what an answer added; from any thread."""
        with suppress(RuntimeError):  # the caller's loop has ended, and the caller with it
            self._loop.call_soon_threadsafe(self._items.put_nowait, (index, item))


class Engine:
    """One model that answers many callers at once, each as it would alone.

    Args:
        model: the model.
        max_sequences: how many answers are decoded at once; the others wait.
        max_waiting: how many may wait; None has no limit.
        memory: how many bytes the answers that are decoded may take, beside the weights: caches at
            their full length, and logits; see `engine.loop.Engine`. The others wait, in order, and
            one that could never fit is refused. None has no limit.
        prefix_bytes: how much is kept, by each model, of prompts that were read, in addition to
            `memory`: a prompt that begins the same is not read again. 0 keeps nothing.
        observer: is told what happens, for metrics.

    Example:
        >>> async def main() -> None:
        ...     async with Engine(paceline.load("smollm2-135m")) as engine:
        ...         questions = ["2 + 2 =", "The capital of France is"]
        ...         answers = [engine.generate(text, max_tokens=8) for text in questions]
        ...         for answer in await asyncio.gather(*answers):
        ...             print(answer.text)
        >>> asyncio.run(main())  # doctest: +SKIP
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_sequences: int = MAX_SEQUENCES,
        max_waiting: int | None = None,
        memory: int | None = None,
        prefix_bytes: int = 0,
        observer: Observer | None = None,
    ) -> None:
        if max_waiting is not None:
            require_int("max_waiting", max_waiting, low=0)
        self.model = model
        self.max_sequences, self.max_waiting = max_sequences, max_waiting
        self.memory = memory
        self._observer = Observer() if observer is None else observer
        self._make_core = partial(
            loop.Engine, model.target, max_sequences=max_sequences, memory=memory
        )
        self._prefix_bytes = require_int("prefix_bytes", prefix_bytes, low=0)
        self._sharing: dict[int, Target] = {}
        self._core = self._make_core()
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._decoded: dict[int, Member] = {}
        self._lock = Lock()
        self._open: set[Member] = set()
        self._is_open = self._runs = True
        self._thread = Thread(target=self._run, name="paceline-engine", daemon=True)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to decode; `async with` does it."""
        self._thread.start()

    @property
    def num_open(self) -> int:
        """The answers that are decoded or wait."""
        with self._lock:
            return len(self._open)

    @property
    def load(self) -> Load:
        """How many answers are decoded, and how many wait."""
        return self._core.load

    @property
    def is_healthy(self) -> bool:
        """Whether it takes requests and its thread decodes them."""
        return self._is_open and self._thread.is_alive()

    @overload
    async def generate(
        self, prompt: Prompt, *, n: None = None, **options: Unpack[Options]
    ) -> Generation: ...
    @overload
    async def generate(
        self, prompt: Prompt, *, n: int, **options: Unpack[Options]
    ) -> list[Generation]: ...
    async def generate(
        self, prompt: Prompt, *, n: int | None = None, **options: Unpack[Options]
    ) -> Generation | list[Generation]:
        """Answer a prompt, as `LanguageModel.generate` does. Cancelling it ends the answer."""
        prompts = [prompt] * (1 if n is None else require_int("n", n, low=1))
        answers = await self.submit(prompts, samples=n is not None, **options)
        found = await answers.gather()
        return found[0] if n is None else found

    async def stream(
        self, prompt: Prompt, **options: Unpack[Options]
    ) -> AsyncIterator[Chunk | Generation]:
        """Answer a prompt piece by piece: `Chunk`s, then the `Generation`.

        Closing the iterator ends the answer.
        """
        answers = await self.submit([prompt], **options)
        try:
            async for _, item in answers:
                yield item
        finally:
            answers.cancel()

    async def submit(
        self, prompts: Sequence[Prompt], *, samples: bool = False, **options: Unpack[Options]
    ) -> Answers:
        """Ask for the answers to several prompts: all are taken, or none.

        Args:
            prompts: the prompts.
            samples: give the answers consecutive seeds, as `generate` does with `n`.
            options: see `Options`.

        Raises:
            InvalidInput: a prompt or an option is invalid.
            QueueFull: more would wait than may.
            EngineStopped: it is being stopped.
        """
        if options.get("trace") is not None:
            raise InvalidInput(
                "a trace is of one answer that is decoded alone; use LanguageModel.generate"
            )
        # Reading a long prompt takes a while, and other callers should not wait for it.
        prepare = partial(self.model.prepare, prompts, samples=samples, **options)
        return self.submit_jobs(await asyncio.to_thread(prepare))

    def submit_jobs(self, jobs: Iterable[Job]) -> Answers:
        """The same for jobs that were prepared; see `LanguageModel.prepare`."""
        answers = Answers(jobs, self._cancel)
        with self._lock:
            if not self._is_open:
                raise EngineStopped("the engine is being stopped; it takes no more requests")
            self._refuse_too_many(len(answers.members))
            self._open.update(answers.members)
        for member in answers.members:
            self._commands.put(partial(self._add, member))
        return answers

    async def close(self, grace: float = 0.0) -> None:
        """Take nothing more, and end when all is answered, or after `grace` seconds.

        Answers that are not finished by then end with `EngineStopped`.
        """
        self._is_open = False
        until = monotonic() + grace
        while self.num_open and monotonic() < until:
            await asyncio.sleep(min(0.05, grace))
        self._commands.put(self._stop)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _refuse_too_many(self, more: int) -> None:
        if self.max_waiting is None:
            return
        most = self.max_sequences + self.max_waiting
        if len(self._open) + more > most:
            raise QueueFull(
                f"{len(self._open)} answers are decoded or wait, and {most} may; ask again later"
                if self._open
                else f"{more} answers are more than may be asked for at once, which is {most}"
            )

    # What follows runs on the thread of the engine.

    def _run(self) -> None:
        while self._runs:
            self._obey()
            if self._core.is_busy:
                self._step()
        self._core.close()
        for model in self._sharing.values():
            assert model.prefixes is not None
            model.prefixes.resize(0)

    def _obey(self) -> None:
        """Run the commands that have come; without anything to decode, wait for one."""
        while self._runs and not (self._core.is_busy and self._commands.empty()):
            self._commands.get()()

    def _step(self) -> None:
        try:
            with closing(self._core.events()) as events:
                for event in events:
                    self._take(self._decoded[event.id], event)
        except Exception as error:  # noqa: BLE001 - a fault of the engine's own ends its answers
            with suppress(Exception):
                self._core.close()
            self._core = self._make_core()
            for member in list(self._decoded.values()):
                self._end(member, error)

    def _add(self, member: Member) -> None:
        self._observer.came(member)
        if member not in self._open:
            return  # cancelled before its turn
        try:
            self._share_prefixes(member.job.request.drafter)
            member.number = self._core.add(member.job.request)
        except Exception as error:  # noqa: BLE001 - it is handed to the caller
            self._end(member, error)
            return
        self._decoded[member.number] = member

    def _share_prefixes(self, drafter: Drafter) -> None:
        """Let the models that a request needs keep what they read, if they do not yet."""
        if not self._prefix_bytes:
            return
        for model in (self.model.target, *models_of(drafter)):
            if model.prefixes is not None and id(model) not in self._sharing:
                self._sharing[id(model)] = model
                model.prefixes.resize(self._prefix_bytes)

    def _take(self, member: Member, event: Event) -> None:
        now = monotonic()
        if isinstance(event, Failed):
            self._end(member, event.error)
            return
        chunk = member.job.take(event)
        self._observer.took(member, event)
        times = member.times
        if isinstance(event, Prefilled):
            member.job.start_clock()
            if times.prefilled is None:  # one that was set back is read again
                times.prefilled, member.num_cached_tokens = now, event.num_cached_tokens
        elif isinstance(event, Round):
            times.first_token = now if times.first_token is None else times.first_token
            times.last_token = now
            member.drafted.append(event.num_draft_tokens)
            member.accepted.append(event.num_accepted_tokens)
        if chunk is not None:
            member.group.deliver(member.index, chunk)
        if isinstance(event, Finished):
            self._end(member, None)

    def _end(self, member: Member, error: Exception | None) -> None:
        if member.number is not None:
            self._decoded.pop(member.number, None)
        with self._lock:
            if member not in self._open:
                return
            self._open.discard(member)
        member.times.ended = monotonic()
        self._observer.ended(member, error)
        item = member.job.generation(self.model.load_seconds) if error is None else error
        member.group.deliver(member.index, item)

    def _cancel(self, answers: Answers) -> None:
        """End what is left of a submission; from any thread."""
        with self._lock:
            left = [member for member in answers.members if member in self._open]
        if left:
            self._commands.put(partial(self._cancel_members, left))

    def _cancel_members(self, members: Sequence[Member]) -> None:
        for member in members:
            if member.number is not None:
                self._core.cancel(member.number)
            self._end(member, CANCELLED)

    def _stop(self) -> None:
        self._runs = False
        with self._lock:
            left = list(self._open)
        for member in left:
            self._end(
                member, EngineStopped("the engine was stopped before the answer was finished")
            )
