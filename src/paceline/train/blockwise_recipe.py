"""Blockwise heads: what they learn from, and their file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.checks import require_int
from paceline.core.hidden import Hidden
from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel
from paceline.models.heads.blockwise import Weights, save_blockwise
from paceline.train.blockwise import BlockwiseHeads
from paceline.train.data import Vocabulary
from paceline.train.heads import HIDDEN, HeadsObjective
from paceline.train.objective import Loss
from paceline.train.recipe import Served, check_heads, kept
from paceline.train.target_rows import head_rows


@dataclass(frozen=True, slots=True)
class BlockwiseRecipe:
    """Blockwise heads; see `train.blockwise`.

    Args:
        num_heads: the tokens that they draft: one less than the block of the paper.
        width: of the layer, for each head; None is the width of the target's states.
        draft_vocab: the most frequent tokens that they can propose; None is all.
        own_rows: refused; the output rows are the target's, as in the paper.
        loss: "cross-entropy" with the tokens of the answers, or "divergence" from the target's
            distributions at their places.
        seed: of the first weights.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "blockwise"
    learning_rate: ClassVar[float] = 1e-3
    is_model: ClassVar[bool] = False

    num_heads: int = 4
    width: int | None = None
    draft_vocab: int | None = 8000
    own_rows: bool = False
    loss: Loss = "divergence"
    seed: int = 0

    def __post_init__(self) -> None:
        check_heads(self.num_heads, 1, self.draft_vocab, self.loss)
        if self.width is not None:
            require_int("width", self.width, low=1)
        if self.own_rows:
            raise InvalidInput(
                "blockwise heads use the target's output rows as they are; leave --own-rows out, "
                "or train medusa"
            )

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
        module = BlockwiseHeads(
            rows.to(precision),
            self.num_heads,
            self.width or rows.shape[1],
            shared=True,
            seed=self.seed,
        )

        def write(folder: Path) -> None:
            written = Weights(
                (kept(module.hidden.weight), kept(module.hidden.bias)),
                (kept(module.output.weight), kept(module.output.bias)),
                None if vocabulary.ids is None else kept(rows),
                vocabulary.ids,
            )
            save_blockwise(written, folder, base_model=target.name, vocab_size=target.vocab_size)

        return HeadsObjective(
            module,
            vocabulary,
            (1 / self.num_heads,) * self.num_heads,
            self.loss,
            target.temperature or 1.0,
            precision,
            write,
        )

    def to_json(self) -> dict[str, Any]:
        """See `Recipe.to_json`."""
        return asdict(self)
