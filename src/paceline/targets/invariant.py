"""Invariant mode: find a shape of pass whose rows do not depend on what else is in the pass.

A pass over one row and a pass over five are different matrix products and round differently. But
passes of one fixed shape can give each row the same bits whatever the other rows hold. Whether a
shape does so depends on the kernels of the machine, so it is found by trying, not assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from paceline.errors import UnsupportedModel
from paceline.protocols import Work
from paceline.targets.cached import CachedTarget, Decoder
from paceline.types import Draft

ROWS = (8, 4, 16)
"""The padded rows that are tried, in this order."""

KEYS = 512
"""Attention reads a multiple of this many cache rows, the block of ATen's CPU kernel, so that a
row's sums are cut at the same places however far the pass reaches."""

_PROMPT, _TOKENS = 9, 14
"""How many tokens the probe takes before, and while, it compares."""


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
    """Whether every way to split a sequence into passes gives each token the same logit bits."""
    tokens = [(7 * i * i + 3 * i + 1) % target.info.vocab_size for i in range(_PROMPT + _TOKENS)]
    reference = _logits(target, tokens, [1] * _TOKENS)
    return all(
        torch.equal(_logits(target, tokens, split, wrong), reference)
        for split in _splits(target.fixed_rows or 1)
        for wrong in (0, 1)
    )


def _splits(most: int) -> Iterator[list[int]]:
    """Ways to commit `_TOKENS` tokens in passes of up to `most` rows."""
    for size in sorted({2, 3, most - 1, most}):
        sizes = [size] * (_TOKENS // size)
        yield [*sizes, *[1] * (_TOKENS - sum(sizes))]


def _logits(target: CachedTarget, tokens: Sequence[int], split: Sequence[int], wrong: int = 0) -> Tensor:
    """The logits behind the last `_TOKENS` tokens when they are committed in blocks.

    Each block is drafted whole, with `wrong` rejected tokens behind it where there is room.
    """
    slot = target.open(len(tokens) + len(split))
    target.prefill(slot, tokens[:_PROMPT])
    rows: list[Tensor] = []
    at = _PROMPT
    for size in split:
        rejected = [tokens[0]] * min(wrong, (target.fixed_rows or 1) - size)
        draft = Draft((*tokens[at + 1 : at + size], *rejected))
        rows.append(target.score([Work(slot, tokens[at], draft)])[0].logits[:size])
        target.commit(slot, range(size - 1))
        at += size
    target.close(slot)
    return torch.cat(rows)
