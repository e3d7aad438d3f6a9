"""The tokens of a sequence's own text, beside an output head that is cut to frequent ones.

A draft model with a small vocabulary is cheap (FR-Spec, Zhao et al. 2502.14856), and what it lacks
are names and rare words, most of which have come up before. So each sequence has the rows of the
whole head for the tokens of its text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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
        self._store = self._columns_of([])  # grows by doubling, so that a token is copied rarely

    @torch.inference_mode()  # as in the passes: tensors made in this mode change in it alone
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
        """What the scored rows of a pass need: the tokens of the text, and those that come in.

        Args:
            before: tokens that come in before these rows; all of them see them.
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
        """The tokens that come up for the first time and are not in the cut head, and where."""
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
