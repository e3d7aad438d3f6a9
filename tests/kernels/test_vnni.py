"""The compiled int4 product against the sum that it stands for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from paceline.kernels.vnni import GROUP, VnniProduct, is_available
from tests.kernels.test_packing import normal

pytestmark = pytest.mark.skipif(not is_available(), reason="no AVX-512 VNNI, or no llvmlite")

SHAPES = [(16, 32), (48, 96), (1152, 896), (32, 4864)]


def weights(outputs: int, inputs: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(0, 16, (outputs, inputs), generator=generator)
    return levels, normal(outputs, inputs // GROUP, 2, seed=seed).mul(0.1).bfloat16()


def dense(levels: Tensor, scales: Tensor) -> Tensor:
    scale, zero = scales.double()[..., None].unbind(dim=2)
    return ((levels.unflatten(1, (-1, GROUP)) - 8) * scale + zero).flatten(1)


def in_eight_bits(x: Tensor) -> Tensor:
    """The activations as the product takes them: each group in 255 steps of its own."""
    groups = x.float().unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)
    # In float32, as there: activations in bfloat16 often lie halfway between two steps. (torch
    # divides a number by a tensor by way of the reciprocal, which rounds twice.)
    steps = (groups * (torch.full_like(largest, 127) / largest)).round().double()
    return (steps * largest.double() / 127).flatten(1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 6, 7, 13])
def test_it_is_the_sum_over_rounded_activations(shape: tuple[int, int], rows: int) -> None:
    levels, scales = weights(*shape)
    x = normal(rows, shape[1], seed=1, dtype=torch.bfloat16)
    found = VnniProduct(levels, scales)(x)
    weight, rounded = dense(levels, scales), in_eight_bits(x)
    assert found.dtype is torch.bfloat16
    assert found.shape == (rows, shape[0])
    # One rounding to bfloat16, and float32 sums of terms that may cancel.
    bound = 2.0**-8 * (rounded @ weight.T).abs() + 2e-5 * rounded.abs() @ weight.abs().T
    assert bool(((found.double() - rounded @ weight.T).abs() <= bound + 1e-9).all())


def test_activations_of_any_size() -> None:
    levels, scales = weights(16, 64)
    x = torch.zeros(5, 64, dtype=torch.bfloat16)
    x[1], x[2, 3], x[3], x[4, ::2] = 1e-34, 1e-20, 3e30, -2.0
    found = VnniProduct(levels, scales)(x).double()
    assert bool((found[:2] == 0).all())
    exact = in_eight_bits(x) @ dense(levels, scales).T
    torch.testing.assert_close(found[2:], exact[2:], rtol=2**-7, atol=0)


def test_a_row_has_the_same_bits_in_any_company_and_in_any_team() -> None:
    product = VnniProduct(*weights(1152, 896))
    x = normal(13, 896, seed=2, dtype=torch.bfloat16)
    alone = torch.cat([product(row[None]) for row in x])
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            for rows in range(1, 14):
                assert torch.equal(product(x[:rows]), alone[:rows])
    finally:
        torch.set_num_threads(threads)


def test_threads_of_the_caller_do_not_meet() -> None:
    product = VnniProduct(*weights(256, 512))
    inputs = [normal(3, 512, seed=seed, dtype=torch.bfloat16) for seed in range(8)]
    expected = [product(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for found, right in zip(pool.map(product, inputs), expected, strict=True):
                assert torch.equal(found, right)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_dense_weights(shape: tuple[int, int]) -> None:
    levels, scales = weights(*shape)
    found = VnniProduct(levels, scales).dense()
    # Two roundings: level times scale, and the sum.
    size = dense(levels, scales.abs()).abs() + scales.double().abs().amax() * 8
    assert bool(((found.double() - dense(levels, scales)).abs() <= 2.0**-8 * size).all())


def test_bytes() -> None:
    assert VnniProduct(*weights(48, 96)).num_bytes == 48 * 96 // 2 + 48 * 3 * 2 * 2


@pytest.mark.parametrize("shape", [(2, 32), (2, 96), (64,), (1, 2, 64)], ids=str)
def test_activations_of_another_width_are_not_read_past(shape: tuple[int, ...]) -> None:
    product = VnniProduct(*weights(16, 64))
    with pytest.raises(ValueError, match=r"expected bfloat16 \[n, 64\]"):
        product(torch.zeros(shape, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="float32"):
        product(torch.zeros(1, 64))
