"""Hydra (Ankner et al. 2402.05109): heads that also read the tokens drafted before.

With h the target's state after the final norm at token i and E(t) the target's embedding of a
token, head k (from 0) predicts token i + 2 + k from the tokens up to the one before it:

    x = [h, E(t_{i+1}), ..., E(t_{i+1+k})]
    z = P x + SiLU(W x + b);  z = z + SiLU(W' z + b') for each further layer;  logits = R z

In training the tokens are the recorded ones. P begins as the projection to h, the other weights at
0, and R as the rows of the target's output head, so that every head begins as the target's own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.train.heads import Heads
from paceline.train.medusa import Block


class FirstBlock(nn.Module):
    """P x + SiLU(W x + b) on the state and some embeddings; at first it gives the state."""

    def __init__(self, hidden_size: int, num_tokens: int) -> None:
        super().__init__()
        width = hidden_size * (1 + num_tokens)
        self.linear = nn.Linear(width, hidden_size)
        self.residual = nn.Linear(width, hidden_size, bias=False)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        nn.init.eye_(self.residual.weight)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, (1 + num_tokens) * hidden]` to `[n, hidden]`."""
        found: Tensor = self.residual(x) + functional.silu(self.linear(x))
        return found


class HydraHeads(Heads):
    """The heads.

    Args:
        rows: those of the target's output head that belong to the draft vocabulary, `[Vd, hidden]`.
        embedding: the target's, `[V, hidden]`, which stays as it is.
        num_heads: the number of drafted tokens.
        num_layers: the blocks of each head.
        shared: all heads use `rows` as they are, in place of rows of their own.
    """

    embedding: Tensor

    def __init__(
        self, rows: Tensor, embedding: Tensor, num_heads: int, num_layers: int, *, shared: bool
    ) -> None:
        super().__init__(rows, num_heads, shared=shared)
        size = rows.shape[1]
        self.register_buffer("embedding", embedding, persistent=False)
        self.blocks = [
            (FirstBlock(size, head + 1), [Block(size) for _ in range(num_layers - 1)])
            for head in range(num_heads)
        ]
        self.first = nn.ModuleList(first for first, _ in self.blocks)
        self.further = nn.ModuleList(nn.Sequential(*further) for _, further in self.blocks)

    def state(self, final: Tensor, following: Tensor, head: int) -> Tensor:
        """See `heads.Heads.state`."""
        read = functional.embedding(following[:, : head + 1], self.embedding).flatten(1)
        first: Tensor = self.first[head](torch.cat([final, read.to(final.dtype)], dim=-1))
        found: Tensor = self.further[head](first)
        return found
