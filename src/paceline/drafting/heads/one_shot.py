"""Heads whose levels all follow from the final state alone, as in Medusa."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.hidden import HiddenStates
from paceline.core.passes import done
from paceline.core.protocols import Ask, Scorer, Steps
from paceline.core.view import TargetView
from paceline.drafting.heads.contract import Level


class FinalRow(NamedTuple):
    """What one sequence asks for.

    Args:
        final: `[1, hidden]`, the final state of the last token that a pass has seen.
        levels: how many levels are wanted.
        target: the target, which all sequences share.
    """

    final: Tensor
    levels: int
    target: TargetView


Read = Callable[[Tensor, int, TargetView], Tensor]
"""From the final states `[n, hidden]` of n sequences and a number of levels to the logits
`[n, levels, Vh]`."""


@torch.inference_mode()
def read_together(read: Read, work: Sequence[FinalRow]) -> list[Tensor]:
    """The logits `[levels, Vh]` of each sequence, from one call for all.

    >>> rows = [FinalRow(torch.ones(1, 2) * n, n, None) for n in (1, 2)]  # type: ignore[arg-type]
    >>> read = lambda final, levels, target: final[:, None].expand(-1, levels, -1)
    >>> [tuple(logits.shape) for logits in read_together(read, rows)]
    [(1, 2), (2, 2)]
    """
    levels = max(one.levels for one in work)
    logits = read(torch.cat([one.final for one in work]), levels, work[0].target)
    return [rows[: one.levels] for rows, one in zip(logits, work, strict=True)]


class OneShotState:
    """See `contract.HeadState`. All levels are computed when a draft starts.

    Args:
        head: who runs a `FinalRow`, by `read_together`.
        target: the target, on this sequence.
    """

    def __init__(self, head: Scorer, target: TargetView) -> None:
        self._head, self._target = head, target
        self._final: Tensor | None = None

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """See `contract.HeadState.observe`."""
        assert hidden.final is not None
        self._final = hidden.final[-1:].clone()

    def start(self, levels: int) -> Steps[Level]:
        """See `contract.HeadState.start`."""
        assert self._final is not None
        self._level = 0
        self._logits: Tensor = yield Ask(self._head, FinalRow(self._final, levels, self._target))
        return Level(self._logits[:1])

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        """See `contract.HeadState.follow`: every row is the same one."""
        self._level += 1
        return done(Level(self._logits[self._level].expand(len(tokens), -1)))

    def close(self) -> None:
        """See `contract.HeadState.close`."""
        self._final = None
