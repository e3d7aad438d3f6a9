"""What a cached target runs: a model without a state of its own."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.core.hidden import HiddenStates
from paceline.core.target import TargetInfo
from paceline.core.view import TargetView
from paceline.targets.attention import Pass
from paceline.targets.slot import Slot
from paceline.targets.state.protocol import State
from paceline.targets.text_head import TextHead


class Output(NamedTuple):
    """What a pass gives.

    Args:
        logits: `[len(batch.scored), V]` of the scored rows, in any floating dtype.
        hidden: the states `[N, hidden]` of all rows that `batch.hidden` asks for, on the decoder's
            device; None where it asks for none.
    """

    logits: Tensor
    hidden: HiddenStates | None = None


class Decoder(Protocol):
    """Rows in, logits and hidden states out; what a sequence leaves behind goes into its state."""

    @property
    def info(self) -> TargetInfo:
        """What the target tells of itself."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its inputs have to be."""
        ...

    @property
    def num_bytes(self) -> int:
        """The weights that a pass reads."""
        ...

    def state(self, capacity: int) -> State:
        """For a new sequence: the state that its passes write, for this many committed rows."""
        ...

    def run(self, batch: Pass) -> Output:
        """One pass. What is committed in the states of its segments does not change."""
        ...

    def text_head(self) -> TextHead | None:
        """For a new sequence: the tokens of its text that a cut head lacks; None if it is whole."""
        ...

    def view(self, info: TargetInfo, slot: Slot) -> TargetView:
        """What a drafter may use of it on a sequence, beside `info`."""
        ...
