"""Medusa-1 (Cai et al. 2401.10774): heads on a target that stays as it is.

With h the target's state after the final norm at token i, head k (from 0) predicts token i + 2 + k:

    x = h;  x = x + SiLU(W x + b) for each layer;  logits = R x

W and b begin at 0 and R as the rows of the target's output head, so that every head begins as the
target's own. The loss is the sum over heads of .8^k times the cross-entropy (or the divergence from
the target's own distribution at that place, which the stored states give).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from paceline.train.heads import Heads


class Block(nn.Module):
    """x + SiLU(W x + b), which begins as the identity."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, hidden]` to `[n, hidden]`."""
        return x + functional.silu(self.linear(x))


class MedusaHeads(Heads):
    """The heads.

    Args:
        rows: those of the target's output head that belong to the draft vocabulary, `[Vd, hidden]`.
        num_heads: the number of drafted tokens.
        num_layers: the blocks of each head.
        shared: all heads use `rows` as they are, in place of rows of their own.
    """

    def __init__(self, rows: Tensor, num_heads: int, num_layers: int, *, shared: bool) -> None:
        super().__init__(rows, num_heads, shared=shared)
        hidden_size = rows.shape[1]
        blocks = [[Block(hidden_size) for _ in range(num_layers)] for _ in range(num_heads)]
        self.layers = blocks
        self.blocks = nn.ModuleList(nn.Sequential(*head) for head in blocks)

    def state(self, final: Tensor, following: Tensor, head: int) -> Tensor:
        """See `heads.Heads.state`; the tokens that follow are not read."""
        found: Tensor = self.blocks[head](final)
        return found
