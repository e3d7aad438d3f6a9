"""Medusa heads: what they learn from, and their file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.core.hidden import Hidden
from paceline.core.target import TargetInfo
from paceline.generate.api import LanguageModel
from paceline.models.heads.medusa import Weights, save_medusa
from paceline.train.data import Vocabulary
from paceline.train.heads import HIDDEN, HeadsObjective, decaying
from paceline.train.medusa import MedusaHeads
from paceline.train.objective import Loss
from paceline.train.recipe import Served, check_heads, kept
from paceline.train.target_rows import head_rows


@dataclass(frozen=True, slots=True)
class MedusaRecipe:
    """Medusa-1; see `train.medusa`.

    Args:
        num_heads: the tokens that it drafts.
        num_layers: residual blocks of a head.
        draft_vocab: the most frequent tokens that it can propose; None is all.
        own_rows: each head has output rows of its own, which are trained too. Otherwise all share
            the target's.
        loss: "cross-entropy" with the tokens of the answers, or "divergence" from the target's
            distributions at their places.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "medusa"
    learning_rate: ClassVar[float] = 3e-3
    is_model: ClassVar[bool] = False

    num_heads: int = 4
    num_layers: int = 1
    draft_vocab: int | None = 8000
    own_rows: bool = False
    loss: Loss = "divergence"

    def __post_init__(self) -> None:
        check_heads(self.num_heads, self.num_layers, self.draft_vocab, self.loss)

    def hidden(self, info: TargetInfo) -> Hidden:
        """See `Recipe.hidden`."""
        return HIDDEN

    def gather(self, model: LanguageModel, vocabulary: Vocabulary) -> dict[str, Tensor]:
        """See `Recipe.gather`."""
        return {"rows": head_rows(model, vocabulary.ids)}

    def objective(
        self,
        weights: Mapping[str, Tensor],
        vocabulary: Vocabulary,
        target: Served,
        precision: torch.dtype,
    ) -> HeadsObjective:
        """See `Recipe.objective`."""
        rows = weights["rows"]
        module = MedusaHeads(
            rows.to(precision), self.num_heads, self.num_layers, shared=not self.own_rows
        )

        def write(folder: Path) -> None:
            written = medusa_weights(module, vocabulary, rows)
            save_medusa(written, folder, base_model=target.name, vocab_size=target.vocab_size)

        return HeadsObjective(
            module,
            vocabulary,
            decaying(self.num_heads),
            self.loss,
            target.temperature or 1.0,
            precision,
            write,
        )

    def to_json(self) -> dict[str, Any]:
        """See `Recipe.to_json`."""
        return asdict(self)


def medusa_weights(module: MedusaHeads, vocabulary: Vocabulary, rows: Tensor) -> Weights:
    """The heads as they are written, in bfloat16.

    Shared rows are written only where they are a part of the target's: all of them it has itself.
    """
    blocks = [
        [(kept(block.linear.weight), kept(block.linear.bias)) for block in head]
        for head in module.layers
    ]
    if not module.shared:
        outputs = [kept(own) for own in module.own_rows]
    else:
        outputs = [] if vocabulary.ids is None else [kept(rows)]
    return Weights(blocks, outputs, vocabulary.ids)
