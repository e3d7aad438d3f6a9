"""The fast path is the plain one: the same tokens kept, the same law."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.sampling import SamplingParams
from paceline.sampling.candidates import Blocks, cool, largest_of_rows, truncated_law
from paceline.sampling.warp import truncate

SIZES = st.sampled_from([1, 5, 127, 128, 129, 384, 1000, 9000])


def random_logits(seed: int, size: int, spread: float, step: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(size, generator=generator, dtype=torch.float64)
    if step:
        logits = (logits / step).round() * step
    logits[torch.rand(size, generator=generator) < 0.1] = -torch.inf
    logits[seed % size] = 0.0  # at least one token
    return logits


@settings(max_examples=200)
@given(
    st.integers(0, 10_000),
    SIZES,
    st.sampled_from([0.0, 0.3, 3.0, 12.0]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0, 1, 7, 40, 500, 5000]),
    st.sampled_from([1.0, 0.0137, 0.6139, 0.9517, 0.99931]),
    st.sampled_from([0.0, 0.0531, 1.0]),
)
def test_the_law_is_that_of_the_plain_form(
    seed: int, size: int, spread: float, step: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = random_logits(seed, size, spread, step)
    params = SamplingParams(temperature=0.9, top_k=top_k, top_p=top_p, min_p=min_p)
    before = logits.clone()
    law = truncated_law(logits, params)
    plain = truncate(logits, params)
    torch.testing.assert_close(law, plain.softmax(dim=-1), rtol=1e-11, atol=0)
    assert torch.equal(law > 0, plain > -torch.inf)
    assert float(law.sum()) == pytest.approx(1, abs=1e-12)
    assert torch.equal(logits, before)


def test_the_law_does_not_share_memory_with_the_logits() -> None:
    logits = torch.zeros(3)
    for params in (SamplingParams(temperature=1), SamplingParams(temperature=1, top_p=0.5)):
        truncated_law(logits, params).fill_(7)
    cool(logits, 0.5).fill_(7)
    assert logits.tolist() == [0, 0, 0]


@given(st.integers(0, 10_000), SIZES, st.sampled_from([0.0, 0.5, 2.0]), st.data())
def test_blocks_find_what_a_sort_finds(
    seed: int, size: int, step: float, data: st.DataObject
) -> None:
    values = random_logits(seed, size, 3.0, step)
    blocks, ordered = Blocks(values), values.sort(descending=True).values
    assert blocks.argmax() == int((values == ordered[0]).nonzero()[0])
    k = data.draw(st.integers(1, size))
    assert blocks.kth_largest(k) == ordered[k - 1]
    floor = float(data.draw(st.sampled_from(values.tolist())))
    assert blocks.at_least(floor).tolist() == (values >= floor).nonzero().flatten().tolist()
    count = min(k, -(-size // 128))
    assert int((values >= blocks.floor(count)).sum()) >= count


def test_nan_is_not_lost_among_the_blocks() -> None:
    values = torch.zeros(1000)
    values[700] = torch.nan
    assert Blocks(values).argmax() == 700


def test_top_p_of_nearly_1_ends_where_the_masses_sum_to_less() -> None:
    """In float32 the 20,000 masses sum to a little less; all are kept, and the search ends."""
    logits = torch.zeros(20_000)
    law = truncated_law(logits, SamplingParams(temperature=1.0, top_p=1 - 1e-9))
    assert logits.softmax(dim=-1).sum() < 1 - 1e-9
    assert bool((law > 0).all())


@settings(max_examples=100)
@given(st.integers(0, 10_000), SIZES, st.integers(1, 6), st.integers(1, 40))
def test_the_largest_of_each_row_are_those_of_topk(seed: int, size: int, n: int, k: int) -> None:
    rows = torch.stack([random_logits(seed + i, size, 3.0, 0.5) for i in range(n)])
    before = rows.clone()
    places = largest_of_rows(rows, k)
    expected = rows.topk(min(k, size)).values
    assert places.shape == expected.shape
    assert torch.equal(places >= 0, expected > -torch.inf)
    for row, found, values in zip(rows, places.tolist(), expected, strict=True):
        kept = [place for place in found if place >= 0]
        assert len(set(kept)) == len(kept)
        assert torch.equal(row[kept], values[: len(kept)])
    assert torch.equal(rows, before)
