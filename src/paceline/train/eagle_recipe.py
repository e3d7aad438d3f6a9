"""EAGLE-3 heads: what they learn from, and their file, which vLLM serves."""

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
from paceline.models.heads.eagle3 import Eagle3Settings
from paceline.models.heads.speculators import save_eagle3
from paceline.train.data import Vocabulary
from paceline.train.eagle import decaying, hidden_of, taps_of
from paceline.train.eagle_network import EPS, ROPE_THETA, EagleNetwork, Shape
from paceline.train.feature import FeatureObjective
from paceline.train.objective import Loss
from paceline.train.recipe import Served, check_loss, kept
from paceline.train.target_rows import embedding_rows, head_rows


@dataclass(frozen=True, slots=True)
class EagleRecipe:
    """EAGLE-3 with the residual of its layer taken after the norm; see `train.eagle`.

    Args:
        num_steps: the tokens that it drafts in training. In decoding it can draft more.
        draft_vocab: the most frequent tokens that it can propose; None is all.
        own_rows: its output rows are trained too; otherwise they stay the target's.
        loss: "cross-entropy" with the tokens of the answers, or "divergence" from the target's
            distributions at their places.
        seed: of its first weights.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "eagle"
    learning_rate: ClassVar[float] = 1e-3
    is_model: ClassVar[bool] = False

    num_steps: int = 3
    draft_vocab: int | None = 8000
    own_rows: bool = False
    loss: Loss = "divergence"
    seed: int = 0

    def __post_init__(self) -> None:
        require_int("num_steps", self.num_steps, low=1, high=16)
        if self.draft_vocab is not None:
            require_int("draft_vocab", self.draft_vocab, low=16)
        check_loss(self.loss)

    def hidden(self, info: TargetInfo) -> Hidden:
        """See `Recipe.hidden`.

        Raises:
            InvalidInput: the target does not give the states that it reads.
        """
        return states_of_layers(info, "an EAGLE head")

    def gather(self, model: LanguageModel, vocabulary: Vocabulary) -> dict[str, Tensor]:
        """See `Recipe.gather`."""
        info = model.target.info
        return {
            "rows": head_rows(model, vocabulary.ids),
            "embedding": embedding_rows(model, torch.arange(info.vocab_size)),
            "taps": torch.tensor(taps_of(info.num_layers)),
        }

    def objective(
        self,
        weights: Mapping[str, Tensor],
        vocabulary: Vocabulary,
        target: Served,
        precision: torch.dtype,
    ) -> FeatureObjective:
        """See `Recipe.objective`."""
        rows, taps = weights["rows"], tuple(weights["taps"].tolist())
        shape = Shape.of(rows.shape[1], len(taps))
        module = EagleNetwork(
            shape,
            weights["embedding"].to(precision),
            rows.to(precision),
            own_rows=self.own_rows,
            seed=self.seed,
        )

        def write(folder: Path) -> None:
            trained = {name: kept(value) for name, value in module.named_parameters()}
            trained["lm_head.weight"] = trained.pop("rows", kept(rows))
            settings = Eagle3Settings(
                layer_config(shape, target), layers=taps, norm_before_residual=True
            )
            save_eagle3(
                folder,
                settings,
                trained,
                verifier=target.name,
                architectures=list(target.architectures),
                num_draft_tokens=self.num_steps,
                token_ids=vocabulary.ids,
            )

        return FeatureObjective(
            module,
            vocabulary,
            decaying(self.num_steps),
            self.loss,
            target.temperature or 1.0,
            precision,
            write,
        )

    def to_json(self) -> dict[str, Any]:
        """See `Recipe.to_json`."""
        return asdict(self)


def layer_config(shape: Shape, target: Served) -> Any:
    """The configuration of the head's layer, as transformers has it."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=target.max_length or 1 << 17,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def states_of_layers(info: TargetInfo, reader: str) -> Hidden:
    """The states that a head of this kind learns from.

    Raises:
        InvalidInput: the target does not give them.
    """
    asked = hidden_of(info.num_layers)
    if not info.num_layers or info.lacks({asked}):
        raise InvalidInput(
            f"{info.name} does not give the hidden states of its layers, which {reader} reads; "
            "train medusa, or use another model"
        )
    return asked
