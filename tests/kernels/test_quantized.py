"""Products with weights of few bits against those of the weights they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels import quantized
from paceline.kernels.packing import make_linear
from paceline.kernels.quantized import (
    INT4_GROUP,
    AtenProduct,
    Int4Linear,
    Int8Linear,
)
from paceline.kernels.vnni import VnniProduct, is_available
from tests.kernels.test_packing import normal

needs_vnni = pytest.mark.skipif(not is_available(), reason="no AVX-512 VNNI, or no llvmlite")
PRODUCTS = [
    pytest.param(AtenProduct, id="torch"),
    pytest.param(VnniProduct, id="vnni", marks=needs_vnni),
]


def int8(weight: Tensor, bias: Tensor | None, product: Any) -> Int8Linear:
    return Int8Linear(weight, bias)


def int4(weight: Tensor, bias: Tensor | None, product: Any) -> Int4Linear:
    return Int4Linear(weight, bias, product)


@pytest.mark.parametrize("product", PRODUCTS)
class TestWeights:
    """The identity as input gives the weight that a layer stands for, up to bfloat16."""

    ROUNDING = 2.0**-8
    """A share of bfloat16 numbers: the product and, in int4, the zero point are rounded to it."""

    @staticmethod
    def weight_of(layer: Any, inputs: int) -> Tensor:
        found: Tensor = layer(torch.eye(inputs)).T
        return found

    @given(st.integers(0, 10_000), st.sampled_from([(16, 32), (48, 96), (128, 64)]))
    def test_int8_is_within_half_a_step(
        self, product: Any, seed: int, shape: tuple[int, int]
    ) -> None:
        weight = normal(*shape, seed=seed) * normal(shape[0], 1, seed=seed + 1).exp()
        found = self.weight_of(Int8Linear(weight, None), shape[1])
        largest = weight.abs().amax(dim=1, keepdim=True)
        # The scale is rounded to bfloat16, which may also leave the largest weight out of reach.
        step = largest / 127 * (1 + self.ROUNDING)
        bound = step / 2 + self.ROUNDING * largest
        assert bool(((found - weight).abs() <= bound).all())

    @given(
        st.integers(0, 10_000), st.sampled_from([(16, 32), (48, 96), (128, 64)]), st.floats(-3, 3)
    )
    def test_int4_is_within_a_step(
        self, product: Any, seed: int, shape: tuple[int, int], shift: float
    ) -> None:
        weight = normal(*shape, seed=seed) * normal(shape[0], 1, seed=seed + 1).exp() + shift
        found = self.weight_of(int4(weight, None, product), shape[1])
        groups = weight.unflatten(1, (-1, INT4_GROUP))
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        largest = groups.abs().amax(-1, keepdim=True)
        # The range is cut where that is better on the whole, so single weights may be off more.
        bound = 1.5 * (high - low) / 15 + 2 * self.ROUNDING * (largest + high - low)
        error = (found.unflatten(1, (-1, INT4_GROUP)) - groups).abs()
        assert bool((error <= bound).all())
        # On the whole the error is that of rounding to the full range, or less.
        half = (high - low) / 15 / 2 + self.ROUNDING * (largest + high - low)
        assert float(error.square().mean()) <= float(half.square().mean())

    def test_int4_is_better_than_spanning_the_range(self, product: Any) -> None:
        """n = 65,536 normal weights; the fit takes about a sixth off the mean squared error."""
        weight = normal(256, 256)
        found = self.weight_of(int4(weight, None, product), 256)
        groups = weight.unflatten(1, (-1, INT4_GROUP))
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        step = (high - low) / 15
        spanned = ((groups - low) / step).round() * step + low
        error = (found.unflatten(1, (-1, INT4_GROUP)) - groups).square().mean()
        assert float(error) < 0.93 * float((spanned - groups).square().mean())

    @pytest.mark.parametrize("kind", [int8, int4])
    @pytest.mark.parametrize("value", [0.0, 0.75, -3.0])
    def test_a_constant_weight_is_exact(self, product: Any, kind: Any, value: float) -> None:
        weight = torch.full((32, 64), value)
        found = self.weight_of(kind(weight, None, product), 64)
        torch.testing.assert_close(found, weight, rtol=2**-7, atol=1e-6)

    @pytest.mark.parametrize("kind", [int8, int4])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
    def test_products_are_those_of_the_weight_it_stands_for(
        self, product: Any, kind: Any, dtype: torch.dtype
    ) -> None:
        weight, bias = normal(48, 96, dtype=dtype), normal(48, seed=1, dtype=dtype)
        layer = kind(weight, bias, product)
        stands_for = self.weight_of(kind(weight, None, product), 96)
        for rows in (*range(1, 10), 127, 128, 200):
            x = normal(rows, 96, seed=2, dtype=dtype)
            added = normal(rows, 48, seed=3, dtype=dtype)
            exact = x.bfloat16().float() @ stands_for.T + bias.float() + added.float()
            size = x.float().abs() @ stands_for.abs().T + bias.float().abs() + added.float().abs()
            found = layer(x, added)
            assert found.dtype == dtype
            assert bool(((found.float() - exact).abs() <= 4 * 2.0**-8 * size).all())

    def test_bytes(self, product: Any) -> None:
        assert Int8Linear(normal(48, 96), None).num_bytes == 48 * 96 + 48 * 2
        assert int4(normal(48, 96), None, product).num_bytes == 48 * 96 // 2 + 48 * 3 * 2 * 2


@pytest.mark.parametrize("works", [True, False])
def test_torch_multiplies_where_the_processor_cannot(
    works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized, "is_available", lambda: works)
    made: list[Any] = []
    for kind in ("VnniProduct", "AtenProduct"):

        def make(*given: Any, kind: str = kind) -> Any:
            made.append(kind)
            return AtenProduct(*given)

        monkeypatch.setattr(quantized, kind, make)
    make_linear(normal(16, 32), None, "int4")
    assert made == ["VnniProduct" if works else "AtenProduct"]
