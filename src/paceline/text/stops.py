"""Stop strings: where an answer ends, and what of it may be shown before one knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.errors import InvalidInput
from paceline.text.detokenize import IncrementalDetokenizer


class _StopScanner:
    """Finds the first stop string to be completed, token by token."""

    def __init__(self, tokenizer: Any, stops: str | Sequence[str]) -> None:
        self.stops = _checked(stops)
        self.detokenizer = IncrementalDetokenizer(tokenizer)
        self._keep = max(map(len, self.stops), default=1) - 1
        self._tail = ""  # the last final characters, as many as a stop string may begin in
        self._before = 0  # the final characters before the tail
        self._text = ""  # tail and pending text, as of the last token

    def feed(self, token: int) -> tuple[str, tuple[int, str] | None]:
        """Take in a token.

        Returns the text that became final, and where a stop string begins that this token
        completed, and which; the one that ends first, and of those the longest.
        """
        piece = self.detokenizer.feed([token])
        if not self.stops:
            return piece, None
        final = self._tail + piece
        text = final + self.detokenizer.pending
        old = _common_length(self._text, text)
        found = [
            (begin + len(stop), begin, stop)
            for stop in self.stops
            if (begin := text.find(stop, max(0, old - len(stop) + 1))) >= 0
        ]
        result = None
        if found:
            _, begin, stop = min(found)
            result = self._before + begin, stop
        cut = max(0, len(final) - self._keep)
        self._before, self._tail, self._text = self._before + cut, final[cut:], text[cut:]
        return piece, result


class StopStrings:
    """A stopping rule of the engine (`engine.StopRule`): ends the answer at a stop string.

    The answer ends with the first token after which its text holds a stop string. The token ids
    keep that token, and all of a stop string's tokens; the text is cut before the stop string,
    which `TextStream` does. A stop string that a token completed which cannot be the last (of
    the first `min_tokens`, say) is part of the text.

    One object serves one answer.

    Args:
        tokenizer: of transformers.
        stops: one string, or several; the one completed first ends the answer.

    Raises:
        InvalidInput: an empty stop string, or none at all.
    """

    def __init__(self, tokenizer: Any, stops: str | Sequence[str]) -> None:
        self._scanner = _StopScanner(tokenizer, stops)
        if not self._scanner.stops:
            raise InvalidInput("there is no stop string; give at least one")
        self._count = 0

    def __call__(self, answer: Sequence[int], settled: int) -> int | None:
        """The length to cut `answer` to, above `settled`; None where it goes on.

        Args:
            answer: all of its tokens so far.
            settled: how many of them cannot be the last.
        """
        if len(answer) < self._count:
            raise InvalidInput("a StopStrings serves one answer; make a new one for the next")
        for token in answer[self._count :]:
            self._count += 1
            _, found = self._scanner.feed(token)
            if found and self._count > settled:
                return self._count
        return None


class TextStream:
    """The text of an answer as it grows, safe to show: it is never taken back.

    What may be the beginning of a stop string is held back until it is known not to be, and the
    text ends before the stop string, as the answer does under `StopStrings`.

    Args:
        tokenizer: of transformers.
        stops: one string, or several, or none.
        min_tokens: a stop string within fewer tokens is part of the text.

    Raises:
        InvalidInput: an empty stop string.
    """

    def __init__(
        self, tokenizer: Any, stops: str | Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self._scanner = _StopScanner(tokenizer, stops)
        self._min_tokens = min_tokens
        self._count = 0
        self._pieces: list[str] = []
        self._length = 0  # of the pieces
        self._held = ""  # final, but maybe the beginning of a stop string
        self.stop: str | None = None
        """The stop string that ended the text."""

    @property
    def text(self) -> str:
        """The text so far: all that `feed` and `finish` have returned."""
        return "".join(self._pieces)

    def feed(self, tokens: Sequence[int]) -> str:
        """Take in tokens and return the new text that is safe to show.

        Tokens behind the one that completed a stop string change nothing.
        """
        begin = len(self._pieces)
        for token in tokens:
            if self.stop is not None:
                break
            self._count += 1
            piece, found = self._scanner.feed(token)
            self._held += piece
            if found and self._count >= self._min_tokens:
                begins, self.stop = found
                self._show(self._held + self._scanner.detokenizer.pending, begins - self._length)
            else:
                self._show(self._held, len(self._held) - self._doubtful())
        return "".join(self._pieces[begin:])

    def finish(self) -> str:
        """Return the rest of the text. Nothing can follow."""
        rest = self._held + self._scanner.detokenizer.finish()
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
        """How many characters at the end may be the beginning of a stop string."""
        return max(
            (
                length
                for stop in self._scanner.stops
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
    """The length of the longest text with which both begin."""
    pairs = enumerate(zip(first, second, strict=False))
    shorter = min(len(first), len(second))
    return next((index for index, (ours, theirs) in pairs if ours != theirs), shorter)
