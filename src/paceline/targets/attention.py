"""Attention of a pass over many sequences: each row sees its own sequence, nothing is padded.

All sequences' new tokens stand one behind the other in one row of the pass, so that the matrix
products see one long input; only attention works sequence by sequence, on that sequence's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from paceline.targets.cache import KeyValueCache

_FEW_ROWS = 32
"""Up to this many rows the query heads of a group are stacked, so that keys need no copies."""


@dataclass(slots=True, eq=False)
class Segment:
    """The rows of one sequence in a pass.

    Args:
        cache: where its keys and values live.
        first: its first row in the pass.
        rows: how many rows it has.
        start: the cached tokens before them; row i writes its keys at `start + i`.
        visible: `[rows, rows]` bool, which new rows each new row sees; None is causal.
        end: how many cache rows attention reads, `start + rows` or more; what lies behind the
            new rows is masked.
    """

    cache: KeyValueCache
    first: int
    rows: int
    start: int
    visible: Tensor | None
    end: int
    _bias: dict[tuple[int | None, torch.dtype, int], Tensor | None] = field(default_factory=dict)

    def bias(
        self, positions: Tensor, window: int | None, dtype: torch.dtype, stack: int
    ) -> Tensor | None:
        """The additive mask `[stack * rows, end]`, made once a pass; None where all is seen."""
        key = (window, dtype, stack)
        if key not in self._bias:
            self._bias[key] = self._make_bias(positions, window, dtype, stack)
        return self._bias[key]

    def _make_bias(
        self, positions: Tensor, window: int | None, dtype: torch.dtype, stack: int
    ) -> Tensor | None:
        new = self.start + self.rows
        if self.rows == 1 and self.end == new and (window is None or new <= window):
            return None
        seen = torch.zeros(self.rows, self.end, dtype=torch.bool)
        seen[:, : self.start] = True
        seen[:, self.start : new] = (
            torch.ones(self.rows, self.rows, dtype=torch.bool).tril()
            if self.visible is None
            else self.visible
        )
        if window is not None:
            own = positions[self.first : self.first + self.rows, None].cpu()
            keys = torch.arange(self.end)
            keys[self.start : new] = own[:, 0]
            seen &= keys > own - window
        bias = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)
        return bias.repeat(stack, 1).to(positions.device)


@dataclass(slots=True, eq=False)
class Pass:
    """One pass of the model over the new rows of one or more sequences.

    Args:
        tokens, positions: `[N]`, all sequences' rows one behind the other.
        segments: which rows are whose.
        scored: the rows whose logits are wanted, `[m]`; may be empty.
    """

    tokens: Tensor
    positions: Tensor
    segments: Sequence[Segment]
    scored: Tensor


def attend(
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch: Pass,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Write the new keys and values into the caches, then attend.

    Args:
        layer: the layer's number.
        query: `[heads, N, head_dim]`.
        key, value: `[kv_heads, N, head_dim]`, with rotary positions already applied.
        scale: multiplies the products of queries and keys.
        window: how many positions back a row sees, itself included; None sees all.

    Returns:
        `[N, heads, head_dim]`.
    """
    outputs = [
        _attend_one(layer, query, key, value, segment, batch.positions, scale, window)
        for segment in batch.segments
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_one(
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment: Segment,
    positions: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    first, rows = segment.first, segment.rows
    if rows != query.shape[1]:
        query, key, value = (x[:, first : first + rows] for x in (query, key, value))
    segment.cache.write(layer, key, value, segment.start)
    keys, values = segment.cache.read(layer, segment.end)
    heads, kv_heads = query.shape[0], key.shape[0]
    stack = heads // kv_heads if rows <= _FEW_ROWS else 1
    out = scaled_dot_product_attention(
        query.reshape(1, heads // stack, stack * rows, -1),
        keys[None],
        values[None],
        attn_mask=segment.bias(positions, window, query.dtype, stack),
        scale=scale,
        enable_gqa=stack == 1 and heads != kv_heads,
    )
    return out.view(heads, rows, -1).transpose(0, 1)
