"""Medusa-1 (Cai et al. 2401.10774): heads on a target that stays as it is.

With h the target's state after the final norm at token i, head k (from 0) predicts token i + 2 + k:

    x = h;  x = x + SiLU(W x + b) for each layer;  logits = R x

W and b begin at 0 and R as the rows of the target's output head, so that every head begins as the
target's own. The loss is the sum over heads of .8^k times the cross-entropy (or the divergence from
the target's own distribution at that place, which the stored states give).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.hidden import Hidden
from paceline.economics.stats import AcceptanceCounts
from paceline.train.data import Vocabulary
from paceline.train.objective import Loss, cross_entropy, divergence, walk
from paceline.train.store import Captured

HIDDEN = Hidden(final=True)
"""The states that the heads read."""

DECAY = 0.8
"""The weight of a head's loss, relative to the head before it (the paper's lambda_k)."""

ROWS_AT_ONCE = 1024
"""Rows of one product with the output head outside of training."""


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


class MedusaHeads(nn.Module):
    """The heads.

    Args:
        rows: those of the target's output head that belong to the draft vocabulary, `[Vd, hidden]`.
        num_heads: the number of drafted tokens.
        num_layers: the blocks of each head.
        shared: all heads use `rows` as they are, in place of rows of their own.
    """

    rows: Tensor

    def __init__(self, rows: Tensor, num_heads: int, num_layers: int, *, shared: bool) -> None:
        super().__init__()
        hidden_size = rows.shape[1]
        blocks = [[Block(hidden_size) for _ in range(num_layers)] for _ in range(num_heads)]
        self.layers = blocks
        self.blocks = nn.ModuleList(nn.Sequential(*head) for head in blocks)
        self.register_buffer("rows", rows, persistent=False)
        own = [] if shared else [rows.float().clone() for _ in range(num_heads)]
        self.own_rows = nn.ParameterList(own)

    @property
    def num_heads(self) -> int:
        """The number of drafted tokens."""
        return len(self.blocks)

    @property
    def shared(self) -> bool:
        """Whether all heads use the target's rows."""
        return not len(self.own_rows)

    def forward(self, states: Tensor, head: int) -> Tensor:
        """The logits `[n, Vd]` of one head, from states `[n, hidden]`."""
        x = self.blocks[head](states)
        rows = self.rows if self.shared else self.own_rows[head]
        return functional.linear(x, rows.to(x.dtype))


class Batch(NamedTuple):
    """Rows of several sequences, one after another.

    Args:
        states: after the final norm, `[n, hidden]`.
        following: the place in the draft vocabulary of the token after each row's, -1 for a token
            that it lacks, `[n]`.
        left: how many rows of the same sequence come after each, `[n]`.
    """

    states: Tensor
    following: Tensor
    left: Tensor

    def pairs(self, head: int) -> tuple[Tensor, Tensor]:
        """The rows that a head reads, and those after whose token comes what it predicts."""
        read = (self.left > head).nonzero()[:, 0]
        return read, read + 1 + head


def batch_of(sequences: Sequence[Captured], vocabulary: Vocabulary) -> Batch:
    """The rows that drafts of the answers are made from: the last two of the prompt, and so on."""
    states, following, left = [], [], []
    for one in sequences:
        first = max(0, one.num_prompt_tokens - 2)
        assert one.hidden.final is not None
        rows = one.hidden.final[first:]
        states.append(rows)
        following.append(vocabulary.places(one.tokens[first + 1 :].long()))
        left.append(torch.arange(len(rows) - 1, -1, -1))
    return Batch(torch.cat(states), torch.cat(following), torch.cat(left))


@dataclass(eq=False)
class MedusaObjective:
    """See `objective.Objective`.

    Args:
        module: the heads.
        vocabulary: what they can propose.
        loss: how the heads' distributions are compared with the target's.
        temperature: of the target's distribution, for "divergence".
        precision: what products are computed in; parameters stay in float32.
        write: writes the heads into a folder.
    """

    module: MedusaHeads
    vocabulary: Vocabulary
    loss: Loss
    temperature: float
    precision: torch.dtype
    write: Callable[[MedusaObjective, Path], None]

    def backward(self, batch: Sequence[Captured]) -> list[float]:
        """See `objective.Objective`; one head after another, so that one's logits are in memory."""
        rows = batch_of(batch, self.vocabulary)
        target = self._target(rows) if self.loss == "divergence" else None
        losses = []
        for head in range(self.module.num_heads):
            read, said = rows.pairs(head)
            with self._fast():
                logits = self.module(self._taken(rows.states[read]), head)
            labels = rows.following[said]
            if target is None:
                loss = cross_entropy(logits, labels)
            else:
                loss = divergence(logits, labels, target[said])
            (DECAY**head * loss).backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
        return losses

    @torch.no_grad()
    def _target(self, rows: Batch) -> Tensor:
        """Log-probabilities of the target after each row, over the draft vocabulary."""
        with self._fast():
            logits = functional.linear(self._taken(rows.states), self._taken(self.module.rows))
        return (logits.float() / self.temperature).log_softmax(dim=-1)

    @torch.no_grad()
    def replay(self, texts: Sequence[Captured]) -> AcceptanceCounts:
        """See `objective.Objective`."""
        counts = AcceptanceCounts()
        for one in texts:
            first = max(0, one.num_prompt_tokens - 2)
            counts = walk(
                self.drafts(one),
                one.tokens[first:],
                one.num_prompt_tokens - first,
                counts,
            )
        return counts

    @torch.no_grad()
    def drafts(self, one: Captured) -> Tensor:
        """The most probable tokens of every head after the rows of `batch_of`, `[n, heads]`."""
        states = batch_of([one], self.vocabulary).states
        found = []
        for part in torch.split(states, ROWS_AT_ONCE):
            with self._fast():
                taken = self._taken(part)
                heads = range(self.module.num_heads)
                best = torch.stack([self.module(taken, k).argmax(dim=-1) for k in heads], dim=1)
            found.append(best if self.vocabulary.ids is None else self.vocabulary.ids[best])
        return torch.cat(found)

    def save(self, folder: Path) -> None:
        """See `objective.Objective`."""
        self.write(self, folder)

    def _taken(self, states: Tensor) -> Tensor:
        return states.to(self.precision)

    def _fast(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", self.precision, enabled=self.precision is torch.bfloat16)
