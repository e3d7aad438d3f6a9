"""Recorded answers as tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.errors import InvalidInput
from paceline.text import encode_plain, encode_prompt
from paceline.workbench.workload import Item


@dataclass(frozen=True)
class RecordedText:
    """A prompt and its recorded answer.

    Args:
        id, category: of the record.
        prompt: token ids, at least one.
        answer: token ids, at least one.
        max_tokens: the token limit of the answer; drafts near it are shorter. None if it is
            unknown: no limit is assumed.
    """

    id: str
    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    max_tokens: int | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt + self.answer


def tokenize(
    items: Iterable[Item], tokenizer: Any, *, chat: bool, vocab_size: int, max_length: int | None
) -> tuple[list[RecordedText], int]:
    """The records as tokens, and the number of them that were truncated.

    In a record without a prompt, such as a file, the answer begins at the second token.

    Args:
        items: the records, with answers.
        tokenizer: of the target.
        chat: whether to put text prompts into the chat template.
        vocab_size: the target's vocabulary size.
        max_length: the target's context; longer answers are truncated.

    Raises:
        InvalidInput: a record is invalid; the message names its place.
    """
    texts = []
    num_cut = 0
    for item in items:
        try:
            prompt, answer = _tokens(item, tokenizer, chat=chat)
        except InvalidInput as error:
            raise InvalidInput(f"{item.source}: {error}") from error
        if outside := [token for token in answer if token >= vocab_size]:
            raise InvalidInput(
                f"{item.source}: the recorded answer holds token {outside[0]}; the vocabulary is 0 "
                f"to {vocab_size - 1}: was it recorded with another model?"
            )
        if max_length is not None and len(prompt) + len(answer) > max_length:
            num_cut += 1
            answer = answer[: max(0, max_length - len(prompt))]
        if not answer:
            raise InvalidInput(
                f"{item.source}: the prompt of {len(prompt)} tokens leaves no room for an answer "
                f"in a context of {max_length}"
            )
        texts.append(
            RecordedText(item.id, item.category, tuple(prompt), tuple(answer), item.max_tokens)
        )
    return texts, num_cut


def _tokens(item: Item, tokenizer: Any, *, chat: bool) -> tuple[list[int], list[int]]:
    if not item.prompt:
        tokens = encode_prompt(tokenizer, item.answer or "")
        if len(tokens) < 2:
            raise InvalidInput("a text needs at least two tokens")
        return tokens[:1], tokens[1:]
    prompt = encode_prompt(tokenizer, item.as_prompt(chat=chat))
    if item.answer_tokens is not None:
        return prompt, list(item.answer_tokens)
    return prompt, encode_plain(tokenizer, item.answer or "")
