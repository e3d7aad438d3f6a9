"""The roofline and the memory of speculation, against hand-computed values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.economics.cost import speedup
from paceline.economics.roofline import (
    Machine,
    ModelSize,
    kv_bytes_per_token,
    pass_seconds,
    ridge_rows,
    speculation_memory,
    verify_cost,
)
from paceline.errors import InvalidInput

H100 = Machine(bytes_per_second=3.35e12, operations_per_second=989e12)
MODEL_8B = ModelSize(num_parameters=8e9, weight_bytes=16e9, kv_bytes_per_token=131_072)


def test_the_ridge_of_an_h100_with_16_bit_weights() -> None:
    assert ridge_rows(H100) == pytest.approx(295.2, abs=0.05)
    # Four draft tokens are five rows a sequence: no longer free near a batch of 59.
    assert round(ridge_rows(H100) / 5) == 59
    assert ridge_rows(H100, bytes_per_parameter=0.5) == pytest.approx(ridge_rows(H100) / 4)


def test_rows_are_free_up_to_the_ridge_and_linear_after() -> None:
    one = pass_seconds(H100, MODEL_8B, 1)
    assert one == pytest.approx(16e9 / 3.35e12)
    assert pass_seconds(H100, MODEL_8B, 295) == one
    assert pass_seconds(H100, MODEL_8B, 296) > one
    assert pass_seconds(H100, MODEL_8B, 1000) == pytest.approx(2 * 8e9 * 1000 / 989e12)


def test_the_cache_is_read_as_well() -> None:
    seconds = pass_seconds(H100, MODEL_8B, 1, num_cached_tokens=100_000)
    assert seconds == pytest.approx((16e9 + 131_072 * 100_000) / 3.35e12)


def test_four_draft_tokens_are_free_to_a_batch_of_59() -> None:
    assert verify_cost(H100, MODEL_8B, batch_size=59)(5) == 1.0
    assert verify_cost(H100, MODEL_8B, batch_size=60)(5) > 1.0
    assert verify_cost(H100, MODEL_8B, batch_size=1000)(5) == pytest.approx(5.0)


@given(st.integers(1, 512), st.integers(1, 16), st.integers(0, 100_000))
def test_long_contexts_make_verification_cheaper(batch: int, rows: int, context: int) -> None:
    short = verify_cost(H100, MODEL_8B, batch, context)(rows)
    long = verify_cost(H100, MODEL_8B, batch, 2 * context + 1)(rows)
    assert 1.0 <= long <= short * (1 + 1e-12)


def test_a_large_batch_gains_only_with_a_long_context() -> None:
    cost_short = verify_cost(H100, MODEL_8B, batch_size=256, context_length=100)
    cost_long = verify_cost(H100, MODEL_8B, batch_size=256, context_length=32_000)
    assert speedup(0.7, 0.05, 4, cost_short) < 1.0
    assert speedup(0.7, 0.05, 4, cost_long) == speedup(0.7, 0.05, 4)


def test_kv_bytes_per_token() -> None:
    # Llama 3.1 8B: 32 layers of 8 heads of 128, 16 bits: 128 KiB a token.
    assert kv_bytes_per_token(num_layers=32, num_kv_heads=8, head_dim=128) == 131_072


def test_memory_of_a_soft_draft_model() -> None:
    draft = ModelSize(num_parameters=5e8, weight_bytes=1e9, kv_bytes_per_token=12_288)
    memory = speculation_memory(
        num_draft_tokens=4,
        vocabulary_size=151_936,
        batch_size=2,
        draft=draft,
        num_cached_tokens=1000,
        soft_draft=True,
    )
    assert memory.weights == 1e9
    assert memory.cache == 12_288_000
    assert memory.logits == 2 * (5 + 4) * 151_936 * 4
    assert (memory.hidden_states, memory.mask) == (0, 0)
    assert memory.total == 1e9 + 12_288_000 + 10_939_392


def test_memory_of_a_tree_over_hidden_states() -> None:
    memory = speculation_memory(
        num_draft_tokens=60, vocabulary_size=1000, hidden_size_per_token=3 * 4096, tree=True
    )
    assert memory.mask == 3600
    assert memory.hidden_states == 61 * 3 * 4096 * 2
    assert memory.logits == 61 * 1000 * 4
    assert (memory.weights, memory.cache) == (0, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Machine(bytes_per_second=0, operations_per_second=1), "bytes_per_second"),
        (lambda: ModelSize(num_parameters=1, weight_bytes=-1), "weight_bytes"),
        (lambda: pass_seconds(H100, MODEL_8B, 0), "num_rows"),
        (lambda: verify_cost(H100, MODEL_8B, 1, -1), "context_length"),
        (
            lambda: kv_bytes_per_token(num_layers=0, num_kv_heads=1, head_dim=1),
            "num_layers",
        ),
        (lambda: speculation_memory(num_draft_tokens=-1, vocabulary_size=8), "num_draft_tokens"),
    ],
)
def test_bad_sizes_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=f"expected {message} to be a finite number"):
        call()
