"""Hydra heads: what they learn from, and their file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.core.hidden import Hidden
from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel
from paceline.models.heads.hydra import Weights, save_hydra
from paceline.train.data import Vocabulary
from paceline.train.heads import HIDDEN, HeadsObjective, decaying
from paceline.train.hydra import HydraHeads
from paceline.train.objective import Loss
from paceline.train.recipe import Served, check_heads, kept
from paceline.train.target_rows import embedding_rows, head_rows


@dataclass(frozen=True, slots=True)
class HydraRecipe:
    """Hydra; see `train.hydra`.

    Args:
        num_heads: the tokens that it drafts.
        num_layers: residual blocks of a head.
        draft_vocab: the most frequent tokens that it can propose; None is all.
        own_rows: each head has output rows of its own, which are trained too, of all tokens.
            Otherwise all share the target's.
        loss: "cross-entropy" with the tokens of the answers, or "divergence" from the target's
            distributions at their places.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "hydra"
    learning_rate: ClassVar[float] = 1e-3
    is_model: ClassVar[bool] = False

    num_heads: int = 4
    num_layers: int = 1
    draft_vocab: int | None = 8000
    own_rows: bool = False
    loss: Loss = "divergence"

    def __post_init__(self) -> None:
        check_heads(self.num_heads, self.num_layers, self.draft_vocab, self.loss)
        if self.own_rows and self.draft_vocab is not None:
            raise InvalidInput(
                "Hydra heads with output rows of their own have all tokens of the target: give "
                "--draft-vocab all, or leave --own-rows out"
            )

    def hidden(self, info: TargetInfo) -> Hidden:
        """See `Recipe.hidden`."""
        return HIDDEN

    def gather(self, model: LanguageModel, vocabulary: Vocabulary) -> dict[str, Tensor]:
        """See `Recipe.gather`."""
        every = torch.arange(model.target.info.vocab_size)
        return {
            "rows": head_rows(model, vocabulary.ids),
            "embedding": embedding_rows(model, every),
        }

    def objective(
        self,
        weights: Mapping[str, Tensor],
        vocabulary: Vocabulary,
        target: Served,
        precision: torch.dtype,
    ) -> HeadsObjective:
        """See `Recipe.objective`."""
        rows = weights["rows"]
        module = HydraHeads(
            rows.to(precision),
            weights["embedding"].to(precision),
            self.num_heads,
            self.num_layers,
            shared=not self.own_rows,
        )

        def write(folder: Path) -> None:
            written = hydra_weights(module, vocabulary, rows)
            save_hydra(written, folder, base_model=target.name, vocab_size=target.vocab_size)

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


def hydra_weights(module: HydraHeads, vocabulary: Vocabulary, rows: Tensor) -> Weights:
    """The heads as they are written, in bfloat16; shared rows of all tokens are the target's."""
    blocks: list[dict[str, Tensor]] = []
    for first, further in module.blocks:
        tensors = {
            "0.linear.weight": kept(first.linear.weight),
            "0.linear.bias": kept(first.linear.bias),
            "0.res_connection.weight": kept(first.residual.weight),
        }
        for number, block in enumerate(further, 1):
            tensors[f"{number}.linear.weight"] = kept(block.linear.weight)
            tensors[f"{number}.linear.bias"] = kept(block.linear.bias)
        blocks.append(tensors)
    if not module.shared:
        outputs = [kept(own) for own in module.own_rows]
    else:
        outputs = [] if vocabulary.ids is None else [kept(rows)]
    return Weights(blocks, outputs, vocabulary.ids)
