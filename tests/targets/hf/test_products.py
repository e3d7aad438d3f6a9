"""Linear layers that read their weights where they lie, inside a model's modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.kernels import shared
from paceline.kernels.llvm import row_major
from paceline.targets.hf.decoder import HFDecoder
from paceline.targets.hf.products import share_products
from tests.targets.hf.test_choice import logits
from tests.tiny_models import build, own_logits, tokens_of

LARGE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 320, "num_attention_heads": 4}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every product that the loops run; empty where they do not compile."""
    rows: list[int] = []
    real = shared.multiply

    def multiply(x: Tensor, *given: Any) -> Tensor:
        rows.append(len(x))
        return real(x, *given)

    monkeypatch.setattr(shared, "multiply", multiply)
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["granite", "stablelm", "phi"])
def test_a_models_modules_run_by_the_loops(
    family: str, dtype: torch.dtype, counted: list[int]
) -> None:
    model = build(family, **LARGE).to(dtype)
    tokens = tokens_of(9)
    found, expected = logits(model, tokens, cached=4), own_logits(model, tokens)[4:]
    error = (found - expected.float()).norm() / expected.float().norm()
    assert error < (1e-5 if dtype is torch.float32 else 3e-2)
    if row_major.is_available(dtype):
        assert counted.count(5) >= 8  # the projections of two layers, in the scoring pass
    before = model.model.layers[0].self_attn.q_proj
    assert "forward" not in vars(before)  # the user's own module


def test_hooks_and_other_classes_keep_their_place(counted: list[int]) -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layers: Any = nn.Sequential(nn.Linear(256, 256), Doubled(256, 256), nn.Linear(256, 256))
    layers[0].register_forward_hook(lambda module, args, output: output + 1)
    layers[2].forward = lambda x: 3 * x
    x = torch.randn(2, 3, 256)
    with torch.inference_mode():
        expected = layers(x)
        share_products(layers)
        torch.testing.assert_close(layers(x), expected)
        layers[0].weight = nn.Parameter(-layers[0].weight)
        expected = nn.functional.linear(x, layers[0].weight, layers[0].bias) + 1
        torch.testing.assert_close(layers[0](x), expected)
        layers[0].bias = None
        torch.testing.assert_close(layers[0](x), nn.functional.linear(x, layers[0].weight) + 1)
    assert counted in ([6, 6, 6], [])


def test_a_model_that_is_cast_later_is_followed() -> None:
    model, tokens = build("granite", **LARGE), tokens_of(9)
    logits(model, tokens)
    model.double()
    expected = own_logits(model, tokens)[4:]
    torch.testing.assert_close(logits(model, tokens, cached=4), expected, rtol=0, atol=1e-9)
    assert HFDecoder(model).dtype is torch.float64
