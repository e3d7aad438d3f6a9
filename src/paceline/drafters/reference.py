"""Inference with reference: copy from documents that the answer is based on.

Source: LLMA (Yang et al. 2304.04487).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

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


@dataclass(frozen=True, slots=True)
class ReferenceDrafter:
    """Draft what follows the last n tokens in the given documents, and nowhere else.

    The longest n is tried first; of several occurrences the first is used, in the order of the
    documents. The draft is a point mass, so it is exact under every rule, and no model is needed.
    For each reference token the index holds at most `max_ngram` entries of about 150 bytes; it is
    built once and shared by all sequences.

    Args:
        references: the documents, as token ids (texts are encoded for you).
        max_ngram: the longest n that is looked up.
        min_ngram: the shortest.

    Raises:
        InvalidInput: a setting is outside its range, or there is no reference.
    """

    name: ClassVar[str] = "reference"
    needs: ClassVar[frozenset[Need]] = frozenset()
    needs_draft_model: ClassVar[bool] = False
    drafts: ClassVar[DraftKinds] = CHOSEN_CHAIN

    references: tuple[tuple[int, ...], ...]
    max_ngram: int = 5
    min_ngram: int = 1
    _indexes: tuple[NgramIndex, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_int("min_ngram", self.min_ngram, low=1)
        require_int("max_ngram", self.max_ngram, low=self.min_ngram)
        object.__setattr__(self, "references", reference_ids(self.references))
        if not self.references:
            raise InvalidInput("drafter 'reference' needs at least one reference; there is none")
        # Built once and only read afterwards, so that sessions can share it.
        object.__setattr__(self, "_indexes", tuple(map(self._index, self.references)))

    def _index(self, tokens: Sequence[int]) -> NgramIndex:
        index = NgramIndex(self.min_ngram, self.max_ngram, newest=False)
        index.extend(tokens)
        return index

    def open(self, target: TargetView, capacity: int) -> ReferenceSession:
        """See `protocols.Drafter.open`."""
        for reference in self.references:
            check_vocabulary("a reference of drafter 'reference'", reference, target.info)
        return ReferenceSession(self._indexes, self.min_ngram, self.max_ngram)


class ReferenceSession:
    """See `protocols.DraftSession`."""

    def __init__(self, references: Sequence[NgramIndex], min_n: int, max_n: int) -> None:
        self._references, self._min_n, self._max_n = references, min_n, max_n
        self._last: tuple[int, ...] = ()

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._last = (*self._last, *committed.tokens[-self._max_n :])[-self._max_n :]

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        last = self._last
        for n in range(len(last), self._min_n - 1, -1):
            for index in self._references:
                if (start := index.after(last[len(last) - n :])) is not None:
                    tokens = tuple(index.tokens[start : start + budget.num_draft_tokens])
                    return copied(tokens, n, budget)
        return Draft()

    def close(self) -> None:
        """Nothing to free."""
