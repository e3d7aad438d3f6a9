"""From tokens to text, piece by piece: the same text as decoding the whole at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from paceline.errors import InvalidInput

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_LONG_WINDOW = 128
# Clean-up (" n't" -> "n't" and so on) only changes text around these characters.
_NO_CLEAN_UP = re.compile(r"[^ .?!,'ntmsver]")


class _Kind(Enum):
    SKIPPED = auto()  # `decode` skips it: a special token, or not a token at all
    BYTE = auto()  # encodes one byte
    PLAIN = auto()


class IncrementalDetokenizer:
    """From tokens to text, piece by piece, at a constant cost per token.

    The joined pieces equal `tokenizer.decode(tokens, skip_special_tokens=True)`, however the tokens
    were grouped. A piece is final: no later token changes it. The text of a token depends on the
    tokens before it in two ways: the first token may lose its leading space, and bytes join into
    characters. So a short window of tokens is decoded again, from a position between two characters
    and after a token that has already produced text.

    `tokenizers.DecodeStream` works similarly, but treats a run of `<0xE2>`-like tokens as final as
    soon as it makes a character; the decoder takes back the whole run if a later byte makes it
    invalid.

    Args:
        tokenizer: a tokenizer of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._kinds: dict[int, _Kind] = {}
        self._window: list[int] = []
        self._mark = 0  # the window's tokens before it are final, and a character ends there
        self._shown = 0  # number of final characters of the window's text
        self._run = 0  # the byte tokens at the end of the window
        self._limit = _LONG_WINDOW
        self._cleans_up = _cleans_up(tokenizer)
        self._raw = ""  # final, but clean-up may still change it
        self._finished = False

    def feed(self, tokens: Sequence[int]) -> str:
        """Take in tokens and return the text that became final."""
        if self._finished:
            raise InvalidInput("this detokenizer is finished; a new text needs a new one")
        for token in tokens:
            kind = self._kind(token)
            if kind is not _Kind.SKIPPED:
                self._window.append(token)
                self._run = self._run + 1 if kind is _Kind.BYTE else 0
        end = len(self._window) - self._run
        if end == self._mark:
            return ""
        text = self._decode(self._window[:end])
        # Of the incomplete characters at the end of a text, only the last can be completed.
        complete = not text.endswith(_REPLACEMENT)
        ready = max(self._shown, len(text) if complete else len(text) - 1)
        piece, self._shown = text[self._shown : ready], ready
        if complete:
            self._begin_at_mark(end)
        if len(self._window) > self._limit and not self._run:
            self._begin_late(text)
        return self._clean(piece)

    @property
    def pending(self) -> str:
        """What `finish` would return: the text after the pieces so far, if nothing follows."""
        if self._finished:
            return ""
        # The common case, in which all text has been returned already, costs nothing.
        if self._mark == len(self._window) and not self._raw:
            return ""
        rest = self._decode(self._window)[self._shown :]
        text = self._raw + rest
        return self._tokenizer.clean_up_tokenization(text) if self._cleans_up else text

    def finish(self) -> str:
        """Return the rest of the text, incomplete characters as U+FFFD. Nothing can follow."""
        rest = self.pending
        self._finished = True
        return rest

    def _kind(self, token: int) -> _Kind:
        if token not in self._kinds:
            self._kinds[token] = _kind(self._tokenizer, token)
        return self._kinds[token]

    def _decode(self, tokens: list[int]) -> str:
        return str(
            self._tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def _begin_at_mark(self, end: int) -> None:
        """Drop the tokens before the mark, if those after it show that they are not the first."""
        context = self._decode(self._window[self._mark : end])
        if context.strip():
            del self._window[: self._mark]
            self._mark, self._shown = end - self._mark, len(context)
            self._limit = _LONG_WINDOW

    def _begin_late(self, text: str) -> None:
        """Shorten a window without a mark (one of spaces, or of bytes that are not text).

        The cut is tested: the window from there on must give the same text as the whole.
        """
        window = self._window
        hidden = len(text) - self._shown  # at most an incomplete character
        for cut in range(len(window) - 16, len(window) - 8):
            begin = cut - 16
            context, late = self._decode(window[begin:cut]), self._decode(window[begin:])
            added = late[len(context) :]
            if self._decode(window[:cut]) + added == text and len(added) >= hidden:
                del window[:begin]
                self._mark, self._shown = cut - begin, len(late) - hidden
                self._limit = _LONG_WINDOW
                return
        self._limit *= 2

    def _clean(self, piece: str) -> str:
        if not self._cleans_up:
            return piece
        self._raw += piece
        barriers = [match.end() for match in _NO_CLEAN_UP.finditer(self._raw)]
        safe = barriers[-1] if barriers else 0
        piece, self._raw = self._raw[:safe], self._raw[safe:]
        return str(self._tokenizer.clean_up_tokenization(piece))


def _kind(tokenizer: Any, token: int) -> _Kind:
    text = tokenizer.convert_ids_to_tokens(token)
    if text is None:  # the model's vocabulary may be padded
        return _Kind.SKIPPED
    if _BYTE.fullmatch(text):
        return _Kind.BYTE
    shown = tokenizer.decode([token], skip_special_tokens=True)
    special = not shown and tokenizer.decode([token], skip_special_tokens=False)
    return _Kind.SKIPPED if special else _Kind.PLAIN


def _cleans_up(tokenizer: Any) -> bool:
    """Whether `decode` removes spaces before punctuation; transformers does not for BPE."""
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    backend = getattr(tokenizer, "backend_tokenizer", None)
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    return type(getattr(backend, "model", None)).__name__ != "BPE" or getattr(
        tokenizer, forced, False
    )
