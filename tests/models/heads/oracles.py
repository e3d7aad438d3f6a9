"""What the tests against the speculators package share; it imports nothing of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.core.hidden import HiddenStates
from tests.tiny_heads import TARGET


def layer_config(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    settings: dict[str, Any] = {
        "vocab_size": TARGET.vocab_size,
        "hidden_size": TARGET.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
    }
    config = AutoConfig.for_model(kind, **{**settings, **changes})
    config._attn_implementation = "eager"
    return config


def states_of(hidden: HiddenStates, layers: tuple[int, ...]) -> Tensor:
    return torch.cat([hidden.layers[layer] for layer in layers], dim=-1)
