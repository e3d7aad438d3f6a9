"""What DSpark adds to a block from token to token: to the logits, and how sure it is of them.

Source: DSpark 2607.05147, sections 3.1 (the sequential head) and 3.2 (confidence).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.linear import Linear


class Chained(Protocol):
    """What a token of a block adds to the logits of the next (the sequential head of DSpark)."""

    @property
    def rank(self) -> int:
        """The width of its state."""
        ...

    def __call__(self, states: Tensor, tokens: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """What is added to the logits `[n, Vh]`, and the state `[n, rank]` of what follows.

        Args:
            states: `[n, hidden]`, the block's states before the output head.
            tokens: the n tokens before.
            before: `[n, rank]`, the states that go with them; zeros for the first.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Markov:
    """W2 W1[x], or gated by the block's state (DSpark 3.1).

    Args:
        embedding: W1, `[V, rank]`.
        output: W2, `[Vh, rank]`.
        gate: from state and embedding side by side to a gate, `[rank, hidden + rank]`; None for
            none.
    """

    embedding: Tensor
    output: Linear
    gate: Linear | None = None

    @property
    def rank(self) -> int:
        """See `Chained`."""
        return self.embedding.shape[1]

    def __call__(self, states: Tensor, tokens: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """See `Chained`: nothing is carried on."""
        x = self.embedding[tokens].to(states.dtype)
        if self.gate is not None:
            x = self.gate(torch.cat([states, x], dim=-1)).sigmoid() * x
        return self.output(x), before


@dataclass(frozen=True, slots=True, eq=False)
class Recurrent:
    """A state s that goes from token to token (DSpark 3.1): g, c, o = W [s; W1[x]; h].

    s <- sigmoid(g) s + (1 - sigmoid(g)) tanh(c), and W2 tanh(o) is added.

    Args:
        embedding: W1, `[V, rank]`.
        output: W2, `[Vh, rank]`.
        joint: W, `[3 rank, 2 rank + hidden]`.
    """

    embedding: Tensor
    output: Linear
    joint: Linear

    @property
    def rank(self) -> int:
        """See `Chained`."""
        return self.embedding.shape[1]

    def __call__(self, states: Tensor, tokens: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """See `Chained`."""
        x = self.embedding[tokens].to(states.dtype)
        g, c, o = self.joint(torch.cat([before, x, states], dim=-1)).chunk(3, dim=-1)
        gate = g.sigmoid()
        return self.output(o.tanh()), gate * before + (1 - gate) * c.tanh()


@dataclass(frozen=True, slots=True, eq=False)
class Confidence:
    """How probable it is that the token of a place is accepted: sigmoid(w [h; W1[x]] + b).

    h is the block's state of the place and x the token before it, so that it is known before the
    token itself is drawn (DSpark 3.2).

    Args:
        embedding: W1, `[V, rank]`, that of the sequential head; None for heads that read h alone.
        weight: w, `[1, hidden + rank]`.
        bias: b, `[1]`.
    """

    embedding: Tensor | None
    weight: Tensor
    bias: Tensor

    def __call__(self, states: Tensor, tokens: Tensor) -> Tensor:
        """`[n]`, from the block's states `[n, hidden]` and the n tokens before."""
        rows = states
        if self.embedding is not None:
            rows = torch.cat([states, self.embedding[tokens].to(states.dtype)], dim=-1)
        return functional.linear(rows, self.weight, self.bias)[:, 0].float().sigmoid()


class TailRows(NamedTuple):
    """What one sequence asks of the sequential head for the rows of a level.

    Args:
        states: `[m, hidden]`, the block's states of the place.
        tokens: `[m]`, the tokens before.
        before: `[m, rank]`, what the rows carry.
    """

    states: Tensor
    tokens: Tensor
    before: Tensor


class TailSaid(NamedTuple):
    """What is added to the logits `[m, Vh]`, what rows carry on, and `Level.acceptance`."""

    added: Tensor | None
    carried: Tensor
    acceptance: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """What DSpark computes from token to token, after the block's one pass.

    Args:
        chained: what a drafted token adds to the logits of the next; None for nothing.
        confidence: how sure the head is of a place; None if it does not say.
    """

    chained: Chained | None = None
    confidence: Confidence | None = None

    @property
    def rank(self) -> int:
        """The width of what rows carry."""
        return 0 if self.chained is None else self.chained.rank

    @torch.inference_mode()
    def score(self, work: Sequence[TailRows]) -> list[TailSaid]:
        """See `protocols.Scorer.score`."""
        sizes = [len(one.tokens) for one in work]
        states, tokens, before = (torch.cat([one[part] for one in work]) for part in range(3))
        added: Sequence[Tensor | None] = [None] * len(work)
        acceptance: Sequence[Tensor | None] = [None] * len(work)
        if self.chained is not None:
            said, before = self.chained(states, tokens, before)
            added = said.split(sizes)
        if self.confidence is not None:
            acceptance = self.confidence(states, tokens).split(sizes)
        parts = zip(added, before.split(sizes), acceptance, strict=True)
        return [TailSaid(*part) for part in parts]
