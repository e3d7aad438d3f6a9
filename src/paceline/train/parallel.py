"""PARD's training (An et al. 2504.18583): a draft model learns to guess several tokens in a pass.

A row of depth i belongs to an anchor, the token at place p: it holds the mask token at the position
p + i, sees the text up to the anchor and the masks of the same anchor up to itself, and predicts
token p + i + 1. Depth 0 is the text itself. All rows of a text go through one pass.

Conditional drop (the paper's COD) makes that affordable: depth i keeps the share `keep`^i of the
anchors, and `floor` at least, each among those that depth i - 1 has kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paceline.train.objective import Replayed
from paceline.train.store import Captured

ANCHORS_AT_ONCE = 64
"""Anchors of a pass outside of training."""


def num_kept(count: int, depth: int, keep: float, floor: float) -> int:
    """The anchors that a depth keeps of so many.

    >>> [num_kept(100, depth, 0.7, 0.2) for depth in range(8)]
    [100, 70, 48, 34, 24, 20, 20, 20]
    """
    return int(count * max(keep**depth, floor))


class Rows(NamedTuple):
    """The rows of one text.

    Args:
        tokens, positions: what goes in, `[n]`: the text, then the masks.
        sees: which rows each row sees, `[n, n]`.
        anchors, depths: of each row, `[n]`; a row of the text is its own anchor.
    """

    tokens: Tensor
    positions: Tensor
    sees: Tensor
    anchors: Tensor
    depths: Tensor


def rows_of(text: Tensor, kept: Sequence[Tensor], mask_token: int) -> Rows:
    """The rows of a text without its last token, and of the anchors of the depths from 1 on.

    Args:
        text: `[T]`.
        kept: the anchors of each depth, ascending, those of a depth among those of the one before.
        mask_token: what stands for tokens that are not known yet.
    """
    length = len(text)
    anchors = torch.cat([torch.arange(length), *kept])
    sizes = torch.tensor([length, *map(len, kept)])
    depths = torch.arange(len(sizes)).repeat_interleave(sizes)
    tokens = torch.cat([text, torch.full((len(anchors) - length,), mask_token)])
    in_text = depths == 0
    before = in_text & (anchors <= anchors[:, None])
    same = ~in_text & (anchors == anchors[:, None]) & (depths <= depths[:, None])
    return Rows(tokens, anchors + depths, before | same, anchors, depths)


@dataclass(eq=False)
class ParallelObjective(Replayed):
    """See `objective.Objective`.

    Args:
        module: a causal language model of transformers, all of which is trained.
        num_steps: the tokens that it guesses in a pass, the next one included.
        mask_token: what stands for tokens that are not known yet.
        keep, floor: of the conditional drop.
        seed: of the anchors that are kept.
        precision: what products are computed in; parameters stay in float32.
        write: writes the model into a folder.
    """

    module: Any
    num_steps: int
    mask_token: int
    keep: float
    floor: float
    seed: int
    precision: torch.dtype
    write: Callable[[Path], object]

    def backward(self, batch: Sequence[Captured]) -> list[float]:
        """See `objective.Objective`: the mean over all rows; one text after another."""
        random = torch.Generator().manual_seed(self._seed_of(batch))
        kept = [self.anchors(one, random) for one in batch]
        counts = [sum(len(own[depth]) for own in kept) for depth in range(self.num_steps)]
        sums = [0.0] * self.num_steps
        for one, anchors in zip(batch, kept, strict=True):
            tokens = one.tokens.long()
            rows = rows_of(tokens[:-1], anchors[1:], self.mask_token)
            logits = self._logits(rows)
            is_asked = (rows.depths > 0) | torch.isin(rows.anchors, anchors[0])
            labels = tokens[rows.positions[is_asked] + 1]
            losses = functional.cross_entropy(logits[is_asked].float(), labels, reduction="none")
            (losses.sum() / sum(counts)).backward()  # type: ignore[no-untyped-call]
            by_depth = torch.zeros(self.num_steps).index_add_(
                0, rows.depths[is_asked], losses.detach()
            )
            sums = [own + float(loss) for own, loss in zip(sums, by_depth, strict=True)]
        return [own / max(1, count) for own, count in zip(sums, counts, strict=True)]

    def anchors(self, one: Captured, random: torch.Generator) -> list[Tensor]:
        """The anchors of each depth: those of depth 0 are all whose next token is in the answer."""
        kept = torch.arange(max(0, one.num_prompt_tokens - 1), len(one.tokens) - 1)
        count, found = len(kept), [kept]
        for depth in range(1, self.num_steps):
            kept = kept[kept + depth + 1 < len(one.tokens)]
            wanted = num_kept(count, depth, self.keep, self.floor)
            chosen = torch.randperm(len(kept), generator=random)[:wanted]
            kept = kept[chosen.sort().values]
            found.append(kept)
        return found

    def _seed_of(self, batch: Sequence[Captured]) -> int:
        """Another one in each epoch, since the order differs; the same after a break."""
        tokens = torch.cat([one.tokens for one in batch])
        return self.seed + zlib.crc32(tokens.numpy().tobytes())

    def _logits(self, rows: Rows) -> Tensor:
        hidden = torch.zeros(rows.sees.shape).masked_fill(~rows.sees, -torch.inf)
        with self.fast():
            found = self.module(
                input_ids=rows.tokens[None],
                position_ids=rows.positions[None],
                attention_mask=hidden[None, None],
                use_cache=False,
            )
        logits: Tensor = found.logits[0]
        return logits

    @torch.no_grad()
    def drafts(self, one: Captured) -> Tensor:
        """The greedy draft after each token of the answer but the first, `[T, steps]`.

        Row i is about the tokens from i + 2 on, as in `objective.walk`; rows of the prompt are 0.
        """
        tokens = one.tokens.long()
        found = torch.zeros(len(tokens) - 1, self.num_steps, dtype=torch.long)
        first = max(1, one.num_prompt_tokens - 1)
        for anchors in torch.split(torch.arange(first, len(tokens)), ANCHORS_AT_ONCE):
            text = tokens[: int(anchors[-1]) + 1]
            rows = rows_of(text, [anchors] * (self.num_steps - 1), self.mask_token)
            best = self._logits(rows).argmax(dim=-1)
            for depth in range(self.num_steps):
                own = (rows.depths == depth) & torch.isin(rows.anchors, anchors)
                found[anchors - 1, depth] = best[own]
        return found
