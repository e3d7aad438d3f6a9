"""Tokens as clients see them: their text, their bytes, their log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from paceline.drafting.vocabulary import Vocabulary

LEAST_LOGPROB = -9999.0
"""What stands for the log-probability of an impossible token, since JSON has no infinity."""

TopLogprobs = Sequence[Sequence[tuple[int, float]]]


class Tokens:
    """The tokens of one tokenizer.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        words = Vocabulary(self._tokenizer)
        return words.texts | {number: text.encode() for text, number in words.specials.items()}

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to a text; nothing for ids that only pad the vocabulary."""
        return self._bytes.get(token, b"")

    def text_of(self, token: int) -> str:
        """The same as text; bytes of an incomplete character are U+FFFD."""
        return self.bytes_of(token).decode(errors="replace")

    def _name(self, token: int) -> str:
        """Its text if it is one, else its bytes as OpenAI writes them, so that names differ."""
        written = self.bytes_of(token)
        try:
            return written.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in written)

    def chat_logprobs(
        self, tokens: Iterable[int], logprobs: Iterable[float], tops: TopLogprobs
    ) -> list[dict[str, Any]]:
        """One entry a token, as `logprobs.content` of a chat completion."""
        return [
            {
                **self._entry(token, logprob),
                "top_logprobs": [self._entry(*pair) for pair in top],
            }
            for token, logprob, top in zip(tokens, logprobs, tops, strict=False)
        ]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        written = self.bytes_of(token)
        return {
            "token": written.decode(errors="replace"),
            "logprob": max(logprob, LEAST_LOGPROB),
            "bytes": list(written),
        }

    def completion_logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[float], tops: TopLogprobs, offset: int
    ) -> dict[str, Any]:
        """The `logprobs` of a text completion; `offset` is where the first token's text begins."""
        texts = [self.text_of(token) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [max(value, LEAST_LOGPROB) for value in logprobs[: len(texts)]],
            "top_logprobs": [
                {self._name(token): max(value, LEAST_LOGPROB) for token, value in top}
                for top in tops[: len(texts)]
            ],
            "text_offset": offsets,
        }
