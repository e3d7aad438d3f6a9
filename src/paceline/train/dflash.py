"""DFlash's training (2602.06036): blocks that begin at many anchors of an answer, in one pass.

Row j of a block (from 1) predicts the token j places after the anchor, and its loss weighs
e^(-(j - 1) / gamma): a token counts only where those before it were accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from paceline.train.data import Vocabulary
from paceline.train.dflash_network import BlockNetwork
from paceline.train.objective import Loss, Replayed, cross_entropy, divergence
from paceline.train.store import Captured

MOST_ANCHORS = 512
"""Blocks of a sequence in a step; of a longer answer, so many at even distances."""

ANCHORS_AT_ONCE = 64
"""Blocks of a pass outside of training."""


def weights_of(block_size: int) -> tuple[float, ...]:
    """The weights of the losses, by position; gamma is 4 for blocks up to 8, then 7.

    >>> [round(weight, 4) for weight in weights_of(4)]
    [1.0, 0.7788, 0.6065]
    """
    gamma = 4 if block_size <= 8 else 7
    return tuple(math.exp(-place / gamma) for place in range(block_size - 1))


def anchors_of(one: Captured) -> Tensor:
    """The places of the tokens that drafts of an answer begin with: from the prompt's last on."""
    first, end = max(1, one.num_prompt_tokens - 1), len(one.tokens) - 1
    count = min(end - first, MOST_ANCHORS)
    return first + torch.arange(count) * (end - first) // max(1, count)


@dataclass(eq=False)
class BlockObjective(Replayed):
    """See `objective.Objective`.

    Args:
        module: the head.
        vocabulary: what it can propose.
        weights: of the losses, by position.
        loss, temperature, precision: see `heads.HeadsObjective`.
        write: writes the head into a folder.
    """

    module: BlockNetwork
    vocabulary: Vocabulary
    weights: Sequence[float]
    loss: Loss
    temperature: float
    precision: torch.dtype
    write: Callable[[Path], object]

    def backward(self, batch: Sequence[Captured]) -> list[float]:
        """See `objective.Objective`; one text after another."""
        counts = self._counts(batch)
        sums = [0.0] * len(self.weights)
        for one in batch:
            total = torch.zeros(())
            for place, (logits, labels, said) in enumerate(self._rows(one)):
                kept = int((labels >= 0).sum())
                if not kept:
                    continue
                if said is None:
                    loss = cross_entropy(logits, labels)
                else:
                    loss = divergence(logits, labels, said)
                share = kept / counts[place]
                sums[place] += share * float(loss.detach())
                total = total + self.weights[place] * share * loss
            if total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]
        for parameter in self.module.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return sums

    def _counts(self, batch: Sequence[Captured]) -> list[int]:
        """The rows of the batch whose loss counts, by position."""
        counts = [0] * len(self.weights)
        for one in batch:
            places = self.vocabulary.places(one.tokens.long())
            anchors = anchors_of(one)
            for place in range(len(counts)):
                drafted = anchors + 1 + place
                counts[place] += int((places[drafted[drafted < len(places)]] >= 0).sum())
        return counts

    def _rows(self, one: Captured) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """By position: logits, the places of what they should say, and the target's law there."""
        anchors, tokens = anchors_of(one), one.tokens.long()
        places = self.vocabulary.places(tokens)
        with self.fast():
            context = self.module.context(self.module.read(one).to(self.precision))
            logits = self.module(context, tokens[anchors], anchors)
        target = self._target(one) if self.loss == "divergence" else None
        found = []
        for place in range(len(self.weights)):
            drafted = anchors + 1 + place
            inside = drafted < len(tokens)
            drafted = drafted[inside]
            said = None if target is None else target[drafted - 1]
            found.append((logits[inside, place], places[drafted], said))
        return found

    @torch.no_grad()
    def _target(self, one: Captured) -> Tensor:
        """Log-probabilities of the target after each token, over the draft vocabulary."""
        assert one.hidden.final is not None
        with self.fast():
            rows = self.module.rows
            logits = functional.linear(one.hidden.final.to(rows.dtype), rows)
        return (logits.float() / self.temperature).log_softmax(dim=-1)

    @torch.no_grad()
    def drafts(self, one: Captured) -> Tensor:
        """The greedy draft after each token but the first and those of the prompt, `[T, n]`.

        Row i is about the tokens from i + 2 on, as in `objective.walk`; rows of the prompt are 0.
        """
        tokens = one.tokens.long()
        found = torch.zeros(len(tokens) - 1, len(self.weights), dtype=torch.long)
        first = max(1, one.num_prompt_tokens - 1)
        with self.fast():
            context = self.module.context(self.module.read(one).to(self.precision))
            for anchors in torch.split(torch.arange(first, len(tokens)), ANCHORS_AT_ONCE):
                best = self.module(context, tokens[anchors], anchors).argmax(dim=-1)
                if self.vocabulary.ids is not None:
                    best = self.vocabulary.ids[best]
                found[anchors - 1] = best
        return found
