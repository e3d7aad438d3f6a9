"""The tokens of a sequence's own text, beside an output head that is cut to frequent ones.

A draft model with a small vocabulary is cheap (FR-Spec, Zhao et al. 2502.14856), and what it lacks
are names and rare words, most of which have come up before. So each sequence has the rows of the
whole head for the tokens of its text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Columns(NamedTuple):
    """Outputs beside those of the cut head.

    Args:
        ids: the tokens, `[m]`.
        weight: their rows of the whole head, `[m, hidden]`.
        absent: `[rows, m]` bool, which are not in the text of which row; None where all are.
    """

    ids: Tensor
    weight: Tensor
    absent: Tensor | None = None

    def fill(self, logits: Tensor, states: Tensor) -> None:
        """Write the logits of these tokens into `logits` `[rows, V]`, from the normed states."""
        own = functional.linear(states, self.weight)
        if self.absent is not None:
            own = own.masked_fill_(self.absent, -torch.inf)
        logits.index_copy_(1, self.ids, own)


class TextHead:
    """Which tokens of one sequence's text the cut head lacks, and their rows of the whole one.

    The logits of a row depend on the tokens up to it alone, as those of any model: a token counts
    from where it stands in the text, and no longer once the text is cut before it.

    Args:
        weight: the whole head, `[V, hidden]`. It is read where it lies, a row a token.
        has: the tokens that the cut head has.
        dtype: of the activations.
    """

    def __init__(self, weight: Tensor, has: Collection[int], dtype: torch.dtype) -> None:
        self._weight, self._has, self._dtype = weight, has, dtype
        self._length = 0
        self._first: dict[int, int] = {}  # the tokens that are lacking, by their first place
        self._columns = self._columns_of([])

    def append(self, tokens: Sequence[int]) -> None:
        """Take the next tokens of the text."""
        lacking = self._lacking(tokens)
        for place, token in enumerate(tokens, start=self._length):
            if token in lacking:
                self._first.setdefault(token, place)
        self._length += len(tokens)
        if lacking:
            new, old = self._columns_of(lacking), self._columns
            self._columns = Columns(
                torch.cat([old.ids, new.ids]), torch.cat([old.weight, new.weight])
            )

    def cut(self, length: int) -> None:
        """Forget the text from `length` on."""
        self._length = min(self._length, length)
        while self._first and next(reversed(self._first.values())) >= length:
            self._first.popitem()
        count = len(self._first)
        self._columns = Columns(self._columns.ids[:count], self._columns.weight[:count])

    def columns(self, rows: Sequence[int], visible: Tensor | None) -> list[Columns]:
        """What the rows of a pass need: the tokens of the text, and those that come in with them.

        Args:
            rows: the token of each row.
            visible: `[rows, rows]` bool, which rows each row sees; None is causal.
        """
        found = [self._columns] if self._first else []
        if lacking := self._lacking(rows):
            if visible is None:
                visible = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
            is_token = torch.tensor(rows)[:, None] == torch.tensor(lacking)
            absent = ~(visible[:, :, None] & is_token).any(dim=1)
            found.append(self._columns_of(lacking)._replace(absent=absent))
        return found

    def _lacking(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that come up for the first time and are not in the cut head, in order."""
        found = dict.fromkeys(t for t in tokens if t not in self._has and t not in self._first)
        return list(found)

    def _columns_of(self, ids: Sequence[int]) -> Columns:
        index = torch.tensor(ids, dtype=torch.long)
        return Columns(index, self._weight[index].to(self._dtype))
