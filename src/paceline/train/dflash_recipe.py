"""DFlash heads: what they learn from, and their file."""

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
from paceline.models.heads.speculators_files import save_dflash
from paceline.train.data import Vocabulary
from paceline.train.dflash import BlockObjective, weights_of
from paceline.train.dflash_network import BlockNetwork, BlockShape
from paceline.train.eagle import taps_of
from paceline.train.eagle_network import EPS, ROPE_THETA, Shape
from paceline.train.eagle_recipe import states_of_layers
from paceline.train.objective import Loss
from paceline.train.recipe import Served, check_heads, kept
from paceline.train.target_rows import embedding_rows, head_rows


@dataclass(frozen=True, slots=True)
class DflashRecipe:
    """DFlash; see `train.dflash`. It reads the layers that an EAGLE head reads.

    Args:
        block_size: the rows of a block; it drafts one token less.
        num_layers: of the head.
        draft_vocab: the most frequent tokens that it can propose; None is all.
        own_rows: refused; the output rows are the target's, as in the paper.
        loss: "cross-entropy" with the tokens of the answers, or "divergence" from the target's
            distributions at their places.
        seed: of its first weights.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "dflash"
    learning_rate: ClassVar[float] = 1e-3
    is_model: ClassVar[bool] = False

    block_size: int = 8
    num_layers: int = 2
    draft_vocab: int | None = 8000
    own_rows: bool = False
    loss: Loss = "divergence"
    seed: int = 0

    def __post_init__(self) -> None:
        require_int("block_size", self.block_size, low=2, high=32)
        check_heads(1, self.num_layers, self.draft_vocab, self.loss)
        if self.own_rows:
            raise InvalidInput(
                "a DFlash head uses the target's output rows as they are; leave --own-rows out, or "
                "train eagle"
            )

    def hidden(self, info: TargetInfo) -> Hidden:
        """See `Recipe.hidden`.

        Raises:
            InvalidInput: the target does not give the states that it reads.
        """
        return states_of_layers(info, "a DFlash head")

    def gather(self, model: LanguageModel, vocabulary: Vocabulary) -> dict[str, Tensor]:
        """See `Recipe.gather`. What stands for unknown tokens is the token that ends an answer."""
        info = model.target.info
        mask = min(model.eos_token_ids, default=info.vocab_size - 1)
        return {
            "rows": head_rows(model, vocabulary.ids),
            "embedding": embedding_rows(model, torch.arange(info.vocab_size)),
            "taps": torch.tensor(taps_of(info.num_layers)),
            "mask": torch.tensor([mask]),
        }

    def objective(
        self,
        weights: Mapping[str, Tensor],
        vocabulary: Vocabulary,
        target: Served,
        precision: torch.dtype,
    ) -> BlockObjective:
        """See `Recipe.objective`."""
        rows, taps = weights["rows"], tuple(weights["taps"].tolist())
        layer, mask = Shape.of(rows.shape[1], len(taps)), int(weights["mask"])
        shape = BlockShape(layer, self.num_layers, self.block_size, mask)
        embedding = weights["embedding"].to(precision)
        module = BlockNetwork(shape, embedding, rows.to(precision), seed=self.seed)

        def write(folder: Path) -> None:
            trained = {name: kept(value) for name, value in module.named_parameters()}
            if vocabulary.ids is not None:
                trained["lm_head.weight"] = kept(rows)
            save_dflash(
                folder,
                layers_config(shape, target),
                trained,
                taps=taps,
                block_size=self.block_size,
                mask_token=mask,
                verifier=target.name,
                architectures=list(target.architectures),
                token_ids=vocabulary.ids,
            )

        return BlockObjective(
            module,
            vocabulary,
            weights_of(self.block_size),
            self.loss,
            target.temperature or 1.0,
            precision,
            write,
        )

    def to_json(self) -> dict[str, Any]:
        """See `Recipe.to_json`."""
        return asdict(self)


def layers_config(shape: BlockShape, target: Served) -> Any:
    """The configuration of the head's layers, as transformers has it."""
    from transformers import Qwen3Config

    layer = shape.layer
    return Qwen3Config(
        vocab_size=target.vocab_size,
        hidden_size=layer.hidden_size,
        intermediate_size=layer.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=layer.num_heads,
        num_key_value_heads=layer.num_heads,
        head_dim=layer.head_dim,
        max_position_embeddings=target.max_length or 1 << 17,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=False,
    )
