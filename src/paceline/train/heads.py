"""Heads on the target's final state, which each predict one token: their loss, and their replay.

Head k (from 0) of a row whose token is i predicts token i + 2 + k: token i + 1 is the target's own.
Kinds of heads differ in how they get from the final state, and perhaps the tokens between, to the
state that goes into the output rows (`Heads.state`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.hidden import Hidden
from paceline.economics.stats import AcceptanceCounts
from paceline.train.data import Vocabulary
from paceline.train.objective import Loss, Replayed, cross_entropy, divergence, walk
from paceline.train.store import Captured

HIDDEN = Hidden(final=True)
"""The states that the heads read."""

DECAY = 0.8
"""The weight of a head's loss, relative to the head before it (Medusa's lambda_k)."""

ROWS_AT_ONCE = 1024
"""Rows of one product with the output head outside of training."""


def decaying(num_heads: int) -> tuple[float, ...]:
    """The weights of the heads' losses in Medusa.

    >>> decaying(3)
    (1.0, 0.8, 0.6400000000000001)
    """
    return tuple(DECAY**head for head in range(num_heads))


class Heads(nn.Module):
    """What all kinds of heads have: output rows.

    Args:
        rows: those of the target's output head that belong to the draft vocabulary, `[Vd, hidden]`.
        num_heads: the number of drafted tokens.
        shared: all heads use `rows` as they are, in place of rows of their own.
    """

    rows: Tensor

    def __init__(self, rows: Tensor, num_heads: int, *, shared: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.register_buffer("rows", rows, persistent=False)
        own = [] if shared else [rows.float().clone() for _ in range(num_heads)]
        self.own_rows = nn.ParameterList(own)

    @property
    def shared(self) -> bool:
        """Whether all heads use the target's rows."""
        return not len(self.own_rows)

    def state(self, final: Tensor, following: Tensor, head: int) -> Tensor:
        """What goes into the output rows of a head.

        Args:
            final: the target's states after the final norm, `[n, hidden]`.
            following: the tokens after each row's, of which it may read the first `head + 1`,
                `[n, head + 1 or more]`.
            head: which one.

        Returns:
            `[n, hidden]`.
        """
        raise NotImplementedError

    def states(self, final: Tensor, following: Tensor) -> list[Tensor]:
        """The states of all heads."""
        return [self.state(final, following, head) for head in range(self.num_heads)]

    def logits(self, states: Tensor, head: int) -> Tensor:
        """The logits `[n, Vd]` of one head, from what `state` gives."""
        rows = self.rows if self.shared else self.own_rows[head]
        return functional.linear(states, rows.to(states.dtype))


class Batch(NamedTuple):
    """Rows of several sequences, one after another.

    Args:
        states: after the final norm, `[n, hidden]`.
        tokens: the token after each row's, `[n]`.
        following: its place in the draft vocabulary, -1 for a token that it lacks, `[n]`.
        left: how many rows of the same sequence come after each, `[n]`.
    """

    states: Tensor
    tokens: Tensor
    following: Tensor
    left: Tensor

    def pairs(self, head: int) -> tuple[Tensor, Tensor]:
        """The rows that a head reads, and those after whose token comes what it predicts."""
        read = (self.left > head).nonzero()[:, 0]
        return read, read + 1 + head

    def windows(self, size: int) -> Tensor:
        """The tokens after each row's, `[n, size]`; after the end of a sequence, any."""
        places = torch.arange(len(self.tokens))[:, None] + torch.arange(size)
        return self.tokens[places.clamp(max=len(self.tokens) - 1)]


def batch_of(sequences: Sequence[Captured], vocabulary: Vocabulary) -> Batch:
    """The rows that drafts of the answers are made from: the last two of the prompt, and so on."""
    states, tokens, left = [], [], []
    for one in sequences:
        first = max(0, one.num_prompt_tokens - 2)
        assert one.hidden.final is not None
        rows = one.hidden.final[first:]
        states.append(rows)
        tokens.append(one.tokens[first + 1 :].long())
        left.append(torch.arange(len(rows) - 1, -1, -1))
    after = torch.cat(tokens)
    return Batch(torch.cat(states), after, vocabulary.places(after), torch.cat(left))


@dataclass(eq=False)
class HeadsObjective(Replayed):
    """See `objective.Objective`.

    Args:
        module: the heads.
        vocabulary: what they can propose.
        weights: of the heads' losses.
        loss: how the heads' distributions are compared with the target's.
        temperature: of the target's distribution, for "divergence".
        precision: what products are computed in; parameters stay in float32.
        write: writes the heads into a folder.
    """

    module: Heads
    vocabulary: Vocabulary
    weights: Sequence[float]
    loss: Loss
    temperature: float
    precision: torch.dtype
    write: Callable[[Path], object]

    def backward(self, batch: Sequence[Captured]) -> list[float]:
        """See `objective.Objective`; one head after another, so that one's logits are in memory."""
        rows = batch_of(batch, self.vocabulary)
        target = self._target(rows) if self.loss == "divergence" else None
        with self.fast():
            following = rows.windows(self.module.num_heads)
            states = self.module.states(self._taken(rows.states), following)
        # The gradient of each head's state first, then of what they have in common at once.
        leaves = [one.detach().requires_grad_() for one in states]
        losses = []
        for head, leaf in enumerate(leaves):
            read, said = rows.pairs(head)
            with self.fast():
                logits = self.module.logits(leaf[read], head)
            labels = rows.following[said]
            if target is None:
                loss = cross_entropy(logits, labels)
            else:
                loss = divergence(logits, labels, target[said])
            (self.weights[head] * loss).backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
        torch.autograd.backward(states, [leaf.grad for leaf in leaves])
        return losses

    @torch.no_grad()
    def _target(self, rows: Batch) -> Tensor:
        """Log-probabilities of the target after each row, over the draft vocabulary."""
        with self.fast():
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
        """The greedy draft after the rows of `batch_of`, `[n, heads]`; each head sees its own."""
        rows = batch_of([one], self.vocabulary)
        found = []
        parts = (torch.split(part, ROWS_AT_ONCE) for part in (rows.states, rows.tokens))
        for states, tokens in zip(*parts, strict=True):
            following, taken = tokens[:, None], self._taken(states)
            for head in range(self.module.num_heads):
                with self.fast():
                    logits = self.module.logits(self.module.state(taken, following, head), head)
                best = logits.argmax(dim=-1, keepdim=True)
                if self.vocabulary.ids is not None:
                    best = self.vocabulary.ids[best]
                following = torch.cat([following, best], dim=1)
            found.append(following[:, 1:])
        return torch.cat(found)

    def _taken(self, states: Tensor) -> Tensor:
        return states.to(self.precision)
