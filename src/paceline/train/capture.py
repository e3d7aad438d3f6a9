"""The target answers prompts, several at a time, and its hidden states are taken as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Budget, Draft
from paceline.core.events import Failed, Round
from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.protocols import Noise, Target, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN
from paceline.engine.loop import Engine
from paceline.engine.request import Request
from paceline.train.store import Captured

FEWEST_ANSWER_TOKENS = 2
"""A shorter answer has nothing to draft."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorder:
    """A drafter that proposes nothing and keeps the hidden states that it is shown.

    One for each sequence.

    Args:
        hidden: the states to keep.
        dtype: the dtype to keep them in.
        parts: what was kept so far, in order.
    """

    name: ClassVar[str] = "recorder"
    needs_draft_model: ClassVar[bool] = False
    drafts: ClassVar[DraftKinds] = CHOSEN_CHAIN

    hidden: Hidden
    dtype: torch.dtype
    parts: list[HiddenStates] = field(default_factory=list)

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """The states."""
        return frozenset({self.hidden})

    def open(self, target: TargetView, capacity: int) -> Recorder:
        """See `protocols.Drafter.open`."""
        return self

    def observe(self, committed: Committed) -> None:
        """Keep the states; a prompt of one token comes without any."""
        if committed.hidden is None:
            return
        layers, final = committed.hidden.only(self.hidden)
        self.parts.append(
            HiddenStates(
                {layer: self._kept(states) for layer, states in layers.items()},
                None if final is None else self._kept(final),
            )
        )

    def _kept(self, states: torch.Tensor) -> torch.Tensor:
        # A copy: the rows of a pass are views of its whole result.
        return states.to("cpu", self.dtype, copy=True)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """Nothing."""
        return Draft()

    def close(self) -> None:
        """Nothing to free."""


def capture(
    target: Target,
    requests: Sequence[Request],
    hidden: Hidden,
    *,
    batch: int,
    dtype: torch.dtype = torch.bfloat16,
    told: Callable[[int], object] = lambda num_tokens: None,
    ends: Callable[[], bool] = lambda: False,
) -> list[Captured]:
    """Answer the requests without drafts; the sequences with their hidden states, in order.

    The passes follow from the requests alone, so that the same requests give the same numbers.

    Args:
        target: the model.
        requests: how to answer; their drafters and controllers are replaced.
        hidden: the states to keep.
        batch: how many are decoded at once.
        dtype: of the kept states.
        told: called with the number of new answer tokens after each round.
        ends: asked after each round; answers are then kept as far as they got.

    Raises:
        InvalidInput: a request that cannot be served.
    """
    recorders = [Recorder(hidden, dtype) for _ in requests]
    answers: list[list[int]] = [[] for _ in requests]
    with torch.inference_mode(), closing(Engine(target, max_sequences=batch)) as engine:
        for request, recorder in zip(requests, recorders, strict=True):
            engine.add(replace(request, drafter=recorder, controller=FixedController(0)))
        while engine.is_busy and not ends():
            count = 0
            for event in engine.step():
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Round):
                    answers[event.id] += event.tokens
                    count += len(event.tokens)
            told(count)
    return [
        Captured(
            torch.tensor([*request.prompt, *answer], dtype=torch.int32),
            len(request.prompt),
            HiddenStates.join(recorder.parts),
        )
        for request, recorder, answer in zip(requests, recorders, answers, strict=True)
        if len(answer) >= FEWEST_ANSWER_TOKENS
    ]
