"""Tiny lean models for drafters that run the target's own layers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights
from tests.rigged import Run
from tests.tiny_models import build

LAYERS = 6


@cache
def lean(**options: Any) -> CachedTarget:
    """A model of `LAYERS` layers, some of which can be spared; see `CachedTarget` for options."""
    return _target(LAYERS, 128, **options)


@cache
def shallow() -> CachedTarget:
    """Three layers and a short context, for checks that run every outcome of the noise."""
    return _target(3, 20)


def _target(num_layers: int, max_length: int, **options: Any) -> CachedTarget:
    """In float32, and with layers that change little."""
    model = build("llama", num_hidden_layers=num_layers, max_position_embeddings=max_length)
    weights = dict(model.state_dict())
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = weights[name] * 0.15
    decoder = from_weights(weights, model.config, dtype=torch.float32)
    return CachedTarget(decoder, **options)


def rate(found: Run) -> float:
    """The share of drafted tokens that was accepted."""
    drafted = sum(r.num_draft_tokens for r in found.rounds)
    return sum(r.num_accepted_tokens for r in found.rounds) / drafted
