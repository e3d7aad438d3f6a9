"""What is different from one kind of drafter to another: states, objective, file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.checks import require_int
from paceline.core.hidden import Hidden
from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel
from paceline.train.data import Vocabulary
from paceline.train.objective import Objective

LOSSES = ("cross-entropy", "divergence")


def check_loss(loss: Any) -> None:
    """Refuse a loss that there is not.

    Raises:
        InvalidInput: names those that there are.
    """
    if loss not in LOSSES:
        raise InvalidInput(f"loss must be one of {', '.join(LOSSES)}; it is {loss!r}")


def check_heads(num_heads: int, num_layers: int, draft_vocab: int | None, loss: Any) -> None:
    """Refuse settings of heads that are outside their ranges.

    Raises:
        InvalidInput: names the setting.
    """
    require_int("num_heads", num_heads, low=1, high=16)
    require_int("num_layers", num_layers, low=1, high=8)
    if draft_vocab is not None:
        require_int("draft_vocab", draft_vocab, low=16)
    check_loss(loss)


def kept(weight: Tensor) -> Tensor:
    """A weight as it is written: in bfloat16."""
    return weight.detach().to(torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Served:
    """The target, as far as a drafter's file and loss speak of it.

    Args:
        name: for the drafter's file.
        vocab_size: V.
        temperature: at which it will be served.
        architectures: as its config.json names them.
        max_length: its context; None where it has no limit.
    """

    name: str
    vocab_size: int
    temperature: float
    architectures: tuple[str, ...] = ()
    max_length: int | None = None


class Recipe(Protocol):
    """A kind of drafter with its settings."""

    @property
    def name(self) -> str:
        """The drafter's name, which the command and its file carry."""
        ...

    @property
    def learning_rate(self) -> float:
        """The highest that suits it, where none is given."""
        ...

    @property
    def is_model(self) -> bool:
        """Whether it is written as a draft model rather than as a head."""
        ...

    @property
    def draft_vocab(self) -> int | None:
        """The tokens that it can propose; None is all."""
        ...

    def hidden(self, info: TargetInfo) -> Hidden:
        """The states that it learns from."""
        ...

    def gather(self, model: LanguageModel, vocabulary: Vocabulary) -> dict[str, Tensor]:
        """The target's own weights that it needs from then on."""
        ...

    def objective(
        self,
        weights: Mapping[str, Tensor],
        vocabulary: Vocabulary,
        target: Served,
        precision: torch.dtype,
    ) -> Objective:
        """The drafter before its first step."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Its settings, as plain JSON values."""
        ...
