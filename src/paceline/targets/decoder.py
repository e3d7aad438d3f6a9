"""What a cached target runs: a model that holds no state itself."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

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
    """The result of a pass.

    Args:
        logits: `[len(batch.scored), V]` of the scored rows, in any floating dtype.
        hidden: the states `[N, hidden]` of all rows that `batch.hidden` asks for, on the decoder's
            device; None where it asks for none.
    """

    logits: Tensor
    hidden: HiddenStates | None = None


class Decoder(Protocol):
    """Rows in, logits and hidden states out; what is kept of a sequence goes into its state."""

    @property
    def info(self) -> TargetInfo:
        """The description of the target."""
        ...

    @property
    def device(self) -> torch.device:
        """The device that its inputs have to be on."""
        ...

    @property
    def num_bytes(self) -> int:
        """The bytes of weights that a pass reads."""
        ...

    def state(self, capacity: int) -> State:
        """A state for a new sequence, with room for `capacity` committed rows."""
        ...

    def run(self, batch: Pass) -> Output:
        """Run one pass. Committed rows of the segments' states do not change."""
        ...

    def text_head(self) -> TextHead | None:
        """A `TextHead` for a new sequence if the output head is cut; None if it is whole."""
        ...

    def view(self, info: TargetInfo, slot: Slot) -> TargetView:
        """What a drafter may use of the model on a sequence, in addition to `info`."""
        ...


def mask_token_of(config: Any) -> int | None:
    """The mask token that a configuration of transformers names; see `TargetInfo.mask_token`."""
    found = getattr(config, "pard_token", getattr(config, "ptd_token_id", None))
    return found if isinstance(found, int) and not isinstance(found, bool) else None
