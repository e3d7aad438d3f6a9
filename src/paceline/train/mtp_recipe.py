"""MTP modules: what they learn from, and their file."""

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
from paceline.models.heads.speculators_files import save_mtp
from paceline.train.data import Vocabulary
from paceline.train.eagle_network import Shape
from paceline.train.eagle_recipe import layer_config
from paceline.train.feature import FeatureObjective
from paceline.train.heads import HIDDEN
from paceline.train.mtp import MtpNetwork, weights_of
from paceline.train.objective import Loss
from paceline.train.recipe import Served, check_loss, kept
from paceline.train.target_rows import embedding_rows, head_rows


@dataclass(frozen=True, slots=True)
class MtpRecipe:
    """A multi-token prediction module for a model that has none; see `train.mtp`.

    Args:
        num_steps: the tokens that it drafts in training. In decoding it can draft more.
        draft_vocab: None: it can propose all tokens, with the target's own output head.
        own_rows: refused, for the same reason.
        loss: "cross-entropy" with the tokens of the answers, or "divergence" from the target's
            distributions at their places.
        seed: of its first weights.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "mtp"
    learning_rate: ClassVar[float] = 1e-3
    is_model: ClassVar[bool] = False

    num_steps: int = 3
    draft_vocab: int | None = None
    own_rows: bool = False
    loss: Loss = "cross-entropy"
    seed: int = 0

    def __post_init__(self) -> None:
        require_int("num_steps", self.num_steps, low=1, high=16)
        check_loss(self.loss)
        if self.draft_vocab is not None or self.own_rows:
            raise InvalidInput(
                "an MTP module shares the target's whole output head; leave --draft-vocab and "
                "--own-rows out, or train eagle"
            )

    def hidden(self, info: TargetInfo) -> Hidden:
        """See `Recipe.hidden`."""
        return HIDDEN

    def gather(self, model: LanguageModel, vocabulary: Vocabulary) -> dict[str, Tensor]:
        """See `Recipe.gather`."""
        every = torch.arange(model.target.info.vocab_size)
        return {"rows": head_rows(model, None), "embedding": embedding_rows(model, every)}

    def objective(
        self,
        weights: Mapping[str, Tensor],
        vocabulary: Vocabulary,
        target: Served,
        precision: torch.dtype,
    ) -> FeatureObjective:
        """See `Recipe.objective`."""
        rows, embedding = weights["rows"].to(precision), weights["embedding"].to(precision)
        shape = Shape.of(rows.shape[1])
        module = MtpNetwork(shape, embedding, rows, seed=self.seed)

        def write(folder: Path) -> None:
            save_mtp(
                folder,
                layer_config(shape, target),
                {name: kept(value) for name, value in module.named_parameters()},
                verifier=target.name,
                architectures=list(target.architectures),
                num_draft_tokens=self.num_steps,
            )

        return FeatureObjective(
            module,
            vocabulary,
            weights_of(self.num_steps),
            self.loss,
            target.temperature or 1.0,
            precision,
            write,
        )

    def to_json(self) -> dict[str, Any]:
        """See `Recipe.to_json`."""
        return asdict(self)
