"""Unfinished answers: folds over the engine's events, one per sequence."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from paceline.core.events import Event, Finished, Prefilled, Round
from paceline.engine.metrics import Metrics
from paceline.engine.request import Request
from paceline.generate.results import Chunk, Generation, Piece, sampling_of
from paceline.text import TextStream
from paceline.trace import LaneRecorder


@dataclass(eq=False)
class Job:
    """One unfinished answer.

    Args:
        request: the request to the engine.
        promise: see `results.promise_of`.
        seed: the seed of the request's noise.
        text: the growing text; None without a tokenizer.
        draft: what was chosen for the draft model, in one line; None without one.
        recorder: what notes the events for a trace; None for none.
    """

    request: Request
    promise: str
    seed: int
    text: TextStream | None
    draft: str | None = None
    recorder: LaneRecorder | None = None

    _metrics: Metrics = field(default_factory=Metrics, init=False)
    _tokens: list[int] = field(default_factory=list, init=False)
    _logprobs: list[float] = field(default_factory=list, init=False)
    _top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list, init=False)
    _finish_reason: str = field(default="", init=False)
    _last_drafted: bool = field(default=False, init=False)
    _start: float = field(default=0.0, init=False)
    _end: float = field(default=0.0, init=False)

    @property
    def metrics(self) -> Metrics:
        """The counts and times so far."""
        return self._metrics

    @property
    def has_begun(self) -> bool:
        """Whether the answer has a token yet."""
        return bool(self._tokens)

    def start_clock(self) -> None:
        """Measure decoding time from now on."""
        self._start = self._end = perf_counter()

    def pause(self, seconds: float) -> None:
        """Exclude time that has just passed without decoding."""
        self._start += seconds
        self._end += seconds

    def take(self, event: Event) -> Chunk | None:
        """Take in an event; returns the text that it added."""
        self._end = perf_counter()
        chunk = self._fold(event)
        if self.recorder is not None:
            pieces = () if chunk is None else chunk.pieces
            self.recorder.take(event, self._end - self._start, [piece.text for piece in pieces])
        return chunk

    def _fold(self, event: Event) -> Chunk | None:
        self._metrics = self._metrics.add(event)
        if isinstance(event, Round):
            self._tokens += event.tokens
            self._logprobs += event.logprobs or ()
            self._top_logprobs += event.top_logprobs or ()
            self._last_drafted = len(event.tokens) == event.num_accepted_tokens
            pieces = tuple(self._pieces(event))
            return Chunk(pieces, event.tokens, event.logprobs, event.top_logprobs)
        if isinstance(event, Finished):
            self._finish_reason = event.reason.value
            rest = "" if self.text is None else self.text.finish()
            return Chunk((Piece(rest, self._tokens[-1], self._last_drafted),)) if rest else None
        return None

    def _pieces(self, event: Round) -> Iterator[Piece]:
        for offset, token in enumerate(event.tokens):
            text = "" if self.text is None else self.text.feed([token])
            yield Piece(text, token, drafted=offset < event.num_accepted_tokens)

    def lane(self) -> dict[str, Any]:
        """How it is decoded, as the header of a trace says it."""
        request = self.request
        return {
            "drafter": request.drafter.name,
            "verifier": request.verifier.name,
            "exact": request.verifier.exact,
            "promise": self.promise,
            "draft": self.draft,
        }

    def generation(self, load_seconds: float) -> Generation:
        """The finished answer."""
        asked = self.request.logprobs is not None
        return Generation(
            text="" if self.text is None else self.text.text,
            token_ids=tuple(self._tokens),
            finish_reason=self._finish_reason,
            num_prompt_tokens=len(self.request.prompt),
            seed=self.seed,
            drafter=self.request.drafter.name,
            verifier=self.request.verifier.name,
            exact=self.request.verifier.exact,
            promise=self.promise,
            draft=self.draft,
            metrics=self._metrics,
            sampling=sampling_of(self.request.params),
            decode_seconds=self._end - self._start,
            load_seconds=load_seconds,
            logprobs=tuple(self._logprobs) if asked else None,
            top_logprobs=tuple(self._top_logprobs) if asked else None,
        )


def finish(events: Iterable[Event], jobs: Sequence[Job], load_seconds: float) -> list[Generation]:
    """Take in the events of all jobs, and return their answers."""
    with _recorded(jobs):
        for event in events:
            jobs[event.id].take(event)
            if isinstance(event, Prefilled):
                # A job that has not decoded yet waits for the prefills of the others; that is not
                # decoding time.
                for job in jobs:
                    if not job.has_begun:
                        job.start_clock()
    return [job.generation(load_seconds) for job in jobs]


def stream(
    events: Generator[Event], job: Job, load_seconds: float
) -> Generator[Chunk | Generation]:
    """Yield the text of one job as it comes, and then its answer. Closing it closes `events`."""
    with closing(events), _recorded([job]):
        for event in events:
            chunk = job.take(event)
            if isinstance(event, Prefilled):
                job.start_clock()
            if chunk is not None:
                start = perf_counter()
                yield chunk
                job.pause(perf_counter() - start)
    yield job.generation(load_seconds)


@contextmanager
def _recorded(jobs: Sequence[Job]) -> Iterator[None]:
    """Traces are written when the run has ended, also where it was stopped or failed."""
    try:
        yield
    finally:
        for job in jobs:
            if job.recorder is not None:
                job.recorder.close()
