"""Draft models that guess several tokens in a pass: what they begin from, and their files."""

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
from paceline.models import resolve
from paceline.train.data import Vocabulary
from paceline.train.heads import HIDDEN
from paceline.train.objective import Loss
from paceline.train.parallel import ParallelObjective
from paceline.train.recipe import Served


@dataclass(frozen=True, slots=True)
class ParallelRecipe:
    """PARD: a small model with the target's tokens, trained further; see `train.parallel`.

    Args:
        draft_model: the model that it begins from: a known name or a folder.
        num_steps: the tokens that it guesses in a pass.
        keep: the share of anchors of a depth that the next one keeps.
        floor: the share that every depth keeps.
        draft_vocab: None: it has its own output head.
        own_rows: refused, for the same reason.
        loss: "cross-entropy" with the tokens of the answers.
        seed: of the anchors that are kept.

    Raises:
        InvalidInput: a setting outside its range.
    """

    name: ClassVar[str] = "parallel"
    learning_rate: ClassVar[float] = 1e-4
    is_model: ClassVar[bool] = True

    draft_model: str = ""
    num_steps: int = 8
    keep: float = 0.7
    floor: float = 0.2
    draft_vocab: int | None = None
    own_rows: bool = False
    loss: Loss = "cross-entropy"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.draft_model:
            raise InvalidInput(
                "a parallel drafter begins from a small model with the same tokens; name it with "
                "--draft-model"
            )
        require_int("num_steps", self.num_steps, low=2, high=32)
        for setting in ("keep", "floor"):
            if not 0 < getattr(self, setting) <= 1:
                raise InvalidInput(
                    f"{setting} must be above 0 and at most 1; it is {getattr(self, setting)}"
                )
        if self.draft_vocab is not None or self.own_rows:
            raise InvalidInput(
                "a parallel drafter is a model with an output head of its own; leave --draft-vocab "
                "and --own-rows out"
            )
        if self.loss != "cross-entropy":
            raise InvalidInput(
                f"a parallel drafter learns by cross-entropy; leave --loss {self.loss} out"
            )

    def hidden(self, info: TargetInfo) -> Hidden:
        """See `Recipe.hidden`. It reads none; those that a head would read are kept."""
        return HIDDEN

    def gather(self, model: LanguageModel, vocabulary: Vocabulary) -> dict[str, Tensor]:
        """See `Recipe.gather`: nothing of the target but its tokens.

        Raises:
            InvalidInput: the draft model has other tokens.
        """
        from transformers import AutoTokenizer

        folder = self._folder()
        own = AutoTokenizer.from_pretrained(folder).get_vocab()
        if model.tokenizer is None or own != model.tokenizer.get_vocab():
            raise InvalidInput(
                f"{self.draft_model} has other tokens than {model.name}; a parallel drafter needs "
                "a draft model with the same ones"
            )
        return {"mask": torch.tensor([mask_token(folder, len(own))])}

    def objective(
        self,
        weights: Mapping[str, Tensor],
        vocabulary: Vocabulary,
        target: Served,
        precision: torch.dtype,
    ) -> ParallelObjective:
        """See `Recipe.objective`."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder, mask = self._folder(), int(weights["mask"])
        module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        module.config.pard_token = mask
        module.config.spd_type = "pard"

        def write(out: Path) -> None:
            kept = {name: value.to(torch.bfloat16) for name, value in module.state_dict().items()}
            module.config.dtype = torch.bfloat16
            module.save_pretrained(out, state_dict=kept)
            AutoTokenizer.from_pretrained(folder).save_pretrained(out)

        return ParallelObjective(
            module.train(),
            self.num_steps,
            mask,
            self.keep,
            self.floor,
            self.seed,
            precision,
            write,
        )

    def to_json(self) -> dict[str, Any]:
        """See `Recipe.to_json`."""
        return asdict(self)

    def _folder(self) -> Path:
        return resolve(self.draft_model, dtype=torch.float32).folder


def mask_token(folder: Path, num_tokens: int) -> int:
    """The token that stands for those not known yet: one that no text has, or else the last."""
    from transformers import AutoConfig

    size = int(AutoConfig.from_pretrained(folder).vocab_size)
    return min(num_tokens, size - 1)
