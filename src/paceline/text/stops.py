"""Stop strings: where an answer ends, and how much of it may be shown before that is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.errors import InvalidInput
from paceline.text.detokenize import IncrementalDetokenizer


class _Scanned(NamedTuple):
    """What one token did to the text.

    Args:
        piece: the text that became final.
        pending: the text after all pieces so far, if nothing follows.
        found: the stop string that this token completed, and where it begins.
    """

    piece: str
    pending: str
    found: tuple[int, str] | None


class _StopScanner:
    """Finds the first completed stop string, token by token."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._stops = stops
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._keep = max(map(len, stops), default=1) - 1
        self._tail = ""  # the last final characters, in which a stop string may begin
        self._before = 0  # the final characters before the tail
        self._text = ""  # tail and pending text, as of the last token

    def feed(self, token: int) -> _Scanned:
        """Take in a token. Finds the stop string that ends first; of several, the longest."""
        piece = self._detokenizer.feed([token])
        pending = self._detokenizer.pending
        if not self._stops:
            return _Scanned(piece, pending, None)
        final = self._tail + piece
        text = final + pending
        old = _common_length(self._text, text)
        found = [
            (begin + len(stop), begin, stop)
            for stop in self._stops
            if (begin := text.find(stop, max(0, old - len(stop) + 1))) >= 0
        ]
        result = None
        if found:
            _, begin, stop = min(found)
            result = self._before + begin, stop
        cut = max(0, len(final) - self._keep)
        self._before, self._tail, self._text = self._before + cut, final[cut:], text[cut:]
        return _Scanned(piece, pending, result)


class TextStream:
    """The growing text of an answer, safe to show, and the rule that ends it at a stop string.

    Text that may be the beginning of a stop string is held back until it is known not to be, so
    text is never retracted. An answer with stop strings ends with the first token after which its
    text contains one. The token ids keep that token and all tokens of the stop string; the text
    ends before the stop string. If the completing token cannot be the last (within the first
    `min_tokens`, for example), the stop string is part of the text.

    The engine calls it as a rule (`engine.StopRule`) with tokens that it has not committed yet;
    those that are then committed are passed to `feed`. Each token is detokenised once. One object
    serves one answer.

    Args:
        tokenizer: a tokenizer of transformers.
        stops: one string, several, or none; the one completed first ends the answer.
        min_tokens: a stop string within fewer tokens is part of the text.

    Raises:
        InvalidInput: a stop string is empty.
    """

    def __init__(
        self, tokenizer: Any, stops: str | Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self._stops = _checked(stops)
        self._scanner = _StopScanner(tokenizer, self._stops)
        self._min_tokens = min_tokens
        self._ahead: deque[_Scanned] = deque()  # scanned by the rule, not fed yet
        self._count = 0  # tokens that were fed
        self._pieces: list[str] = []
        self._length = 0  # of the pieces
        self._held = ""  # final, but possibly the beginning of a stop string
        self._pending = ""  # after that, if nothing follows
        self.stop: str | None = None
        """The stop string that ended the text."""

    @property
    def text(self) -> str:
        """The text so far: everything that `feed` and `finish` have returned."""
        return "".join(self._pieces)

    def __call__(self, answer: Sequence[int], settled: int) -> int | None:
        """The length to cut `answer` to, greater than `settled`; None if it goes on.

        Args:
            answer: all of its tokens so far; earlier ones must have been fed.
            settled: the number of leading tokens that cannot be the last.
        """
        scanned = self._count + len(self._ahead)
        if len(answer) < scanned:
            raise InvalidInput("a TextStream serves one answer; make a new one for the next")
        for length, token in enumerate(answer[scanned:], start=scanned + 1):
            self._ahead.append(self._scanner.feed(token))
            if self._ahead[-1].found and length > settled:
                return length
        return None

    def feed(self, tokens: Sequence[int]) -> str:
        """Take in tokens and return the new text that is safe to show.

        Tokens after the one that completed a stop string change nothing.
        """
        begin = len(self._pieces)
        for token in tokens:
            if self.stop is not None:
                break
            self._count += 1
            piece, self._pending, found = (
                self._ahead.popleft() if self._ahead else self._scanner.feed(token)
            )
            self._held += piece
            if found and self._count >= self._min_tokens:
                begins, self.stop = found
                self._show(self._held + self._pending, begins - self._length)
            else:
                self._show(self._held, len(self._held) - self._doubtful())
        return "".join(self._pieces[begin:])

    def finish(self) -> str:
        """Return the rest of the text. Nothing can follow."""
        rest, self._pending = self._held + self._pending, ""
        if self.stop is not None or not rest:
            return ""
        self._show(rest, len(rest))
        return rest

    def _show(self, text: str, count: int) -> None:
        if count > 0:
            self._pieces.append(text[:count])
            self._length += count
        self._held = text[count:]

    def _doubtful(self) -> int:
        """The number of characters at the end that may begin a stop string."""
        return max(
            (
                length
                for stop in self._stops
                for length in range(1, len(stop))
                if self._held.endswith(stop[:length])
            ),
            default=0,
        )


def _checked(stops: str | Sequence[str]) -> tuple[str, ...]:
    checked: tuple[Any, ...] = (stops,) if isinstance(stops, str) else tuple(stops)
    for stop in checked:
        if not isinstance(stop, str) or not stop:
            raise InvalidInput(f"a stop string must be a text of at least one character: {stop!r}")
    return checked


def _common_length(first: str, second: str) -> int:
    """The length of the longest common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    shorter = min(len(first), len(second))
    return next((index for index, (ours, theirs) in pairs if ours != theirs), shorter)
