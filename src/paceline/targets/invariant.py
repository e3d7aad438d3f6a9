"""Invariant mode: find a shape of pass whose rows do not depend on what else is in the pass.

A pass over one row and a pass over five are different matrix products and round differently. But
passes of one fixed shape can give each row the same bits whatever the other rows hold. Whether a
shape does so depends on the kernels of the machine, so it is found by trying, not assumed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.errors import UnsupportedModel
from paceline.targets.cached import CachedTarget
from paceline.targets.decoder import Decoder
from paceline.targets.state.kv import keys_and_values

ROWS = (8, 4, 16)
"""The numbers of rows to pad to that are tried, in this order."""

KEYS = 512
"""Attention reads a multiple of this many cache rows, the block of ATen's CPU kernel. A row's
sums are then split at the same places however far the pass reaches."""

_PROMPT = 9
"""The number of tokens that the probe commits before it compares."""


def make_invariant(decoder: Decoder, *, rows: Sequence[int] = ROWS) -> CachedTarget:
    """A target in invariant mode, in the first shape that holds on this machine.

    Raises:
        UnsupportedModel: no shape holds.
    """
    for fixed_rows in rows:
        target = CachedTarget(decoder, fixed_rows=fixed_rows, fixed_keys=KEYS)
        if holds(target):
            return target
    raise UnsupportedModel(
        f"invariant mode: on this machine the logits of {decoder.info.name} depend on what else is "
        f"in a pass, for passes of {', '.join(map(str, rows))} rows; decode without invariant mode"
    )


def holds(target: CachedTarget) -> bool:
    """Whether every way to split a sequence into passes gives each token the same logit bits.

    Tried after a short context, and where attention starts to read another block of keys.
    """
    rows = target.fixed_rows or 1
    count = rows + 6
    tokens = [(7 * i * i + 3 * i + 1) % target.info.vocab_size for i in range(_PROMPT + count)]
    splits = {_PROMPT: {2, 3, rows - 1, rows}, KEYS - _PROMPT: {3, rows - 1}}
    for context, sizes in splits.items():
        capacity = context + count + 1
        if target.info.max_length is not None and capacity > target.info.max_length:
            continue
        reference = _logits(target, tokens, context, [1] * count)
        for size in sorted(sizes):
            split = [size] * (count // size)
            split += [1] * (count - sum(split))
            if not torch.equal(_logits(target, tokens, context, split), reference):
                return False
    return True


def _logits(
    target: CachedTarget, tokens: Sequence[int], context: int, split: Sequence[int]
) -> Tensor:
    """The logits after each token that follows the first `_PROMPT`, committed in blocks.

    Each block is drafted whole, every second one with a rejected token after it if there is
    room. The prompt's keys and values are repeated, which imitates a `context` of that length.
    """
    slot = target.open(context + sum(split) + 1)
    prefill(target, slot, tokens[:_PROMPT])
    state = keys_and_values(slot.state)
    with torch.inference_mode():
        for tensor in (tensor for layer in state.layers for tensor in layer):
            index = torch.arange(context, device=tensor.device) % _PROMPT
            tensor[:, :context] = tensor[:, index]
    state.keep(range(_PROMPT, context))
    slot.append([tokens[place % _PROMPT] for place in range(_PROMPT, context)])
    blocks: list[Tensor] = []
    at = _PROMPT
    for number, size in enumerate(split):
        room = (target.fixed_rows or 1) - size
        rejected = [tokens[0]] * min(number % 2, room)
        draft = Draft((*tokens[at + 1 : at + size], *rejected))
        blocks.append(target.score([Work(slot, [tokens[at]], draft)])[0].logits[:size])
        target.commit(slot, range(size - 1))
        at += size
    target.close(slot)
    return torch.cat(blocks)
