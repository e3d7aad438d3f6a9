"""Which tokens occurred before, and how often: the history that penalties look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class TokenCounts:
    """The distinct tokens of a growing text and their counts, as tensors.

    Example:
        >>> counts = TokenCounts([7, 7, 3])
        >>> counts.with_path([3, 5])
        (tensor([7, 3, 5]), tensor([2, 2, 1]))
        >>> counts.with_path()
        (tensor([7, 3]), tensor([2, 1]))
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._places: dict[int, int] = {}
        self._ids = self._times = torch.empty(0, dtype=torch.long)
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Append final tokens."""
        self._ids, self._times = self.with_path(tokens)
        for token in tokens:
            self._places.setdefault(token, len(self._places))

    def with_path(self, path: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """The distinct ids and their counts (`[m]`, `[m]`) with `path` appended temporarily.

        The counts, and so the bits of what is computed from them, are the same whether a token is
        final or only drafted.
        """
        if not path:
            return self._ids, self._times
        more = Counter(path)
        old = {self._places[token]: n for token, n in more.items() if token in self._places}
        new = {token: n for token, n in more.items() if token not in self._places}
        times = self._times.index_add(0, _long(old), _long(old.values()))
        return torch.cat([self._ids, _long(new)]), torch.cat([times, _long(new.values())])


def _long(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.long)
