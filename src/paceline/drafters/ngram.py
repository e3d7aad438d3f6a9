"""Prompt lookup: copy what followed the last tokens at an earlier occurrence.

Source: Saxena 2023 (prompt lookup decoding); with references, inference with reference (LLMA,
Yang et al. 2304.04487). The lookup uses an index, so a step costs O(1) instead of a scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import ClassVar, Literal

from paceline.checks import require_int
from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN
from paceline.drafting.stores.copies import copied
from paceline.drafting.stores.ngrams import NgramIndex, check_vocabulary, reference_ids
from paceline.errors import InvalidInput

_LONGEST_MATCH = 32
"""How far back a match is followed. The length gives the confidence, which beyond this is near
1."""


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """Draft what followed an earlier occurrence of the last n tokens.

    The longest n is tried first, and for each n the prompt and answer before the references. A copy
    that reaches the end of the text continues into itself, so a text that repeats with any period
    is drafted in full. The draft is a point mass, so it is exact under every rule, and no model is
    needed.

    Args:
        max_ngram: the longest n that is looked up.
        min_ngram: the shortest.
        match: "newest" or "oldest" earlier occurrence.
        references: further token sequences to search, such as documents that the answer may quote.

    Raises:
        InvalidInput: a setting is outside its range.
    """

    name: ClassVar[str] = "ngram"
    needs: ClassVar[frozenset[Need]] = frozenset()
    needs_draft_model: ClassVar[bool] = False
    drafts: ClassVar[DraftKinds] = CHOSEN_CHAIN

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
        object.__setattr__(self, "references", reference_ids(self.references))
        # Built once and only read afterwards, so that sessions can share it.
        object.__setattr__(self, "_indexes", tuple(map(self._index, self.references)))

    def _index(self, tokens: Sequence[int] = ()) -> NgramIndex:
        index = NgramIndex(self.min_ngram, self.max_ngram, newest=self.match == "newest")
        index.extend(tokens)
        return index

    def open(self, target: TargetView, capacity: int) -> NgramSession:
        """See `protocols.Drafter.open`."""
        for reference in self.references:
            check_vocabulary("a reference of drafter 'ngram'", reference, target.info)
        return NgramSession(self._index(), self._indexes, self.min_ngram, self.max_ngram)


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
                    tokens = self._copy(index, start, budget.num_draft_tokens)
                    return copied(tokens, self._match_length(index, start, n), budget)
        return Draft()

    def _match_length(self, index: NgramIndex, start: int, n: int) -> int:
        """How many of the last tokens also precede `start`, at least n."""
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
        # After the end of the text the copy itself is assumed to follow: a period.
        return tuple(islice(cycle(copied), count))

    def close(self) -> None:
        """Nothing to free."""
