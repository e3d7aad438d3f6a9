"""The target's layers, run by a drafter on the cache of one slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.target import SkipSet
from paceline.errors import ContextOverflow, ContractViolation, InvalidInput
from paceline.targets.attention import Pass, Segment
from paceline.targets.layers import LayeredDecoder, some_layers
from paceline.targets.slot import Ahead, Slot


class SlotLayers:
    """A `view.TargetLayers`.

    Args:
        decoder: the model.
        slot: the sequence; its cache is read, and written to after its end.
    """

    def __init__(self, decoder: LayeredDecoder, slot: Slot) -> None:
        self._decoder, self._slot = decoder, slot
        self._skip, self._ahead = SkipSet(), Ahead(0)

    @property
    def num_layers(self) -> int:
        """See `view.TargetLayers.num_layers`."""
        return self._decoder.num_layers

    def start(self, skip: SkipSet) -> None:
        """See `view.TargetLayers.start`."""
        self._check(skip)
        self._skip = skip
        self._slot.ahead = self._ahead = Ahead(skip.num_whole(self.num_layers))

    def run(self, tokens: Sequence[int]) -> Tensor:
        """See `view.TargetLayers.run`."""
        if self._slot.ahead is not self._ahead:
            raise ContractViolation(
                "the target's layers were run without a call of start after its last pass"
            )
        position = self._slot.state.length + len(self._ahead.tokens)
        logits, kept = self._pass(tokens, position, position, None, self._skip, scored=1)
        self._ahead.tokens += tokens
        self._ahead.states.append(kept)
        return logits[0]

    def replay(self, start: int, tokens: Sequence[int], skip: SkipSet) -> Tensor:
        """See `view.TargetLayers.replay`."""
        self._check(skip)
        length = self._slot.state.length
        if not 0 <= start <= length or start + len(tokens) > length + 1:
            raise ContractViolation(
                f"replay takes committed tokens, and there are {length + 1}; it was given "
                f"{len(tokens)} from position {start} on"
            )
        self._slot.ahead = None
        return self._pass(tokens, length, start, start, skip, scored=len(tokens))[0]

    def _check(self, skip: SkipSet) -> None:
        named = skip.attention | skip.mlp
        if outside := [layer for layer in named if not 0 <= layer < self.num_layers]:
            raise InvalidInput(
                f"layer {outside[0]} cannot be skipped: the layers of "
                f"{self._decoder.info.name} are 0 to {self.num_layers - 1}"
            )

    def _pass(
        self,
        tokens: Sequence[int],
        row: int,
        position: int,
        seen: int | None,
        skip: SkipSet,
        *,
        scored: int,
    ) -> tuple[Tensor, Tensor]:
        """Run tokens at `position`; their keys and values go to the cache from `row` on.

        Returns:
            The logits of the last `scored` tokens, and all states after the layers that ran whole.
        """
        slot, count = self._slot, len(tokens)
        if position + count > slot.capacity:
            raise ContextOverflow(
                f"the slot was opened for {slot.capacity} tokens and a draft would reach "
                f"{position + count}; open it for more, or draft less"
            )
        slot.state.begin(row, row + count)
        device = self._decoder.device
        with torch.inference_mode():
            batch = Pass(
                torch.tensor(list(tokens), device=device),
                torch.arange(position, position + count, device=device),
                [Segment(slot.state, 0, count, row, None, row + count, seen)],
                torch.arange(count - scored, count, device=device),
            )
            x, kept = some_layers(self._decoder, batch, skip)
            logits = self._decoder.logits(x[batch.scored])
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).cpu(), kept
