"""Attention of a pass over many sequences: each row sees its own sequence, nothing is padded.

The new tokens of all sequences are concatenated, so that the matrix products see one long input;
only attention works sequence by sequence, on that sequence's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from paceline.core.hidden import Hidden
from paceline.kernels import attention as kernel
from paceline.targets.state.kv import KeyValueCache
from paceline.targets.state.protocol import State
from paceline.targets.text_head import Columns

_STACKED_ROWS = 32
"""Up to this many rows the query heads of a group are stacked, so that keys need no copies."""


@dataclass(frozen=True, slots=True, eq=False)
class Resume:
    """The first rows of a segment went through the first layers before the pass.

    Their keys and values of those layers are in the cache.

    Args:
        layer: the first layer that they have not been through.
        states: `[n, hidden]`, what goes into it, for the first n rows.
    """

    layer: int
    states: Tensor


@dataclass(slots=True, eq=False)
class Segment:
    """The rows of one sequence in a pass.

    Args:
        state: what the model keeps of it; attention reads and writes it.
        first: its first row in the pass.
        rows: the number of its rows.
        start: the number of tokens before them; row i is row `start + i` of the state.
        visible: `[rows, m + rows]` bool, which of the m rows before the new ones and of the new
            ones each new row sees, in addition to those of `seen`; None is causal, without any
            before.
        end: the number of cache rows that attention reads, `start + rows` or more; those after
            the new rows are masked.
        seen: how many of the tokens before them they see, from the first on; None is all.
        resume: the layers that its first rows have been through already.
        outputs: the places of its scored rows among those of the pass.
        columns: outputs for this sequence alone, in addition to those of a cut head.
    """

    state: State
    first: int
    rows: int
    start: int
    visible: Tensor | None
    end: int
    seen: int | None = None
    resume: Resume | None = None
    outputs: slice = field(default_factory=lambda: slice(0))
    columns: Sequence[Columns] = ()
    _masks: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)

    def bias(
        self, positions: Tensor, window: int | None, like: Tensor, stack: int
    ) -> Tensor | None:
        """The additive mask `[stack * rows, end]`, made once per pass; None if all is seen.

        It has the dtype and the device of `like`.
        """
        new = self.start + self.rows
        all_seen = self.seen is None or self.seen == self.start
        if self.rows == 1 and self.end == new and all_seen and (window is None or new <= window):
            return None
        return self.mask(positions, window, self.end, stack, like.dtype, like.device)

    def mask(
        self,
        positions: Tensor,
        window: int | None,
        end: int,
        stack: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        """0 for what a row sees, minus infinity elsewhere: `[stack * rows, end]`, once per pass."""
        key = (window, end, stack, dtype, device)
        if key not in self._masks:
            self._masks[key] = self._make_mask(positions, window, end, stack, dtype).to(device)
        return self._masks[key]

    def _make_mask(
        self, positions: Tensor, window: int | None, end: int, stack: int, dtype: torch.dtype
    ) -> Tensor:
        new = self.start + self.rows
        seen = torch.zeros(self.rows, end, dtype=torch.bool)
        seen[:, : self.start if self.seen is None else self.seen] = True
        visible = self.visible
        if visible is None:
            visible = torch.ones(self.rows, self.rows, dtype=torch.bool).tril()
        seen[:, new - visible.shape[1] : new] = visible
        if window is not None:
            own = positions[self.first : self.first + self.rows, None].cpu()
            keys = torch.arange(end)
            keys[self.start : new] = own[:, 0]
            seen &= keys > own - window
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)
        return mask.repeat(stack, 1)


@dataclass(slots=True, eq=False)
class Pass:
    """One pass of the model over the new rows of one or more sequences.

    Args:
        tokens, positions: `[N]`, the rows of all sequences, concatenated.
        segments: which rows belong to which sequence.
        scored: the rows whose logits are wanted, `[m]`; may be empty.
        hidden: the hidden states that are wanted, of all rows; None for none.
    """

    tokens: Tensor
    positions: Tensor
    segments: Sequence[Segment]
    scored: Tensor
    hidden: Hidden | None = None


def attend(
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch: Pass,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Write the new keys and values into the states, then attend.

    For decoders whose states are `KeyValueCache`s, or wrap one with the same `write` and `read`.

    Args:
        layer: the layer's number.
        query: `[heads, N, head_dim]`.
        key, value: `[kv_heads, N, head_dim]`, with rotary positions already applied; values may
            have another width.
        scale: multiplies the products of queries and keys.
        window: how many positions back a row sees, itself included; None sees all.
        softcap: bounds the scaled products s to `softcap * tanh(s / softcap)`.
        sinks: `[heads]`, the score of one more key, with the value zero, that every row sees.

    Returns:
        `[N, heads, head_dim]`.
    """
    options = _Options(scale, window, softcap, sinks)
    outputs = []
    for segment in batch.segments:
        rows = (query, key, value)
        if segment.rows != query.shape[1]:
            own = slice(segment.first, segment.first + segment.rows)
            rows = (query[:, own], key[:, own], value[:, own])
        outputs.append(_attend_one(layer, *rows, segment, batch.positions, options))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class _Options(NamedTuple):
    """The arguments of `attend` that describe a layer."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None

    @property
    def fused(self) -> bool:
        """Whether torch has one kernel for all of it."""
        return self.softcap is None and self.sinks is None


def _attend_one(
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment: Segment,
    positions: Tensor,
    options: _Options,
) -> Tensor:
    heads, rows, width = query.shape
    cache = cast(KeyValueCache, segment.state)
    cache.write(layer, key, value, segment.start)
    if rows <= _STACKED_ROWS and options.fused and kernel.is_for(query, value):
        end = -(-segment.end // kernel.KEYS) * kernel.KEYS
        keys, values = cache.read(layer, end)
        stack = heads // key.shape[0]
        precise = torch.float32, query.device
        mask = segment.mask(positions, options.window, end, stack, *precise)
        out = kernel.attend_few(query, keys, values, mask, segment.end, options.scale)
        return out.transpose(0, 1)
    keys, values = cache.read(layer, segment.end)
    # The query heads of a group are concatenated, as more rows of one head.
    stack = heads // key.shape[0] if rows <= _STACKED_ROWS or not options.fused else 1
    stacked = query.reshape(heads // stack, stack * rows, width)
    bias = segment.bias(positions, options.window, query, stack)
    if options.fused:
        out = scaled_dot_product_attention(
            stacked.unsqueeze(0),
            keys.unsqueeze(0),
            values.unsqueeze(0),
            attn_mask=bias,
            scale=options.scale,
            enable_gqa=stack == 1 and heads != key.shape[0],
        )
    else:
        out = _weigh(stacked, keys, values, bias, rows, options)
    return out.reshape(heads, rows, -1).transpose(0, 1)


def _weigh(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, rows: int, options: _Options
) -> Tensor:
    """Attention step by step, for what the fused kernel lacks: softcap and sinks."""
    scores = query @ keys.transpose(1, 2) * options.scale
    if options.softcap is not None:
        scores = options.softcap * (scores / options.softcap).tanh()
    if bias is not None:
        scores = scores + bias
    if options.sinks is not None:
        sinks = options.sinks.to(scores.dtype).view(len(query), -1, 1)
        scores = torch.cat([scores, sinks.repeat_interleave(rows, dim=1)], dim=-1)
    precise = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(dim=-1, dtype=precise).to(values.dtype)
    return weights[..., : keys.shape[1]] @ values
