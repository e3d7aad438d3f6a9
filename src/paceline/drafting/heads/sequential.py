"""Heads that read the final state once, and then the tokens that were drafted: Hydra, for example.

A row carries a state of its own from level to level. The first one is the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.hidden import HiddenStates
from paceline.core.protocols import Ask, Scorer, Steps
from paceline.core.view import TargetView
from paceline.drafting.heads.contract import Level


class Stepped(NamedTuple):
    """What a step gives: logits `[m, Vh]`, and the states `[m, ...]` that the next step reads."""

    logits: Tensor
    states: Tensor


class LevelRows(NamedTuple):
    """What one sequence asks for: a step over the rows of a level.

    Args:
        level: its number, from 0.
        states: `[m, ...]`, what the rows carry. At level 0 it is the target's state.
        tokens: `[m]`, the tokens before; at level 0 the last committed one.
        target: the target, which all sequences share.
    """

    level: int
    states: Tensor
    tokens: Tensor
    target: TargetView


Step = Callable[[int, Tensor, Tensor, TargetView], Stepped]
"""From level, states, tokens and target, as in `LevelRows`."""


@torch.inference_mode()
def step_together(step: Step, work: Sequence[LevelRows]) -> list[Stepped]:
    """A step for each sequence: those at one level take it in one call.

    >>> step = lambda level, states, tokens, target: Stepped(states + level, states)
    >>> row = LevelRows(1, torch.ones(2, 1), torch.tensor([3, 4]), None)  # type: ignore[arg-type]
    >>> [rows.logits.flatten().tolist() for rows in step_together(step, [row, row])]
    [[2.0, 2.0], [2.0, 2.0]]
    """
    found: dict[int, Stepped] = {}
    for level in {one.level for one in work}:
        places = [place for place, one in enumerate(work) if one.level == level]
        rows = [work[place] for place in places]
        states = torch.cat([one.states for one in rows])
        tokens = torch.cat([one.tokens for one in rows])
        stepped = step(level, states, tokens, rows[0].target)
        sizes = [len(one.tokens) for one in rows]
        parts = zip(
            torch.split(stepped.logits, sizes), torch.split(stepped.states, sizes), strict=True
        )
        found |= {place: Stepped(*part) for place, part in zip(places, parts, strict=True)}
    return [found[place] for place in range(len(work))]


class SequentialState:
    """See `contract.HeadState`.

    Args:
        head: who runs `LevelRows`, by `step_together`.
        target: the target, on this sequence.
        layer: the layer whose input is the first state; None is the target's final state.
    """

    def __init__(self, head: Scorer, target: TargetView, layer: int | None = None) -> None:
        self._head, self._target, self._layer = head, target, layer
        self._final: Tensor | None = None
        self._last = 0

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """See `contract.HeadState.observe`."""
        states = hidden.final if self._layer is None else hidden.layers[self._layer]
        assert states is not None
        self._final, self._last = states[-1:].clone(), tokens[-1]

    def start(self, levels: int) -> Steps[Level]:
        """See `contract.HeadState.start`."""
        assert self._final is not None
        self._level, self._states = 0, self._final
        return (yield from self._advance([0], [self._last]))

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        """See `contract.HeadState.follow`."""
        self._level += 1
        return (yield from self._advance(parents, tokens))

    def _advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        device = self._states.device
        rows = LevelRows(
            self._level,
            self._states[torch.tensor(parents, device=device)],
            torch.tensor(tokens, device=device),
            self._target,
        )
        stepped: Stepped = yield Ask(self._head, rows)
        self._states = stepped.states
        return Level(stepped.logits)

    def close(self) -> None:
        """See `contract.HeadState.close`."""
        self._final = None
