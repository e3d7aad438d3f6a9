"""The compiled attention of few rows against the sum in float64."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from paceline.kernels import attention
from paceline.kernels.attention import KEYS, attend_few, takes
from paceline.kernels.llvm.attention import is_available
from tests.kernels.test_packing import normal

pytestmark = pytest.mark.skipif(not is_available(), reason="no AVX-512 BF16, or no llvmlite")

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _loop_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is faster on this machine."""
    monkeypatch.setattr(attention, "is_chosen", is_available)


HEADS = [(1, 1, 32), (12, 2, 128), (14, 2, 64), (9, 3, 64), (4, 4, 96), (3, 1, 256), (2, 2, 384)]


def made(heads: tuple[int, int, int], rows: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and keys and values that are the first rows of a longer cache."""
    query_heads, kv_heads, width = heads
    cache = [normal(kv_heads, end + 64, width, seed=seed, dtype=BF16) for seed in (1, 2)]
    return normal(query_heads, rows, width, dtype=BF16), cache[0][:, :end], cache[1][:, :end]


def causal(stack: int, rows: int, end: int, start: int) -> Tensor:
    """Row i of every head sees the keys up to `start + i`."""
    seen = torch.arange(end) <= start + torch.arange(rows)[:, None]
    return torch.zeros(rows, end).masked_fill_(~seen, -torch.inf).repeat(stack, 1)


def exact(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float) -> Tensor:
    stacked = query.reshape(len(keys), -1, query.shape[-1]).double()
    scores = stacked @ keys.double().transpose(1, 2) * scale + bias.double()
    return (scores.softmax(-1) @ values.double()).view(query.shape)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 31])
@pytest.mark.parametrize("blocks", [1, 2, 15])
def test_it_is_attention(heads: tuple[int, int, int], rows: int, blocks: int) -> None:
    end = blocks * KEYS
    query, keys, values = made(heads, rows, end)
    bias = causal(heads[0] // heads[1], rows, end, max(0, end - rows - 3))
    scale = heads[2] ** -0.5
    assert takes(query, keys, values)
    found = attend_few(query, keys, values, bias, end, scale)
    right = exact(query, keys, values, bias, scale)
    assert found.dtype is BF16
    # Weights and results are rounded once each, to 8 bits; values are about 1.
    assert float((found.double() - right).abs().max()) <= 2.0**-7 * float(right.abs().max())


def test_trees_windows_and_keys_that_nobody_sees() -> None:
    query, keys, values = made((4, 2, 64), 3, 64)
    bias = torch.full((3, 64), -torch.inf)
    bias[0, 5] = bias[1, [7, 40]] = bias[2, 30:50] = 0
    bias = bias.repeat(2, 1)
    found = attend_few(query, keys, values, bias, 64, 0.3)
    right = exact(query, keys, values, bias, 0.3)
    assert float((found.double() - right).abs().max()) <= 2.0**-7 * float(right.abs().max())
    assert torch.equal(found[:, 0], values[:, 5].repeat_interleave(2, dim=0))


@pytest.mark.parametrize("length", [33, 34, 63])
@pytest.mark.parametrize("left", [torch.nan, torch.inf])
def test_what_lies_behind_the_end_may_be_anything(length: int, left: float) -> None:
    query, keys, values = (x.clone() for x in made((4, 2, 64), 3, 64))
    bias = causal(2, 3, 64, length - 3)
    expected = attend_few(query, keys, values, bias, length, 0.1)
    keys[:, length:] = values[:, length:] = left
    assert torch.equal(attend_few(query, keys, values, bias, length, 0.1), expected)


def test_large_scores_do_not_overflow() -> None:
    query, keys, values = made((2, 1, 32), 2, 32)
    found = attend_few(100 * query, 100 * keys, values, torch.zeros(4, 32), 32, 1.0)
    best = (query.double() @ keys.double().transpose(1, 2)).argmax(-1)
    assert torch.equal(found, values[0][best])


@pytest.mark.parametrize("heads", [(12, 2, 128), (9, 3, 64)], ids=str)
def test_a_row_of_a_chain_has_the_same_bits_in_any_company_and_team(
    heads: tuple[int, int, int],
) -> None:
    """Alone over the keys before it, and beside others over more keys, in any number of threads."""
    rows, start, stack = 8, 59, heads[0] // heads[1]
    query, keys, values = made(heads, rows, 96)
    threads = torch.get_num_threads()
    alone = []
    for i, length in enumerate(range(start + 1, start + rows + 1)):
        end = -(-length // KEYS) * KEYS
        own = query[:, [i]], keys[:, :end], values[:, :end]
        alone.append(attend_few(*own, causal(stack, 1, end, length - 1), length, 0.1))
    bias = causal(stack, rows, 96, start)
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            found = attend_few(query, keys, values, bias, start + rows, 0.1)
            assert torch.equal(found, torch.cat(alone, dim=1))
    finally:
        torch.set_num_threads(threads)


def test_threads_of_the_caller_do_not_meet() -> None:
    bias = torch.zeros(18, 64)
    inputs = [normal(6, 6, 64, seed=seed, dtype=BF16) for seed in range(8)]
    _, keys, values = made((6, 2, 64), 6, 64)
    expected = [attend_few(query, keys, values, bias, 64, 0.1) for query in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            run = pool.map(lambda query: attend_few(query, keys, values, bias, 64, 0.1), inputs)
            for found, right in zip(run, expected, strict=True):
                assert torch.equal(found, right)


def test_what_it_does_not_take() -> None:
    query, keys, values = made((4, 2, 64), 3, 64)
    assert takes(query, keys, values)
    assert not takes(query.float(), keys, values)
    assert not takes(query, keys.float(), values.float())
    assert not takes(query, keys[:, :40], values[:, :40])  # no whole block
    assert not takes(query[..., :48], keys[..., :48], values[..., :48])  # nor a width of blocks
    assert not takes(query, keys[..., :32], values)
    assert not takes(query, keys[..., :32], values[..., :32])
    assert not takes(query.to("meta"), keys, values)
    assert not takes(query, keys.to("meta"), values.to("meta"))
    assert not takes(query, keys.transpose(1, 2).contiguous().transpose(1, 2), values)
    assert not takes(*(torch.zeros(1, 64, 416, dtype=BF16) for _ in range(3)))


@pytest.mark.parametrize("torch_is_faster", [True, False])
def test_the_faster_kernel_is_chosen_once(
    torch_is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And both are run on the same numbers, torch's in its fused form."""
    monkeypatch.undo()  # the fixture's choice
    results: list[Tensor] = []

    def compare(candidate: Callable[[], Tensor], other: Callable[[], Tensor]) -> bool:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            results.extend((candidate().flatten(), other().flatten()))
        return torch_is_faster

    monkeypatch.setattr(attention, "clearly_faster", compare)
    attention.is_chosen.cache_clear()
    try:
        for _ in range(2):
            assert attention.is_chosen(64) is not torch_is_faster
    finally:
        attention.is_chosen.cache_clear()
    assert len(results) == 2
    assert torch.equal(*results)
