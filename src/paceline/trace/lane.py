"""One lane of a trace: its lines, checked one after another, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from paceline.core.drafts import ROOT, Draft
from paceline.core.events import DraftRecord, Event, Finished, FinishReason, Prefilled, Round
from paceline.engine.metrics import Metrics
from paceline.errors import InvalidInput
from paceline.trace.values import (
    Wrong,
    amount,
    names,
    probabilities,
    texts,
    value_of,
    whole,
    whole_numbers,
)


@dataclass(frozen=True, slots=True)
class Lane:
    """One run of a trace.

    Args:
        name: "plain" or "speculative", for example.
        about: what the header says of it: drafter, verifier, exact, promise.
        events: in order, with the drafts of rounds where they were kept. Without a `Finished` at
            the end, the run was stopped.
        seconds: of each event, on the lane's decoding clock, which starts after the prefill.
        text: the text of the rounds, and of the end; None if the trace holds only token ids.
        error: what ended the run, if it failed.
    """

    name: str
    about: Mapping[str, Any]
    events: tuple[Event, ...]
    seconds: tuple[float, ...]
    text: str | None
    error: str | None = None

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Its rounds."""
        return tuple(event for event in self.events if isinstance(event, Round))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids of the answer."""
        return tuple(token for event in self.rounds for token in event.tokens)

    @property
    def metrics(self) -> Metrics:
        """What its events add up to."""
        return Metrics.of(self.events)

    @property
    def tokens_per_second(self) -> float | None:
        """Answer tokens per second of decoding; None without any."""
        rounds = [at for event, at in self._timed() if isinstance(event, Round)]
        return len(self.tokens) / rounds[-1] if rounds and rounds[-1] > 0 else None

    def _timed(self) -> Iterator[tuple[Event, float]]:
        return zip(self.events, self.seconds, strict=True)


@dataclass(eq=False)
class LaneReader:
    """Checks the lines of one lane, one after another; `take` raises `Wrong`."""

    name: str
    about: Mapping[str, Any]
    events: list[Event] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    pieces: list[str] | None = field(default_factory=list)
    rounds: int = 0
    num_tokens: int = 0
    id: int | None = None
    error: str | None = None

    def take(self, line: Mapping[str, Any]) -> None:
        """Take in the next line of the lane."""
        kinds = {
            "prefilled": self._prefilled,
            "round": self._round,
            "finished": self._finished,
            "failed": self._failed,
        }
        kind = line.get("event")
        if not isinstance(kind, str) or kind not in kinds:
            raise Wrong(f"event must be one of {names(kinds)}; it is {kind!r}")
        if self.error is not None or (self.events and isinstance(self.events[-1], Finished)):
            raise Wrong(f"lane {self.name!r} has ended; nothing may follow")
        number = whole(line, "id")
        if self.id not in (None, number):
            raise Wrong(f"lane {self.name!r} is of request {self.id}; this line is of {number}")
        at = amount(line, "t")
        if at < (self.seconds[-1] if self.seconds else 0.0):
            raise Wrong(f"t must not fall; it was {self.seconds[-1] if self.seconds else 0}")
        kinds[kind](line)
        self.id = number
        if self.error is None:
            self.seconds.append(at)

    def lane(self) -> Lane:
        """What was read."""
        text = None if self.pieces is None else "".join(self.pieces)
        return Lane(
            self.name, self.about, tuple(self.events), tuple(self.seconds), text, self.error
        )

    def _prefilled(self, line: Mapping[str, Any]) -> None:
        if self.events:
            raise Wrong(f"the prefill of lane {self.name!r} must come first, and once")
        self.events.append(
            Prefilled(
                id=whole(line, "id"),
                num_prompt_tokens=whole(line, "num_prompt_tokens", low=1),
                seconds=amount(line, "seconds"),
            )
        )

    def _round(self, line: Mapping[str, Any]) -> None:
        tokens = whole_numbers(line, "tokens")
        if not tokens:
            raise Wrong("a round has at least one token")
        if (number := whole(line, "number")) != self.rounds + 1:
            raise Wrong(f"number must be {self.rounds + 1}, the next of the lane; it is {number}")
        counts: dict[str, Any] = {
            name: whole(line, name) for name in _COUNTS if name in line or _COUNTS[name]
        }
        times: dict[str, Any] = {name: amount(line, name) for name in _TIMES}
        accepted = counts["num_accepted_tokens"]
        if accepted > counts["num_draft_tokens"] or not 0 <= len(tokens) - accepted <= 1:
            raise Wrong(
                f"num_accepted_tokens must be at most num_draft_tokens, and all of the "
                f"{len(tokens)} tokens or all but the last; it is {accepted}"
            )
        self._read_pieces(line, len(tokens))
        self.events.append(
            Round(
                id=whole(line, "id"),
                number=number,
                tokens=tokens,
                **counts,
                **times,
                drafter=value_of(line, "drafter", str, "a text") if "drafter" in line else "",
                draft=_draft(line, tokens, counts) if "draft" in line else None,
            )
        )
        self.rounds, self.num_tokens = number, self.num_tokens + len(tokens)

    def _read_pieces(self, line: Mapping[str, Any], count: int) -> None:
        if "pieces" not in line:
            self.pieces = None
            return
        pieces = texts(line, "pieces", count)
        if self.pieces is not None:
            self.pieces += pieces

    def _finished(self, line: Mapping[str, Any]) -> None:
        reason = line.get("reason")
        reasons = [item.value for item in FinishReason]
        if reason not in reasons:
            raise Wrong(f"reason must be one of {names(reasons)}; it is {reason!r}")
        if (count := whole(line, "num_tokens")) != self.num_tokens:
            raise Wrong(f"num_tokens must be the lane's, {self.num_tokens}; it is {count}")
        if self.pieces is not None and "piece" in line:
            self.pieces.append(value_of(line, "piece", str, "a text"))
        if self.pieces is not None and "text" in line:
            text = value_of(line, "text", str, "a text")
            if text != "".join(self.pieces):
                raise Wrong(f"text must be the lane's pieces joined; it is {text!r:.60}")
        self.events.append(
            Finished(id=whole(line, "id"), reason=FinishReason(reason), num_tokens=count)
        )

    def _failed(self, line: Mapping[str, Any]) -> None:
        self.error = value_of(line, "error", str, "a text")


_COUNTS = {
    item.name: item.default is MISSING
    for item in fields(Round)
    if item.type == "int" and item.name not in ("id", "number")
}
"""The counts of a round, and whether a line must have them."""

_TIMES = [item.name for item in fields(Round) if item.type == "float"]


def _draft(
    line: Mapping[str, Any], tokens: Sequence[int], counts: Mapping[str, int]
) -> DraftRecord:
    """The draft of a round, which must agree with its tokens and counts."""
    found = value_of(line, "draft", dict, "an object")
    drafted = whole_numbers(found, "tokens")
    if len(drafted) != counts["num_draft_tokens"]:
        raise Wrong(
            f"draft.tokens must be num_draft_tokens, {counts['num_draft_tokens']}; there are "
            f"{len(drafted)}"
        )
    parents = whole_numbers(found, "parents", low=ROOT)
    path = whole_numbers(found, "path")
    try:
        draft = Draft(drafted, parents)
    except InvalidInput as error:
        raise Wrong(f"draft.parents: {error}") from None
    if not draft.is_path(path):
        raise Wrong(f"draft.path must go from parent to child; it is {list(path)}")
    accepted = counts["num_accepted_tokens"]
    block = tuple(drafted[node] for node in path)
    if accepted > len(path) or tuple(tokens[:accepted]) != block[:accepted]:
        raise Wrong("the accepted tokens must be the first of draft.path")
    token = whole(found, "token") if "token" in found else tokens[-1]
    if len(tokens) > accepted and (token != tokens[-1] or accepted != len(path)):
        raise Wrong("the last token must be draft.token, after the whole of draft.path")
    if "pieces" in found:
        texts(found, "pieces", len(drafted))
    return DraftRecord(
        tokens=drafted,
        parents=parents,
        path=path,
        token=token,
        p=probabilities(found, "p", len(drafted)),
        q=probabilities(found, "q", len(drafted)),
    )
