"""The rows of a target's head and embedding are its own, to the bit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paceline
from paceline.core.target import Need
from paceline.errors import InvalidInput
from paceline.train.target_rows import embedding_rows, head_rows, hidden_size
from tests import tiny_models

IDS = torch.tensor([3, 9, 40])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_rows_are_the_model_s_own(family: str, dtype: torch.dtype) -> None:
    own = tiny_models.build(family).to(dtype)
    model = paceline.load(own)
    assert hidden_size(model) == 32
    whole = own.get_output_embeddings().weight.detach()
    assert torch.equal(head_rows(model, None), whole)
    assert torch.equal(head_rows(model, IDS), whole[IDS])
    assert torch.equal(embedding_rows(model, IDS), own.get_input_embeddings().weight[IDS])


def test_a_scaled_head_gives_scaled_rows() -> None:
    own = tiny_models.build("granite", logits_scaling=4.0)
    rows = head_rows(paceline.load(own), IDS)
    torch.testing.assert_close(rows, own.get_output_embeddings().weight.detach()[IDS] / 4)


def test_a_capped_head_is_refused() -> None:
    own = tiny_models.build("gemma2", final_logit_softcapping=3.0)
    with pytest.raises(InvalidInput, match="is more than a product of its states with its rows"):
        head_rows(paceline.load(own), None)


def test_a_model_that_gives_no_head_is_refused() -> None:
    info = paceline.load(tiny_models.tiny("llama")).target.info
    lacking: Any = SimpleNamespace(
        name="tiny", target=SimpleNamespace(info=replace(info, gives=info.gives - {Need.HEAD}))
    )
    with pytest.raises(InvalidInput, match="tiny does not give its head"):
        hidden_size(lacking)
