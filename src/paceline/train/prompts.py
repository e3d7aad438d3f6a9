"""Prompts to train on: those of a file, or the target's own.

A chat model has learned what users say, too: given the chat template up to where the user's text
begins, it goes on with a prompt (Magpie, Xu et al. 2406.08464). A model without a template begins
from its start token, and the first tokens that it writes are the prompt of the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from paceline.errors import InvalidInput

NGRAM = 8
"""A prompt is dropped if it shares this many words in a row with an excluded text."""

FEWEST_WORDS = 2
"""A shorter prompt of the target's own says nothing."""

MOST_IN_VAIN = 512
"""After this many unusable candidates in a row, the target is taken to have none to offer."""

_MARK = "PromptGoesHere"


class Prompt(NamedTuple):
    """A prompt.

    Args:
        text: what the user says; for comparisons.
        tokens: what the model is given.
    """

    text: str
    tokens: tuple[int, ...]


class Prompts(Protocol):
    """A source of prompts that can go on from where it was."""

    def take(self, count: int, start: int) -> tuple[list[Prompt], int]:
        """The next prompts from candidate `start` on, and where to go on.

        Fewer than `count` where there are no more.
        """
        ...


@dataclass(eq=False)
class Filter:
    """Throws out what is to be kept unseen, what came before, and what does not fit.

    Args:
        excluded: texts whose runs of `NGRAM` words must not come up.
        longest: the most tokens of a prompt.
    """

    excluded: Iterable[str] = ()
    longest: int | None = None
    thrown_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._excluded = {gram for text in self.excluded for gram in ngrams(text)}
        self._seen: set[tuple[str, ...]] = set()

    def remember(self, texts: Iterable[str]) -> None:
        """Take prompts that came before a break."""
        self._seen |= {_words(text) for text in texts}

    def keeps(self, prompt: Prompt, fewest_words: int = 1) -> bool:
        """Whether a prompt is to be used. It counts as seen then."""
        words = _words(prompt.text)
        reason = None
        if len(words) < fewest_words:
            reason = "too short"
        elif self.longest is not None and len(prompt.tokens) > self.longest:
            reason = "too long"
        elif words in self._seen:
            reason = "seen before"
        elif not self._excluded.isdisjoint(ngrams(prompt.text)):
            reason = "excluded"
        if reason is not None:
            self.thrown_out[reason] += 1
            return False
        self._seen.add(words)
        return True


def ngrams(text: str, length: int = NGRAM) -> set[tuple[str, ...]]:
    """The runs of words of a text, case and punctuation left out; a shorter text is one run.

    >>> sorted(ngrams("To be, or not", 3))
    [('be', 'or', 'not'), ('to', 'be', 'or')]
    """
    words = _words(text)
    if not words:
        return set()
    return {words[at : at + length] for at in range(max(1, len(words) - length + 1))}


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.casefold()))


class GivenPrompts:
    """Prompts of the caller, each once, in order.

    Args:
        prompts: all of them.
        passes: what throws some of them out.
    """

    def __init__(self, prompts: Sequence[Prompt], passes: Filter) -> None:
        self._prompts, self._filter = prompts, passes

    def take(self, count: int, start: int) -> tuple[list[Prompt], int]:
        """See `Prompts.take`."""
        found: list[Prompt] = []
        while start < len(self._prompts) and len(found) < count:
            prompt, start = self._prompts[start], start + 1
            if self._filter.keeps(prompt):
                found.append(prompt)
        return found, start


Sampler = Callable[[Sequence[Sequence[int]], int, frozenset[int]], list[list[int]]]
"""Continues prefixes: takes these, the number of the first candidate (which seeds the draws) and
the tokens that end one; returns what was written, without what ended it."""


class OwnPrompts:
    """Prompts that the target writes itself.

    Args:
        tokenizer: of the target.
        sample: continues prefixes by the target.
        passes: what throws some of them out.
        batch: how many candidates are written at once.
    """

    def __init__(self, tokenizer: Any, sample: Sampler, passes: Filter, batch: int) -> None:
        self._opening = opening_of(tokenizer)
        self._tokenizer, self._sample = tokenizer, sample
        self._filter, self._batch = passes, batch

    def take(self, count: int, start: int) -> tuple[list[Prompt], int]:
        """See `Prompts.take`."""
        found: list[Prompt] = []
        in_vain = 0
        while len(found) < count:
            prefixes = [self._opening.prefix] * self._batch
            for tokens in self._sample(prefixes, start, self._opening.ends):
                start += 1
                prompt = self._opening.prompt(self._tokenizer, tokens)
                if self._filter.keeps(prompt, FEWEST_WORDS):
                    found.append(prompt)
                    in_vain = 0
                else:
                    in_vain += 1
                if len(found) == count:
                    break
            if in_vain > MOST_IN_VAIN:
                reasons = ", ".join(f"{n} {why}" for why, n in self._filter.thrown_out.items())
                raise InvalidInput(
                    f"the model writes no more prompts that can be used ({reasons}); give some "
                    "with --prompts FILE"
                )
        return found, start


@dataclass(frozen=True, slots=True)
class Opening:
    """Where a user's text begins and ends.

    Args:
        prefix: the tokens before it.
        ends: tokens that end it, besides those that end an answer.
        is_chat: whether it goes through the chat template.
    """

    prefix: tuple[int, ...]
    ends: frozenset[int]
    is_chat: bool

    def prompt(self, tokenizer: Any, written: Sequence[int]) -> Prompt:
        """The prompt from what the target wrote after the prefix."""
        from paceline.text import encode_prompt

        text = tokenizer.decode(list(written), skip_special_tokens=True).strip()
        if self.is_chat:
            messages = [{"role": "user", "content": text}]
            return Prompt(text, tuple(encode_prompt(tokenizer, messages)))
        return Prompt(text, (*self.prefix, *written))


def opening_of(tokenizer: Any) -> Opening:
    """Where a user's text begins for a model.

    Raises:
        InvalidInput: it cannot be found out.
    """
    if not getattr(tokenizer, "chat_template", None):
        start = tokenizer.bos_token_id
        start = tokenizer.eos_token_id if start is None else start
        if start is None:
            raise InvalidInput(
                "this model has neither a chat template nor a start token to write prompts from; "
                "give some with --prompts FILE"
            )
        return Opening((start,), frozenset(), is_chat=False)
    messages = [{"role": "user", "content": _MARK}]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False))
    parts = text.split(_MARK)
    if len(parts) != 2 or not parts[0]:
        raise InvalidInput(
            "the chat template of this model does not show where a user's text begins; give "
            "prompts with --prompts FILE"
        )
    before, after = (tokenizer.encode(part, add_special_tokens=False) for part in parts)
    added = tokenizer.added_tokens_decoder.items()
    control = {*tokenizer.all_special_ids, *(token for token, form in added if form.special)}
    return Opening(tuple(before), frozenset(t for t in after[:1] if t in control), is_chat=True)


def encode_items(items: Iterable[Any], model: Any, *, chat: bool) -> list[Prompt]:
    """Prompts of a file (see `workbench.workload`) for a model.

    Args:
        items: what the file holds.
        model: the `LanguageModel` that answers.
        chat: put texts into the chat template.

    Raises:
        InvalidInput: names the line that cannot be used.
    """
    found = []
    for item in items:
        text = item.prompt
        if not isinstance(text, str):
            text = "\n".join(message["content"] for message in text)
        try:
            tokens = model.encode(item.as_prompt(chat=chat))
        except InvalidInput as error:
            raise InvalidInput(f"{item.source}: {error}") from error
        found.append(Prompt(text, tuple(tokens)))
    return found


def texts_of(items: Iterable[Any]) -> Iterator[str]:
    """Everything that users say in prompts of a file (see `workbench.workload`)."""
    for item in items:
        if isinstance(item.prompt, str):
            yield item.prompt
        else:
            yield from (message["content"] for message in item.prompt)
        yield from item.later_turns
