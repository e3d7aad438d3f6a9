"""The compiled operations on rows against the same in float64, and against torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from paceline.kernels import row_operations
from paceline.kernels.llvm.row_operations import is_available
from paceline.kernels.row_operations import gated, rms_norm, rotate
from tests.kernels.test_packing import normal

BF16 = torch.bfloat16
DTYPES = [torch.float32, BF16]


@pytest.fixture(params=[True, False], ids=["compiled", "torch"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not is_available():
        pytest.skip("no AVX-512, or no llvmlite")
    monkeypatch.setattr(row_operations, "is_chosen", lambda: request.param)


def close(found: Tensor, exact: Tensor, dtype: torch.dtype, roundings: int, size: Any = 0) -> None:
    """Within so many roundings of a result, or of terms of that size."""
    assert found.dtype is dtype
    assert found.shape == exact.shape
    unit = 2.0**-8 if dtype is BF16 else 2.0**-22
    assert bool(((found.double() - exact).abs() <= roundings * unit * (exact.abs() + size)).all())


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 16), (1, 48), (5, 896), (70, 896), (2, 3, 64), (3, 20)])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norm(dtype: torch.dtype, shape: tuple[int, ...], offset: float) -> None:
    x, weight = normal(*shape, dtype=dtype), normal(shape[-1], seed=1, dtype=dtype)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    close(rms_norm(x, weight, 1e-6, offset), exact * (offset + weight.double()), dtype, 2)


@pytest.mark.usefixtures("compiled")
def test_norm_of_small_numbers_and_of_rows_from_anywhere() -> None:
    weight = torch.ones(32, dtype=BF16)
    assert bool((rms_norm(torch.zeros(1, 32, dtype=BF16), weight, 1e-5) == 0).all())
    tiny = torch.full((1, 32), 1e-3, dtype=BF16)
    expected = tiny.double() / (tiny.double().square() + 1e-5).sqrt()
    close(rms_norm(tiny, weight, 1e-5), expected, BF16, 2)
    x = normal(6, 70, dtype=BF16)[::2, 1:33]
    assert torch.equal(rms_norm(x, weight, 1e-5), rms_norm(x.clone(), weight, 1e-5))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 32), (6, 14, 64), (3, 5, 128), (40, 9, 96), (2, 3, 8)])
def test_rotation(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    rows, heads, width = shape
    angle = normal(rows, 1, width // 2, seed=1).repeat(1, 1, 2)
    cos = angle.cos().to(dtype)
    sin = (angle.sin() * torch.cat([-torch.ones(width // 2), torch.ones(width // 2)])).to(dtype)
    x = normal(rows, heads + 2, width, dtype=dtype)[:, 1:-1]  # heads of wider rows
    wide = x.double()
    swapped = torch.cat([wide[..., width // 2 :], wide[..., : width // 2]], dim=-1)
    exact = wide * cos.double() + swapped * sin.double()
    size = (wide * cos.double()).abs() + (swapped * sin.double()).abs()
    found = rotate(x, cos, sin)
    close(found, exact.transpose(0, 1), dtype, 2, size.transpose(0, 1))
    assert torch.equal(rotate(x.transpose(1, 2).clone().transpose(1, 2), cos, sin), found)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", [silu, gelu])
@pytest.mark.parametrize("shape", [(0, 32), (1, 32), (7, 9728), (3, 40)])
def test_gates(dtype: torch.dtype, activation: Any, shape: tuple[int, int]) -> None:
    x = 4 * normal(*shape, dtype=dtype)
    before = x.clone()
    gate, up = x.double().chunk(2, dim=-1)
    # The tail of gelu is a difference of numbers that are nearly equal.
    size = (gate * up).abs() if activation is gelu else 0
    close(gated(x, activation), activation(gate) * up, dtype, 3, size)
    assert torch.equal(x, before)


@pytest.mark.usefixtures("compiled")
def test_gates_far_from_zero_and_no_numbers() -> None:
    gate = torch.tensor([-3e38, -200.0, -90.0, -20.0, 20.0, 90.0, 200.0, torch.nan])
    x = torch.cat([gate, gate, torch.ones(16)]).to(BF16)[None]
    found = gated(x, silu)[0].float()
    assert found[:3].tolist() == pytest.approx([0.0] * 3, abs=1e-30)
    assert float(found[3]) == pytest.approx(float(silu(torch.tensor(-20.0))), rel=2**-7)
    assert found[4:7].tolist() == gate[4:7].to(BF16).tolist()
    assert bool(found[7].isnan())


@pytest.mark.skipif(not is_available(), reason="no AVX-512, or no llvmlite")
def test_a_row_has_the_same_bits_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_operations, "is_chosen", lambda: True)
    x, weight = normal(40, 1024, dtype=BF16), normal(1024, seed=1, dtype=BF16)
    cos, sin = (normal(40, 1, 64, seed=seed, dtype=BF16) for seed in (2, 3))
    heads = x.view(40, 16, 64)
    for rows in (1, 3, 39):
        first = slice(0, rows)
        assert torch.equal(rms_norm(x[first], weight, 1e-6), rms_norm(x, weight, 1e-6)[first])
        assert torch.equal(gated(x[first], silu), gated(x, silu)[first])
        found = rotate(heads[first], cos[first], sin[first])
        assert torch.equal(found, rotate(heads, cos, sin)[:, first])
