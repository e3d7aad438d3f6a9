"""A tiny decoder whose state is replaced at each token: only snapshots lead back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from paceline.core.target import TargetInfo
from paceline.core.view import TargetView
from paceline.targets.attention import Pass, Segment
from paceline.targets.cached import CachedTarget
from paceline.targets.decoder import Output
from paceline.targets.slot import Slot
from paceline.targets.state.snapshots import SnapshotState


class Recurrent:
    """See `targets.decoder.Decoder`: h' = tanh(W h + e(token)), logits = U h', in float64.

    Args:
        writes: after which rows a pass writes the value: "end", the last one of a chain; "every".
    """

    device = torch.device("cpu")
    num_bytes = 0

    def __init__(
        self, vocab_size: int, writes: str, *, seed: int = 0, max_length: int | None = None
    ) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.info = TargetInfo("recurrent", vocab_size, max_length)
        self.writes, self.rows_run = writes, 0
        options = {"generator": chance, "dtype": torch.float64}
        self.embedding = torch.randn(vocab_size, 6, **options)
        self.weight = torch.randn(6, 6, **options) / 2
        self.head = torch.randn(vocab_size, 6, **options)

    def state(self, capacity: int) -> SnapshotState[Tensor]:
        return SnapshotState(torch.zeros(6, dtype=torch.float64), lambda value: value.nbytes)

    def step(self, value: Tensor, token: int) -> Tensor:
        self.rows_run += 1
        return torch.tanh(self.weight @ value + self.embedding[token])

    def after(self, tokens: Sequence[int]) -> Tensor:
        """The oracle: the logits after a text, from its start."""
        value = torch.zeros(6, dtype=torch.float64)
        for token in tokens:
            value = self.step(value, token)
        return self.head @ value

    def run(self, batch: Pass) -> Output:
        values = torch.cat([self._segment(segment, batch.tokens) for segment in batch.segments])
        return Output(values[batch.scored] @ self.head.T)

    def _segment(self, segment: Segment, tokens: Tensor) -> Tensor:
        """The values after each row, which folds the rows that it sees in their order."""
        state: SnapshotState[Tensor] = segment.state
        own = tokens[segment.first : segment.first + segment.rows].tolist()
        values: dict[tuple[int, ...], Tensor] = {(): state.at(segment.start)}
        found = []
        for row in range(segment.rows):
            seen = range(row + 1)
            if segment.visible is not None:
                seen = segment.visible[row].nonzero()[:, 0].tolist()
            path = tuple(seen)
            for end in range(1, len(path) + 1):
                if path[:end] not in values:
                    values[path[:end]] = self.step(values[path[: end - 1]], own[path[end - 1]])
            found.append(values[path])
            last = segment.visible is None and row == segment.rows - 1
            if last or self.writes == "every":
                state.write(segment.start + row, found[-1])
        return torch.stack(found)

    def text_head(self) -> None:
        pass

    def view(self, info: TargetInfo, slot: Slot) -> TargetView:
        return TargetView(info)


@cache
def recurrent(
    vocab_size: int, writes: str, seed: int = 0, max_length: int | None = None
) -> CachedTarget:
    decoder = Recurrent(vocab_size, writes, seed=seed, max_length=max_length)
    return CachedTarget(decoder, prefill_rows=5)
