"""Heads that read the final state once, and then the tokens that were drafted: Hydra, for example.

A row carries a state of its own from level to level. The first one is the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.hidden import HiddenStates


class Stepped(NamedTuple):
    """What a step gives: logits `[m, Vh]`, and the states `[m, ...]` that the next step reads."""

    logits: Tensor
    states: Tensor


Step = Callable[[int, Tensor, Tensor], Stepped]
"""From a level (from 0), the states `[m, ...]` before it and the m tokens before it. At level 0 the
state is the target's, and the token is the last committed one."""


class SequentialState:
    """See `contract.HeadState`.

    Args:
        step: see `Step`.
        layer: the layer whose input is the first state; None is the target's final state.
    """

    def __init__(self, step: Step, layer: int | None = None) -> None:
        self._step, self._layer = step, layer
        self._final: Tensor | None = None
        self._last = 0

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """See `contract.HeadState.observe`."""
        states = hidden.final if self._layer is None else hidden.layers[self._layer]
        assert states is not None
        self._final, self._last = states[-1:].clone(), tokens[-1]

    def start(self, levels: int) -> Tensor:
        """See `contract.HeadState.start`."""
        assert self._final is not None
        self._level, self._states = 0, self._final
        return self._advance([0], [self._last])

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """See `contract.HeadState.follow`."""
        self._level += 1
        return self._advance(parents, tokens)

    def _advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        device = self._states.device
        before = self._states[torch.tensor(parents, device=device)]
        logits, self._states = self._step(self._level, before, torch.tensor(tokens, device=device))
        return logits

    def close(self) -> None:
        """See `contract.HeadState.close`."""
        self._final = None
