"""Models over tables: what an audit of a loaded model runs on, in a moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.generate.api import LanguageModel
from paceline.testing.table import TableTarget
from paceline.workbench.audit import NamedPrompt


class PassesDiffer(TableTarget):
    """A table whose logits are off in passes of more than one row, as other shapes round."""

    def __init__(self, table: Tensor, error: float) -> None:
        super().__init__(table)
        self.error = error

    def score(self, work: Sequence[Any]) -> Any:
        found = super().score(work)
        if len(work[0].draft):
            for scores in found:
                scores.logits[:, 0] += self.error
        return found


def over(target: Any) -> LanguageModel:
    """A loaded model without files and without a tokenizer."""
    return LanguageModel(target, None, None, frozenset())  # type: ignore[arg-type]


def cycle(p: float, vocab: int = 4) -> Tensor:
    """After token t comes t + 1 with probability p, the others share the rest."""
    rows = torch.full((vocab, vocab), (1 - p) / (vocab - 1), dtype=torch.float64)
    for token in range(vocab):
        rows[token, (token + 1) % vocab] = p
    return rows


@pytest.fixture
def prompts() -> list[NamedPrompt]:
    return [NamedPrompt("a", [0, 1, 2, 3, 0, 1]), NamedPrompt("b", [3, 0, 1, 2, 3])]
