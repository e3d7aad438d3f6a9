"""Prompt lookup: copy what followed the last tokens when they came before.

Source: Saxena 2023 (prompt lookup decoding); with references, inference with reference (LLMA,
Yang et al. 2304.04487). The lookup is an index, so that a step costs O(1) rather than a scan.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, ClassVar, Literal

from paceline.errors import InvalidInput
from paceline.math.noise import Noise
from paceline.protocols import Warp
from paceline.types import Budget, Committed, Draft, TargetInfo, require_int

_LONGEST_MATCH = 32
"""How far back a match is followed. It says how sure the copy is, and beyond this that is sure."""


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """Draft what followed an earlier occurrence of the last n tokens.

    The longest n is tried first, and for each n the prompt and answer before the references. A
    copy that reaches the end of the text goes on into itself, so that a text that repeats with
    any period is drafted in full. The draft is a point mass, so it is exact under every rule, and
    it needs no model.

    Args:
        max_ngram: the longest n that is looked up.
        min_ngram: the shortest.
        match: "newest" or "oldest" earlier occurrence.
        references: token sequences to look in besides, documents the answer may quote, say.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "ngram"
    needs: ClassVar[frozenset[str]] = frozenset()
    needs_draft_model: ClassVar[bool] = False

    max_ngram: int = 3
    min_ngram: int = 1
    match: Literal["newest", "oldest"] = "newest"
    references: tuple[tuple[int, ...], ...] = ()
    _indexes: tuple[NgramIndex, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_int("min_ngram", self.min_ngram, low=1)
        require_int("max_ngram", self.max_ngram, low=self.min_ngram)
        if self.match not in ("newest", "oldest"):
            raise InvalidInput(f"match must be 'newest' or 'oldest'; it is {self.match!r}")
        object.__setattr__(self, "references", _token_ids(self.references))
        # Built once and only read afterwards, so that sessions can share it.
        object.__setattr__(self, "_indexes", tuple(map(self._index, self.references)))

    def _index(self, tokens: Sequence[int] = ()) -> NgramIndex:
        index = NgramIndex(self.min_ngram, self.max_ngram, newest=self.match == "newest")
        index.extend(tokens)
        return index

    def open(self, target: TargetInfo, capacity: int) -> NgramSession:
        """See `protocols.Drafter.open`."""
        for reference in self.references:
            if outside := [t for t in reference if not 0 <= t < target.vocab_size]:
                raise InvalidInput(
                    f"a reference of drafter 'ngram' holds token {outside[0]}; the vocabulary of "
                    f"{target.name} is 0 to {target.vocab_size - 1}: was it encoded with another "
                    "tokenizer?"
                )
        return NgramSession(self._index(), self._indexes, self.min_ngram, self.max_ngram)


def _token_ids(references: Any) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(tuple(map(operator.index, reference)) for reference in references)
    except TypeError:
        raise InvalidInput(
            f"references must be sequences of token ids; they are {references!r:.80}"
        ) from None


def belief(match_length: int) -> float:
    """How probable it is that a text goes on as it did behind the last `match_length` tokens.

    Laplace's rule of succession, a guess that controllers correct by what they see.

    >>> belief(1), belief(3), belief(8)
    (0.3333333333333333, 0.6, 0.8)
    """
    return match_length / (match_length + 2)


class NgramIndex:
    """Where each n-gram was last (or first) followed by a token. Memory: one entry an n-gram.

    Args:
        min_n, max_n: the lengths that are indexed.
        newest: keep the last occurrence rather than the first.
    """

    def __init__(self, min_n: int, max_n: int, *, newest: bool) -> None:
        self.tokens: list[int] = []
        self._min_n, self._max_n, self._newest = min_n, max_n, newest
        self._after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens. An n-gram enters the index when the token behind it is known."""
        old = len(self.tokens)
        self.tokens += tokens
        for position in range(max(old, 1), len(self.tokens)):
            for n in range(self._min_n, min(self._max_n, position) + 1):
                gram = tuple(self.tokens[position - n : position])
                if self._newest:
                    self._after[gram] = position
                else:
                    self._after.setdefault(gram, position)

    def after(self, gram: tuple[int, ...]) -> int | None:
        """The position of the token that followed `gram`, None where it did not come before."""
        return self._after.get(gram)


class NgramSession:
    """See `protocols.DraftSession`."""

    def __init__(
        self, own: NgramIndex, references: Sequence[NgramIndex], min_n: int, max_n: int
    ) -> None:
        self._own, self._references = own, references
        self._min_n, self._max_n = min_n, max_n

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._own.extend(committed.tokens)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        text = self._own.tokens
        for n in range(min(self._max_n, len(text)), self._min_n - 1, -1):
            gram = tuple(text[len(text) - n :])
            for index in (self._own, *self._references):
                if (start := index.after(gram)) is not None:
                    return self._draft(index, start, n, budget)
        return Draft()

    def _draft(self, index: NgramIndex, start: int, n: int, budget: Budget) -> Draft:
        """The copy from `start` on, as far as the budget goes. The last n tokens match.

        The tokens are chosen without chance, so to propose fewer, or none, bends no law.
        """
        length = self._match_length(index, start, n)
        tokens = self._copy(index, start, budget.num_draft_tokens)
        confidence: list[float] = []
        path = 1.0
        for number in range(len(tokens)):
            confidence.append(belief(length + number))
            path *= confidence[-1]
            if confidence[0] < budget.min_first_confidence:
                return Draft()
            if confidence[-1] < budget.min_confidence or path < budget.min_path_confidence:
                break
        return Draft(tokens[: len(confidence)], confidence=tuple(confidence))

    def _match_length(self, index: NgramIndex, start: int, n: int) -> int:
        """How many of the last tokens stand before `start` as well, at least n."""
        text, there = self._own.tokens, index.tokens
        most = min(start, len(text), _LONGEST_MATCH)
        while n < most and text[-n - 1] == there[start - n - 1]:
            n += 1
        return n

    def _copy(self, index: NgramIndex, start: int, count: int) -> tuple[int, ...]:
        """Up to `count` tokens from `start` on."""
        copied = index.tokens[start : start + count]
        if index is not self._own:
            return tuple(copied)
        # Behind the end of the text comes, by assumption, the copy itself: a period.
        return tuple(islice(cycle(copied), count))

    def close(self) -> None:
        """Nothing to free."""
