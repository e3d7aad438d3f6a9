"""The compiled bfloat16 product against the sum that it stands for."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from paceline.kernels.bfloat16 import Bfloat16Linear
from paceline.kernels.llvm.bfloat16 import is_available
from tests.kernels.test_packing import normal

pytestmark = pytest.mark.skipif(not is_available(), reason="no AVX-512 BF16, or no llvmlite")

BF16 = torch.bfloat16
SHAPES = [(32, 64), (33, 2), (70, 96), (1152, 896), (64, 4864)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 11, 12, 13, 25, 241])
@pytest.mark.parametrize("biased", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("added", [False, True], ids=["alone", "residual"])
def test_it_is_the_sum(shape: tuple[int, int], rows: int, biased: bool, added: bool) -> None:
    outputs, inputs = shape
    weight, x = normal(*shape, dtype=BF16), normal(rows, inputs, seed=1, dtype=BF16)
    bias = normal(outputs, seed=2, dtype=BF16) if biased else None
    residual = normal(rows, outputs, seed=3, dtype=BF16) if added else None
    before = None if residual is None else residual.clone()
    found = Bfloat16Linear(weight, bias)(x, residual)
    exact = x.double() @ weight.double().T
    size = x.double().abs() @ weight.double().abs().T
    for term in (bias, residual):
        if term is not None:
            exact, size = exact + term.double(), size + term.double().abs()
    assert found.dtype is BF16
    assert found.shape == (rows, outputs)
    # One rounding of the result to bfloat16, and float32 sums.
    assert bool(((found.double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-6 * size).all())
    assert before is None or torch.equal(residual, before)  # type: ignore[arg-type]


def test_a_row_has_the_same_bits_in_any_company_and_in_any_team() -> None:
    product = Bfloat16Linear(normal(1152, 896, dtype=BF16), normal(1152, seed=1, dtype=BF16))
    x, residual = normal(30, 896, seed=2, dtype=BF16), normal(30, 1152, seed=3, dtype=BF16)
    alone = torch.cat([product(x[[i]], residual[[i]]) for i in range(30)])
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            for rows in range(1, 31):
                assert torch.equal(product(x[:rows], residual[:rows]), alone[:rows])
    finally:
        torch.set_num_threads(threads)


def test_rows_from_anywhere_in_memory() -> None:
    product = Bfloat16Linear(normal(40, 64, dtype=BF16), None)
    x, residual = normal(9, 130, seed=1, dtype=BF16), normal(9, 80, seed=2, dtype=BF16)
    for rows, added in ((x[:, 1:65], residual[:, 1:41]), (x[::2, 66:], residual[::2, 40:])):
        assert torch.equal(product(rows, added), product(rows.clone(), added.clone()))


def test_what_is_not_a_number_stays_so() -> None:
    """And it stays in its row."""
    product = Bfloat16Linear(normal(32, 64, dtype=BF16), None)
    x = normal(4, 64, seed=1, dtype=BF16)
    x[1, 5], x[2, 7] = torch.nan, torch.inf
    found = product(x)
    assert bool(found[1].isnan().all())
    assert bool(found[2].isinf().all())
    assert bool(found[[0, 3]].isfinite().all())


def test_threads_of_the_caller_do_not_meet() -> None:
    product = Bfloat16Linear(normal(256, 512, dtype=BF16), None)
    inputs = [normal(14, 512, seed=seed, dtype=BF16) for seed in range(8)]
    expected = [product(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for found, right in zip(pool.map(product, inputs), expected, strict=True):
                assert torch.equal(found, right)


def test_bytes() -> None:
    assert Bfloat16Linear(normal(64, 96, dtype=BF16), None).num_bytes == 64 * 96 * 2


@pytest.mark.parametrize("shape", [(2, 32), (2, 66), (64,), (1, 2, 64)], ids=str)
def test_what_has_another_shape_or_type_is_not_read_past(shape: tuple[int, ...]) -> None:
    product = Bfloat16Linear(normal(16, 64, dtype=BF16), None)
    with pytest.raises(ValueError, match=r"expected bfloat16 \[n, 64\]"):
        product(torch.zeros(shape, dtype=BF16))
    with pytest.raises(ValueError, match="float32"):
        product(torch.zeros(1, 64))
    for residual in (torch.zeros(2, 16), torch.zeros(shape, dtype=BF16)):
        with pytest.raises(ValueError, match=r"expected a bfloat16 residual \[2, 16\]"):
            product(torch.zeros(2, 64, dtype=BF16), residual)


def test_weights_and_devices_that_the_loops_cannot_read() -> None:
    weight = normal(32, 64, dtype=BF16)
    for bias in (torch.zeros(32), torch.zeros(31, dtype=BF16)):
        with pytest.raises(ValueError, match=r"expected bfloat16 \[32\] on the CPU"):
            Bfloat16Linear(weight, bias)
    product = Bfloat16Linear(weight, None)
    with pytest.raises(ValueError, match=r"on the CPU; got torch\.bfloat16 \[2, 64\] on meta"):
        product(torch.zeros(2, 64, dtype=BF16, device="meta"))
    x = normal(3, 64, seed=1, dtype=BF16)
    with torch.device("meta"):  # where new tensors go that are not told where
        found = product(x)
    assert torch.equal(found, product(x))


def test_copies_share_the_code() -> None:
    product = Bfloat16Linear(normal(32, 64, dtype=BF16), None)
    x = normal(3, 64, seed=1, dtype=BF16)
    assert torch.equal(copy.deepcopy(product)(x), product(x))
