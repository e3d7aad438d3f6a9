"""Plain and speculative decoding of one prompt, timed fairly, for `paceline demo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from paceline.cli.calls import uses_chat
from paceline.errors import InvalidInput

if TYPE_CHECKING:
    from paceline.generate.api import Generation, LanguageModel, Piece
    from paceline.trace import Recording

NEAR_TIE = 1e-3
"""Rounding in float32 may swap two logits that are closer than this."""

Shower = Callable[[str, Sequence["Piece"]], None]
"""Called with "plain" or "speculative", and the pieces so far, while an answer grows."""


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt to compare on.

    Args:
        name: its name in reports.
        title: a description for readers.
        text: the prompt.
    """

    name: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers diverge.

    Args:
        position: the position of the first token that differs, from 0.
        plain, speculative: the token there, as text; empty if the answer has ended.
        gap: the difference of the target's two largest logits there.
    """

    position: int
    plain: str
    speculative: str
    gap: float

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding explains the difference."""
        return self.gap < NEAR_TIE


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of one case.

    Args:
        case: the prompt.
        plain, speculative: the timed answers, in the order in which they were made.
        plain_pieces, speculative_pieces: the text of an answer, token by token.
        difference: None if the tokens are identical.
    """

    case: Case
    plain: tuple[Generation, ...]
    speculative: tuple[Generation, ...]
    plain_pieces: tuple[Piece, ...]
    speculative_pieces: tuple[Piece, ...]
    difference: Difference | None

    @property
    def identical(self) -> bool:
        """Whether both gave the same tokens every time."""
        return self.difference is None

    @property
    def speedup(self) -> float | None:
        """The speed-up of speculation; None if there were no tokens."""
        plain, speculative = typical_speed(self.plain), typical_speed(self.speculative)
        return None if plain is None or speculative is None else speculative / plain

    @property
    def speedups(self) -> tuple[float, ...]:
        """The speed-up of each pair of answers; they vary as the timings do."""
        rates = (
            (one.tokens_per_second, other.tokens_per_second)
            for one, other in zip(self.plain, self.speculative, strict=True)
        )
        return tuple(other / one for one, other in rates if one is not None and other is not None)


def typical_speed(generations: Sequence[Generation]) -> float | None:
    """The median of tokens per second, robust to one disturbed run; None without tokens."""
    rates = [item.tokens_per_second for item in generations]
    known = [rate for rate in rates if rate is not None]
    return median(known) if known else None


def compare(
    model: LanguageModel,
    case: Case,
    *,
    num_draft_tokens: int | Literal["auto"],
    max_tokens: int,
    repeats: int,
    draft_head: str | None = None,
    recording: Recording | None = None,
    show: Shower,
    step: Callable[[int], None],
) -> Comparison:
    """Answer a prompt plainly and speculatively, greedily, and time both.

    The first pair of answers is shown and not timed: it warms the machine up. The timed ones
    alternate, so that other load on the machine affects both equally.

    Raises:
        InvalidInput: the model does not support an option.

    Args:
        model: the target.
        case: the prompt.
        num_draft_tokens: the tokens that are drafted per round; "auto" for as many as pay.
        max_tokens: the maximum length of an answer.
        repeats: the number of timed pairs.
        draft_head: a head that drafts where `ngram` has nothing; None leaves that plain.
        recording: takes down the first timed pair; None for none.
        show: see `Shower`.
        step: called with the number of the timed pair that begins, from 1.
    """
    if repeats < 1:
        raise InvalidInput(f"repeats must be at least 1; it is {repeats}")
    prompt = prompt_for(model, case.text)
    options: dict[str, dict[str, Any]] = {
        "plain": {"drafter": "none", "max_tokens": max_tokens},
        "speculative": {
            "drafter": "ngram" if draft_head is None else "ngram,head",
            "draft_head": draft_head,
            "num_draft_tokens": num_draft_tokens,
            "max_tokens": max_tokens,
        },
    }
    pieces = {kind: _watch(model, prompt, options[kind], kind, show) for kind in options}
    timed: dict[str, list[Generation]] = {kind: [] for kind in options}
    for repeat in range(repeats):
        step(repeat + 1)
        for kind in sorted(options, reverse=repeat % 2 == 1):
            trace = recording if repeat == 0 else None
            timed[kind].append(model.generate(prompt, trace=trace, **options[kind]))
    plain, speculative = tuple(timed["plain"]), tuple(timed["speculative"])
    return Comparison(
        case=case,
        plain=plain,
        speculative=speculative,
        plain_pieces=pieces["plain"],
        speculative_pieces=pieces["speculative"],
        difference=_difference(model, prompt, plain, speculative),
    )


def prompt_for(model: LanguageModel, text: str) -> Any:
    """The text as a user message, if the model has a chat template."""
    if uses_chat(model.tokenizer):
        return [{"role": "user", "content": text}]
    return text


def _watch(
    model: LanguageModel, prompt: Any, options: dict[str, Any], kind: str, show: Shower
) -> tuple[Piece, ...]:
    from paceline.generate.api import Chunk

    pieces: list[Piece] = []
    for item in model.stream(prompt, **options):
        if isinstance(item, Chunk):
            pieces += item.pieces
            show(kind, pieces)
    return tuple(pieces)


def _difference(
    model: LanguageModel,
    prompt: Any,
    plain: Sequence[Generation],
    speculative: Sequence[Generation],
) -> Difference | None:
    expected = plain[0].token_ids
    for generation in (*plain, *speculative):
        if generation.token_ids != expected:
            return _explain(model, prompt, expected, generation.token_ids)
    return None


def _explain(
    model: LanguageModel, prompt: Any, expected: Sequence[int], found: Sequence[int]
) -> Difference:
    position = first_difference(expected, found)
    assert position is not None
    again = model.generate(prompt, drafter="none", max_tokens=position + 1, logprobs=2)
    assert again.top_logprobs is not None
    (_, best), (_, second) = again.top_logprobs[-1]

    def text(tokens: Sequence[int]) -> str:
        there = list(tokens[position : position + 1])
        return str(model.tokenizer.decode(there)) if there else ""

    return Difference(position, text(expected), text(found), best - second)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two sequences differ; None if they are equal.

    >>> first_difference([1, 2, 3], [1, 2]), first_difference([1], [1])
    (2, None)
    """
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))
