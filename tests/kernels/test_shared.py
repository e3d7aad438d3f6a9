"""Products that read weights where they lie, against the product in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from paceline.kernels import shared as kernel
from paceline.kernels.llvm.row_major import MOST_ROWS, is_available
from paceline.kernels.shared import SharedLinear

DTYPES = [torch.bfloat16, torch.float32]

compiled = pytest.mark.skipif(
    not all(map(is_available, DTYPES)),
    reason="needs llvmlite and a processor with AVX-512 BF16",
)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def layer(outputs: tuple[int, ...], inputs: int, dtype: torch.dtype, biased: bool) -> SharedLinear:
    weights = [normal(n, inputs, seed=i, dtype=dtype) for i, n in enumerate(outputs)]
    biases = [normal(n, seed=9 + i, dtype=dtype) if biased else None for i, n in enumerate(outputs)]
    return SharedLinear(weights, biases)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("outputs", [(8,), (9,), (8, 13, 50), (300, 7)], ids=str)
@pytest.mark.parametrize("inputs", [32, 96, 1024, 33])
@pytest.mark.parametrize("biased", [False, True], ids=["no-bias", "bias"])
def test_it_is_the_product(
    dtype: torch.dtype, outputs: tuple[int, ...], inputs: int, biased: bool
) -> None:
    shared = layer(outputs, inputs, dtype, biased)
    weight = torch.cat(shared.weights).double()
    for rows in (0, *range(1, MOST_ROWS + 3)):
        x = normal(rows, inputs, seed=2, dtype=dtype)
        for added in (None, normal(rows, len(weight), seed=3, dtype=dtype)):
            before = None if added is None else added.clone()
            found = shared(x, added)
            exact = x.double() @ weight.T
            size = x.double().abs() @ weight.abs().T  # what rounding is measured against
            for term in (torch.cat(shared.biases) if biased else None, added):  # type: ignore[arg-type]
                if term is not None:
                    exact, size = exact + term.double(), size + term.double().abs()
            assert found.dtype == dtype
            assert found.shape == exact.shape
            # Up to three roundings of the result in bfloat16, of 2**-9 each; float32 sums.
            relative = 1e-5 if dtype is torch.float32 else 3 * 2.0**-9
            assert bool(((found.double() - exact).abs() <= relative * size).all())
            assert added is None or torch.equal(added, before)  # type: ignore[arg-type]
    assert shared.num_bytes == sum(weight.nbytes for weight in shared.weights)


@compiled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype, threads: int) -> None:
    shared = layer((50, 13), 96, dtype, biased=True)
    rows = normal(MOST_ROWS, 96, seed=5, dtype=dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        alone = torch.cat([shared(row[None]) for row in rows])
        for count in range(1, MOST_ROWS + 1):
            assert torch.equal(shared(rows[:count]), alone[:count])
    finally:
        torch.set_num_threads(before)


@compiled
def test_bfloat16_is_rounded_once_to_nearest() -> None:
    """The sum of a product, a bias and a residual, whose float32 sum is exact here."""
    weight = torch.zeros(8, 32, dtype=torch.bfloat16)
    weight[:, 0] = torch.tensor([1, 1, 1, 1, -1, -1, torch.inf, torch.nan], dtype=torch.bfloat16)
    bias = torch.tensor([2.0**-8, 2.0**-8, 0, 2.0**-9, 0, 0, 0, 0], dtype=torch.bfloat16)
    residual = torch.tensor([[0, 2.0**-9, 2.0**-7, 2.0**-9, 0, 1, 0, 0]], dtype=torch.bfloat16)
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, 0] = 1
    found = SharedLinear([weight], [bias])(x, residual)[0].float()
    # A half of the last place goes to the even neighbour, more than a half goes up.
    expected = [1.0, 1 + 2.0**-7, 1 + 2.0**-7, 1.0, -1.0, 0.0, torch.inf]
    assert found[:7].tolist() == expected
    assert found[7].isnan()


@compiled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_stay_where_they_are_and_changes_of_them_are_seen(dtype: torch.dtype) -> None:
    weight, x = normal(40, 64, dtype=dtype), normal(3, 64, seed=1, dtype=dtype)
    place, shared = weight.data_ptr(), SharedLinear([weight], [None])
    first = shared(x)
    weight.mul_(2)
    assert torch.equal(shared(x), 2 * first)
    assert shared.weights[0].data_ptr() == weight.data_ptr() == place
    other = normal(40, 64, seed=7, dtype=dtype)
    weight.data = other  # another place
    assert torch.equal(shared(x), SharedLinear([other], [None])(x))
    weight.data = weight.double()  # another dtype, which torch multiplies
    torch.testing.assert_close(shared(x.double()), x.double() @ weight.T)
    weight.data = other
    # Anywhere in memory: at an address that no vector would choose.
    odd = torch.empty(40 * 64 + 1, dtype=dtype)[1:].view(40, 64).copy_(weight)
    assert torch.equal(SharedLinear([odd], [None])(x), shared(x))


@compiled
def test_what_the_loops_do_not_take_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError("the loops ran")

    weight, x = normal(40, 64), normal(3, 64, seed=1)
    monkeypatch.setattr(kernel, "multiply", refuse)
    with pytest.raises(AssertionError, match="the loops ran"):
        SharedLinear([weight], [None])(x)
    for other, rows in (
        (weight.T.contiguous().T, x),  # not in one piece
        (weight.double(), x.double()),
        (weight.half(), x.half()),
        (weight[:7], x),  # fewer outputs than a loop fills
        (normal(40, 65), normal(3, 65)),
        (weight, normal(MOST_ROWS + 1, 64)),
        (weight, normal(0, 64)),
    ):
        found = SharedLinear([other], [None])(rows)
        torch.testing.assert_close(found, functional.linear(rows, other))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_go_through_it(dtype: torch.dtype) -> None:
    weight = normal(40, 64, dtype=dtype).requires_grad_()
    bias = normal(40, seed=4, dtype=dtype).requires_grad_()
    x = normal(3, 64, seed=1, dtype=dtype).requires_grad_()
    SharedLinear([weight], [bias])(x).sum().backward()
    found = [tensor.grad for tensor in (weight, bias, x)]
    for tensor in (weight, bias, x):
        tensor.grad = None
    functional.linear(x, weight, bias).sum().backward()
    for ours, tensor in zip(found, (weight, bias, x), strict=True):
        assert torch.equal(ours, tensor.grad)  # type: ignore[arg-type]
    residual = normal(3, 40, seed=5, dtype=dtype).requires_grad_()
    constant = SharedLinear([weight.detach()], [None])
    constant(x.detach(), residual).sum().backward()
    assert residual.grad is not None
    with torch.no_grad():  # and without them the loops take it
        assert (SharedLinear([weight], [bias]).table(x) is not None) is is_available(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fake_tensors_and_compiled_graphs_are_torch_s(dtype: torch.dtype) -> None:
    weight, x = normal(40, 64, dtype=dtype), normal(3, 64, seed=1, dtype=dtype)
    with FakeTensorMode():
        made = SharedLinear([torch.empty(40, 64, dtype=dtype)], [None])
        assert made(torch.empty(3, 64, dtype=dtype)).shape == (3, 40)
    torch.compiler.reset()
    found = torch.compile(SharedLinear([weight], [None]), backend="eager", fullgraph=True)(x)
    assert torch.equal(found, functional.linear(x, weight))
