"""What tracing makes of mask functions, and what the attention function hands on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import masking_utils

from paceline.targets.hf.interface import (
    RUN,
    Call,
    Pattern,
    _attention,
    attending,
    pattern_of,
    set_attention,
)

CPU = torch.device("cpu")
NO_PADDING = torch.zeros(1, dtype=torch.long)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 4096])
def test_windows_and_chunks_are_told_apart(size: int) -> None:
    window = masking_utils.sliding_window_causal_mask_function(size)
    assert pattern_of(window, size, CPU) == Pattern(window=size)
    chunks = masking_utils.chunked_causal_mask_function(size, NO_PADDING)
    # A window of one and chunks of one are the same: a token sees itself.
    expected = Pattern(window=1) if size == 1 else Pattern(limit=size)
    assert pattern_of(chunks, size, CPU) == expected


def test_causal_attention_has_no_window() -> None:
    assert pattern_of(masking_utils.causal_mask_function, None, CPU) == Pattern()


@pytest.mark.parametrize(
    ("mask", "size"),
    [
        (masking_utils.bidirectional_mask_function, None),
        (masking_utils.sliding_window_bidirectional_mask_function(8), 8),
        (masking_utils.sliding_window_causal_mask_function(7), 8),
        (masking_utils.sliding_window_causal_mask_function(9), 8),
        (masking_utils.chunked_causal_mask_function(7, NO_PADDING), 8),
        (
            masking_utils.or_masks(
                masking_utils.sliding_window_causal_mask_function(8), lambda b, h, q, k: k == 0
            ),
            8,
        ),
        (
            masking_utils.and_masks(
                masking_utils.causal_mask_function, lambda b, h, q, k: k != q - 1
            ),
            None,
        ),
    ],
)
def test_other_masks_are_not_known(mask: Any, size: int | None) -> None:
    assert not pattern_of(mask, size, CPU).known


class Spy:
    """Stands in for a running pass."""

    def attend(self, call: Call) -> torch.Tensor:
        self.call = call
        return call.value


def test_the_scale_defaults_as_in_transformers_and_options_are_handed_on() -> None:
    spy: Any = Spy()
    query = torch.zeros(1, 2, 3, 16)
    with attending(spy):
        _attention(nn.Module(), query, query, query)
        assert spy.call.scale == 0.25
        assert spy.call.options == {}
        _attention(nn.Module(), query, query, query, None, scaling=0.7, softcap=3.0, dropout=0.0)
        assert spy.call.scale == 0.7
        assert spy.call.options == {"softcap": 3.0}
        _attention(nn.Module(), query, query, query, dropout=0.1, is_causal=False)
        assert spy.call.options == {"dropout": 0.1, "is_causal=False": True}


def test_outside_of_a_pass_there_is_no_state() -> None:
    spy: Any = Spy()
    query = torch.zeros(1, 2, 3, 16)
    with pytest.raises(ValueError, match="boom"), attending(spy):
        raise ValueError("boom")
    with pytest.raises(LookupError):
        _attention(nn.Module(), query, query, query)


def test_the_implementation_is_set_in_every_config_of_a_model() -> None:
    from transformers import LlamaConfig

    inner, outer = nn.Module(), nn.Module()
    inner.config, outer.config, outer.inner = LlamaConfig(), LlamaConfig(), inner
    set_attention(outer, RUN)
    assert inner.config._attn_implementation == outer.config._attn_implementation == RUN
