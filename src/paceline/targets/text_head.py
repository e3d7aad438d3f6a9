"""Outputs for the tokens of a sequence's text, added to a head cut to frequent tokens.

A draft model with a small vocabulary is cheap (FR-Spec, Zhao et al. 2502.14856). What it lacks are
names and rare words, and most of those that come up have come up before in the same text. So each
sequence gets the rows of the whole head for the tokens of its text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Columns(NamedTuple):
    """Outputs in addition to those of the cut head.

    Args:
        ids: the tokens, `[m]`.
        weight: their rows of the whole head, `[m, hidden]`.
        absent: `[rows, m]` bool, which tokens are not in the text of a row; None if all are.
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
    """The tokens of one sequence's text that the cut head lacks, and their rows of the whole head.

    The logits of a row depend only on the tokens up to it, as in any model: a token counts from its
    first place in the text, and no longer once the text is cut before that.

    Args:
        weight: the whole head, `[V, hidden]`. Only the rows of these tokens are read.
        has: the tokens that the cut head has.
        dtype: of the activations.
    """

    def __init__(self, weight: Tensor, has: Collection[int], dtype: torch.dtype) -> None:
        self._weight, self._has, self._dtype = weight, has, dtype
        self._length = 0
        self._first: dict[int, int] = {}  # missing token -> its first place
        self._store = self._columns_of([])  # doubles when full: tokens are rarely copied

    @torch.inference_mode()  # as in the passes: inference tensors can be changed in this mode only
    def append(self, tokens: Sequence[int]) -> None:
        """Take the next tokens of the text."""
        old, lacking = len(self._first), self._lacking(tokens)
        for token, place in lacking.items():
            self._first[token] = self._length + place
        self._length += len(tokens)
        if lacking:
            self._reserve(len(self._first))
            new = self._columns_of(lacking)
            self._store.ids[old : len(self._first)] = new.ids
            self._store.weight[old : len(self._first)] = new.weight

    def cut(self, length: int) -> None:
        """Forget the text from `length` on."""
        self._length = min(self._length, length)
        while self._first and next(reversed(self._first.values())) >= length:
            self._first.popitem()

    def columns(
        self, before: Sequence[int], rows: Sequence[int], visible: Tensor | None
    ) -> list[Columns]:
        """What the scored rows of a pass need: the tokens of the text, and the new ones.

        Args:
            before: new tokens before these rows; every row sees them.
            rows: the token of each scored row.
            visible: `[rows, rows]` bool, which of these rows each row sees; None is causal.
        """
        count = len(self._first)
        found = [Columns(self._store.ids[:count], self._store.weight[:count])] if count else []
        if lacking := self._lacking([*before, *rows]):
            if visible is None:
                visible = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
            new = self._columns_of(lacking)
            is_token = torch.tensor(rows)[:, None] == new.ids
            seen = (visible[:, :, None] & is_token).any(dim=1)
            seen |= torch.isin(new.ids, torch.tensor(before, dtype=torch.long))
            found.append(new._replace(absent=~seen))
        return found

    def _lacking(self, tokens: Sequence[int]) -> dict[int, int]:
        """New tokens that are not in the cut head, and the first place of each in `tokens`."""
        found: dict[int, int] = {}
        for place, token in enumerate(tokens):
            if token not in self._has and token not in self._first:
                found.setdefault(token, place)
        return found

    def _reserve(self, count: int) -> None:
        ids, weight, _ = self._store
        if count > len(ids):
            room = max(64, 2 * count)
            self._store = Columns(ids.new_zeros(room), weight.new_zeros(room, weight.shape[1]))
            self._store.ids[: len(ids)] = ids
            self._store.weight[: len(ids)] = weight

    def _columns_of(self, ids: Iterable[int]) -> Columns:
        index = torch.tensor([*ids], dtype=torch.long)
        return Columns(index, self._weight[index].to(self._dtype))
