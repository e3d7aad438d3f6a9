"""Tiny heads of every format for tiny models, some of whose guesses are right."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.models.heads.medusa import Weights, save_medusa


def drawn(*shape: int, seed: int, scale: float = 0.2) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def output_of(model: Any) -> Tensor:
    """The model's own output rows: a head that starts from them is right now and then."""
    found: Tensor = model.get_output_embeddings().weight.detach().float().clone()
    return found


def medusa(model: Any, folder: Path, *, num_heads: int = 3, **more: Any) -> Path:
    output = output_of(model)
    width = output.shape[1]
    blocks = [
        [(drawn(width, width, seed=number), drawn(width, seed=90 + number))]
        for number in range(num_heads)
    ]
    weights = Weights(blocks, [output] * num_heads, **more)
    save_medusa(weights, folder, base_model="tiny", vocab_size=len(output))
    return folder


def hydra(model: Any, folder: Path, *, num_heads: int = 3) -> Path:
    output = output_of(model)
    width = output.shape[1]
    tensors: dict[str, Tensor] = {}
    for head in range(num_heads):
        stem, inputs = f"hydra_mlp.{head}.0", width * (head + 2)
        tensors[f"{stem}.linear.weight"] = drawn(width, inputs, seed=head)
        tensors[f"{stem}.linear.bias"] = drawn(width, seed=10 + head)
        tensors[f"{stem}.res_connection.weight"] = drawn(width, inputs, seed=20 + head)
        tensors[f"{stem}.res_connection.bias"] = drawn(width, seed=30 + head)
        tensors[f"hydra_lm_head.{head}.weight"] = output.clone()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "hydra_lm_head.safetensors")
    config = {"hydra_num_heads": num_heads, "hydra_num_layers": 1, "hydra_head_arch": "mlp"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def mlp(model: Any, folder: Path, *, num_stages: int = 3) -> Path:
    output = output_of(model)
    vocab, width = output.shape
    tensors: dict[str, Tensor] = {}
    for stage in range(num_stages):
        tensors[f"speculator.proj.{stage}.weight"] = drawn(width, width, seed=stage)
        tensors[f"speculator.emb.{stage}.weight"] = drawn(vocab, width, seed=10 + stage, scale=1.0)
        tensors[f"speculator.head.{stage}.weight"] = output.clone()
        tensors[f"speculator.ln.{stage}.weight"] = torch.ones(width)
        tensors[f"speculator.ln.{stage}.bias"] = torch.zeros(width)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "mlp_speculator", "emb_dim": width, "inner_dim": 0}
    config |= {"vocab_size": vocab, "n_predict": num_stages, "tie_weights": False}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


HEADS: Mapping[str, Callable[..., Path]] = {"medusa": medusa, "hydra": hydra, "mlp": mlp}
"""The writer of a head for a model, by the name of its drafter."""
