"""Blockwise heads (Stern et al. 1811.03115): one layer for all of the tokens of a block.

With x the target's state after the final norm at token i,

    [y_0 ... y_{n-1}] = U ReLU(W x + b) + c;   logits_k = R (x + y_k)

are about token i + 2 + k. U and c begin at 0 and R is the target's output head, so that every head
begins as the target's own. The loss is the mean over the heads: the expected loss of one that is
drawn at random, which is what the paper takes (section 6). The target does not change, which is the
paper's "regular" training.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.train.heads import Heads


class BlockwiseHeads(Heads):
    """The heads.

    Args:
        rows: those of the target's output head that belong to the draft vocabulary, `[Vd, hidden]`.
        num_heads: the number of drafted tokens.
        width: of the layer, for each head.
        shared: all heads use `rows` as they are, in place of rows of their own.
        seed: of the first weights of W.
    """

    def __init__(
        self, rows: Tensor, num_heads: int, width: int, *, shared: bool, seed: int = 0
    ) -> None:
        super().__init__(rows, num_heads, shared=shared)
        size = rows.shape[1]
        self.hidden = nn.Linear(size, num_heads * width)
        self.output = nn.Linear(num_heads * width, num_heads * size)
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            first = torch.randn(self.hidden.weight.shape, generator=random)
            self.hidden.weight.copy_(first * size**-0.5)
        for zero in (self.hidden.bias, self.output.weight, self.output.bias):
            nn.init.zeros_(zero)

    def states(self, final: Tensor, following: Tensor) -> list[Tensor]:
        """See `heads.Heads.states`: one pass of the layer for all."""
        changes = self.output(functional.relu(self.hidden(final)))
        return [final + change for change in changes.chunk(self.num_heads, dim=-1)]

    def state(self, final: Tensor, following: Tensor, head: int) -> Tensor:
        """See `heads.Heads.state`; the tokens that follow are not read."""
        return self.states(final, following)[head]
