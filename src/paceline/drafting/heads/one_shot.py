"""Heads whose levels all follow from the final state alone, as in Medusa."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from paceline.core.hidden import HiddenStates


class OneShotState:
    """See `contract.HeadState`. All levels are computed when a draft starts.

    Args:
        read: from the final state `[1, hidden]` of the last token that a pass has seen, and a
            number of levels, to the logits `[levels, Vh]`.
    """

    def __init__(self, read: Callable[[Tensor, int], Tensor]) -> None:
        self._read = read
        self._final: Tensor | None = None

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """See `contract.HeadState.observe`."""
        assert hidden.final is not None
        self._final = hidden.final[-1:].clone()

    def start(self, levels: int) -> Tensor:
        """See `contract.HeadState.start`."""
        assert self._final is not None
        self._level, self._logits = 0, self._read(self._final, levels)
        return self._logits[:1]

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """See `contract.HeadState.follow`: every row is the same one."""
        self._level += 1
        return self._logits[self._level].expand(len(tokens), -1)

    def close(self) -> None:
        """See `contract.HeadState.close`."""
        self._final = None
