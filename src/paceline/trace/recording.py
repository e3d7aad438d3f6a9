"""Recording: the events of one prompt's runs, as the lines of a trace.

A lane is one run. Events are only noted while it decodes; lines are made when they are asked for,
so that a recording does not slow down what it times.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paceline.checks import require_writable
from paceline.core.events import Event, Finished, Prefilled, Round, to_json
from paceline.environment import environment
from paceline.errors import InvalidInput

SCHEMA = "paceline.trace/1"

_CONTEXT = 8
"""The tokens before a drafted one that decide how it is written: a space, half a character."""


class _Noted(NamedTuple):
    event: Event
    seconds: float
    pieces: Sequence[str]


class LaneRecorder:
    """The lines of one lane, as its events come.

    Args:
        lane: its name, "plain" or "speculative" for example.
        about: what the header says of it: drafter, verifier, exact, promise.
        prompt: the token ids before its first round.
        tokenizer: what turns tokens into text; None leaves the texts out.
        on_end: called when the run has ended, whatever the reason.
    """

    def __init__(
        self,
        lane: str,
        about: Mapping[str, Any],
        prompt: Sequence[int],
        tokenizer: Any,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.lane, self.about, self.prompt = lane, dict(about), tuple(prompt)
        self.lines: list[dict[str, Any]] = []
        self.close = on_end
        self._tokenizer = tokenizer
        self._noted: deque[_Noted] = deque()
        self._tokens = list(prompt)
        self._text: list[str] = []

    def take(self, event: Event, seconds: float, pieces: Sequence[str] = ()) -> None:
        """Note an event.

        Args:
            event: of this lane; `Request.keep_draft` puts the draft into its rounds.
            seconds: on the lane's decoding clock, which starts after the prefill.
            pieces: the text that each token of a round added, or, at the end, the rest of the text.
        """
        self._noted.append(_Noted(event, seconds, tuple(pieces)))

    def drain(self) -> list[dict[str, Any]]:
        """The lines of what was noted since the last call; `lines` has those of all calls."""
        new = []
        while self._noted:  # another thread may note meanwhile
            new.append(self._line(self._noted.popleft()))
        self.lines += new
        return new

    def _line(self, noted: _Noted) -> dict[str, Any]:
        event, seconds = noted.event, noted.seconds
        found = to_json(event)
        # A failure is the caller's to tell: a lane that stops has no last line.
        line = {"event": found.pop("event"), "lane": self.lane, "t": round(seconds, 6), **found}
        has_text = self._tokenizer is not None
        if isinstance(event, Prefilled):
            line["t"] = 0.0
        elif isinstance(event, Round):
            if has_text:
                line["pieces"] = list(noted.pieces)
                self._text += noted.pieces
                if event.draft is not None:
                    line["draft"] |= {"pieces": self._draft_pieces(event)}
            self._tokens += event.tokens
        elif isinstance(event, Finished) and has_text:
            rest = "".join(noted.pieces)
            line |= {"piece": rest, "text": "".join([*self._text, rest])}
        return line

    def _draft_pieces(self, event: Round) -> list[str]:
        """The text of each drafted token, after the tokens on its path."""
        assert event.draft is not None
        tokens, before = event.draft.tokens, self._tokens[-_CONTEXT:]
        paths: dict[int, list[int]] = {-1: before}
        found = []
        for node, (token, parent) in enumerate(zip(tokens, event.draft.parents, strict=True)):
            paths[node] = [*paths[parent], token]
            found.append(self._piece(paths[parent], token))
        return found

    def _piece(self, before: Sequence[int], token: int) -> str:
        context = self._decode(before)
        text = self._decode([*before, token])
        return text[len(context) :] if text.startswith(context) else self._decode([token])

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(
            self._tokenizer.decode(
                list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )


@dataclass(eq=False)
class Recording:
    """A trace in the making: one prompt, answered in one lane or in several.

    Pass it to `generate` as `trace`, once for each lane: the one without a drafter is called
    "plain", any other "speculative".

    Args:
        path: the file to write after each lane; None leaves that to `write`.

    Raises:
        InvalidInput: the file cannot be written.

    Example:
        >>> race = Recording()
        >>> model.generate(prompt, drafter="none", trace=race)  # doctest: +SKIP
        >>> model.generate(prompt, drafter="ngram", trace=race)  # doctest: +SKIP
        >>> race.write("race.jsonl")  # doctest: +SKIP
    """

    path: Path | None = None
    _lanes: dict[str, LaneRecorder] = field(default_factory=dict, init=False)
    _run: dict[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.path is not None:
            require_writable("trace", self.path)

    @classmethod
    def of(cls, given: Any) -> Recording:
        """The recording that an option means: itself, or one that writes to a path.

        Raises:
            InvalidInput: it is neither, or the file cannot be written.
        """
        if isinstance(given, Recording):
            return given
        if isinstance(given, (str, Path)):
            return cls(Path(given))
        raise InvalidInput(f"trace must be a file or a Recording; it is {given!r:.80}")

    def lane(
        self,
        name: str,
        about: Mapping[str, Any],
        prompt_ids: Sequence[int],
        tokenizer: Any,
        *,
        model: str,
        prompt: str,
        sampling: Mapping[str, Any],
    ) -> LaneRecorder:
        """Begin a lane.

        Args:
            name, about, prompt_ids, tokenizer: see `LaneRecorder`.
            model: the name of the model that answers.
            prompt: the prompt as text.
            sampling: how tokens are drawn, as plain JSON values.

        Raises:
            InvalidInput: there is such a lane, or it answers another prompt, with another model, or
                draws tokens in another way.
        """
        if name in self._lanes:
            raise InvalidInput(
                f"the trace has a lane {name!r} already; use a new Recording for another run"
            )
        lane = LaneRecorder(name, about, prompt_ids, tokenizer, self.save)
        run = {"model": model, "prompt": prompt, "sampling": dict(sampling)}
        first = next(iter(self._lanes.values()), lane)
        if first.prompt != lane.prompt or run != (self._run or run):
            raise InvalidInput(
                "the lanes of a trace answer one prompt, with one model, sampling options and "
                "seed; this lane differs from the first: use a new Recording"
            )
        self._run, self._lanes[name] = run, lane
        return lane

    def header(self) -> dict[str, Any]:
        """The first line."""
        return header(**self._run, lanes=self._lanes.values())

    def lines(self) -> Iterator[dict[str, Any]]:
        """All lines so far."""
        yield self.header()
        for lane in self._lanes.values():
            lane.drain()
            yield from lane.lines

    def save(self) -> None:
        """Write what there is to `path`, if there is one."""
        if self.path is not None:
            self.write(self.path)

    def write(self, path: str | Path) -> None:
        """Write what there is.

        Raises:
            InvalidInput: nothing was recorded, or the file cannot be written.
        """
        if not self._lanes:
            raise InvalidInput("nothing was recorded; pass this to generate as trace first")
        text = "".join(f"{to_line(line)}\n" for line in self.lines())
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"trace: cannot write {path}: {error.strerror}") from error


def header(
    *, model: str, prompt: str, sampling: Mapping[str, Any], lanes: Iterable[LaneRecorder]
) -> dict[str, Any]:
    """The first line of a trace; see `Recording.lane` for its parts."""
    machine = environment()
    del machine["command"]  # it repeats the prompt
    return {
        "event": "trace",
        "schema": SCHEMA,
        "model": model,
        "prompt": prompt,
        "sampling": dict(sampling),
        "lanes": {lane.lane: lane.about for lane in lanes},
        "environment": machine,
    }


def to_line(line: Mapping[str, Any]) -> str:
    """A line as it is written, without its line end.

    >>> to_line({"event": "finished", "t": 0.5})
    '{"event":"finished","t":0.5}'
    """
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
