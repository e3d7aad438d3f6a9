"""Tiny heads of every format for tiny models, some of whose guesses are right."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.generate import draft_heads
from paceline.models.heads import blockwise as blockwise_format
from paceline.models.heads.eagle3 import Eagle3Settings
from paceline.models.heads.loading import HeadFile, open_head
from paceline.models.heads.medusa import Weights, save_medusa
from paceline.models.heads.speculators import save_eagle3
from paceline.models.heads.weights import layer_config


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


def blockwise(model: Any, folder: Path, *, num_tokens: int = 3) -> Path:
    output = output_of(model)
    width = output.shape[1]
    wide, out = 2 * num_tokens * width, num_tokens * width
    weights = blockwise_format.Weights(
        (drawn(wide, width, seed=1), drawn(wide, seed=2)),
        (drawn(out, wide, seed=3), drawn(out, seed=4)),
        output,
    )
    blockwise_format.save_blockwise(weights, folder, base_model="tiny", vocab_size=len(output))
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


def redrafter(model: Any, folder: Path) -> Path:
    """A head that passes the final state on to the model's own output rows, beside the rest."""
    output = output_of(model)
    vocab, width = output.shape
    tensors = {
        "rnn_w.weight": drawn(width, width, seed=1),
        "rnn_u.weight": drawn(width, width, seed=2),
        "rnn_u.bias": drawn(width, seed=3),
        "lm_head.0.linear.weight": drawn(2 * width, 2 * width, seed=4, scale=0.05),
        "lm_head.0.linear.bias": drawn(2 * width, seed=5),
        "lm_head.1.weight": torch.cat([output, drawn(vocab, width, seed=6)], dim=1),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "recurrent_drafting_drafter", "vocab_size": vocab, "rnn": True}
    config |= {"hidden_size": width, "exit_dim": 2 * width, "num_draft_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def layer_of(model: Any, *, inputs: int = 1) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings of a layer of the model's width, and its weights after `layers.0.`."""
    vocab, width = output_of(model).shape
    settings = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 512,
    }
    shapes = {
        "self_attn.q_proj": (16, inputs * width),
        "self_attn.k_proj": (8, inputs * width),
        "self_attn.v_proj": (8, inputs * width),
        "self_attn.o_proj": (width, 16),
        "mlp.gate_proj": (2 * width, width),
        "mlp.up_proj": (2 * width, width),
        "mlp.down_proj": (width, 2 * width),
    }
    weights = {
        f"layers.0.{name}.weight": drawn(*shape, seed=seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    return settings, weights | {f"layers.0.{name}.weight": torch.ones(width) for name in norms}


def eagle(model: Any, folder: Path) -> Path:
    """A head that passes the last layer's state on, beside what its layer adds."""
    output = output_of(model)
    width = output.shape[1]
    settings, weights = layer_of(model, inputs=2)
    layers = (0, 1, model.config.num_hidden_layers)
    weights |= {"norm.weight": torch.ones(width), "layers.0.hidden_norm.weight": torch.ones(width)}
    passed = torch.cat([torch.zeros(width, 2 * width), torch.eye(width)], dim=1)
    weights |= {"fc.weight": passed + drawn(width, 3 * width, seed=50), "lm_head.weight": output}
    save_eagle3(
        folder,
        Eagle3Settings(layer_config(settings, "tiny"), layers=layers),
        weights,
        verifier="tiny",
        architectures=["LlamaForCausalLM"],
        num_draft_tokens=3,
    )
    return folder


def mtp(model: Any, folder: Path) -> Path:
    """A module that passes the embedding of the token on, beside what its layer adds."""
    width = output_of(model).shape[1]
    settings, weights = layer_of(model)
    tensors = {f"mtp_layers.0.{name.removeprefix('layers.0.')}": x for name, x in weights.items()}
    tensors["mtp_layers.0.input_proj.weight"] = torch.eye(width, 2 * width)
    for norm in ("token", "hidden", "final"):
        tensors[f"mtp_layers.0.{norm}_layernorm.weight"] = torch.ones(width)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {"speculators_model_type": "mtp", "transformer_layer_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def dflash(model: Any, folder: Path, **more: Any) -> Path:
    """A block that passes the embedding of the last token on, beside what its layer adds."""
    width = output_of(model).shape[1]
    settings, weights = layer_of(model)
    layers = [0, model.config.num_hidden_layers]
    weights |= {"norm.weight": torch.ones(width), "hidden_norm.weight": torch.ones(width)}
    weights |= {"fc.weight": drawn(width, 2 * width, seed=50), **more.pop("weights", {})}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    config = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": settings,
        "aux_hidden_state_layer_ids": layers,
        "block_size": 4,
        "mask_token_id": 3,
        "sample_from_anchor": True,
        **more,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def dspark(model: Any, folder: Path) -> Path:
    output = output_of(model)
    vocab, width = output.shape
    weights = {
        "markov_head.markov_w1.weight": drawn(vocab, width, seed=60, scale=1.0),
        "markov_head.markov_w2.weight": output,
    }
    more = {"speculators_model_type": "dspark", "markov_rank": width}
    return dflash(model, folder, weights=weights, **more)


HEADS: Mapping[str, Callable[..., Path]] = {
    "medusa": medusa,
    "blockwise": blockwise,
    "hydra": hydra,
    "mlp": mlp,
    "redrafter": redrafter,
    "eagle": eagle,
    "mtp": mtp,
    "dflash": dflash,
    "dspark": dspark,
}
"""The writer of a head for a model, by the name of its drafter."""


def watched_heads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with head files from now on: "opened", or the storage that one is read for."""
    seen: list[str] = []

    def opening(*given: Any, **named: Any) -> HeadFile:
        seen.append("opened")
        return open_head(*given, **named)

    load = HeadFile.load

    def loading(file: HeadFile, *given: Any, **named: Any) -> Any:
        seen.append(named["storage"])
        return load(file, *given, **named)

    monkeypatch.setattr(draft_heads, "open_head", opening)
    monkeypatch.setattr(HeadFile, "load", loading)
    return seen
