"""MTP modules whose layer is one of transformers': against that layer on the joined inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.errors import ModelError
from paceline.models.heads import load_head
from tests.models.heads.equations import Equations, rms_norm
from tests.models.heads.test_eagle3 import DRAFTED, TOKENS
from tests.models.heads.test_mtp import NAMES
from tests.tiny_heads import (
    NUM_LAYERS,
    TARGET,
    VOCAB,
    WIDTH,
    chain_logits,
    layer_settings,
    random_hidden,
    random_weights,
    view_of,
)
from tests.tiny_models import FAMILIES, randomise

MOE = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3": ("deepseek", {**FAMILIES["deepseek_v3"][1], "hidden_size": WIDTH}),
    "glm4_moe": ("deepseek", {**layer_settings(), **MOE, "first_k_dense_replace": 1}),
    "qwen3_next": (
        "qwen",
        {
            **layer_settings(),
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention"] * (NUM_LAYERS - 1) + ["full_attention"],
        },
    ),
    "qwen3_5_text": (
        "qwen",
        {
            **layer_settings(),
            "layer_types": ["linear_attention"] * (NUM_LAYERS - 1) + ["full_attention"],
        },
    ),
}
"""The naming of each kind of model, and its settings."""

SHARED = random_weights({"embedding": [VOCAB, WIDTH], "output": [VOCAB, WIDTH]}, seed=8)
VIEW = view_of(SHARED["embedding"], SHARED["output"])


def layer_of(kind: str) -> Any:
    """The kind's own model with one layer, the last of its kind."""
    _, settings = KINDS[kind]
    one = {**settings, "num_hidden_layers": 1, "vocab_size": 32, "pad_token_id": None}
    if "layer_types" in settings:
        one["layer_types"] = ["full_attention"]
    if "first_k_dense_replace" in settings:
        one["first_k_dense_replace"] = 0
    config = AutoConfig.for_model(kind, **one)
    return randomise(lambda: AutoModelForCausalLM.from_config(config))


def write(folder: Path, kind: str, model: Any) -> tuple[Path, dict[str, Tensor]]:
    """The module as a model's files have it, and its weights beside the layer."""
    naming, settings = KINDS[kind]
    model.save_pretrained(folder / "layer")
    stored = load_file(folder / "layer" / "model.safetensors")
    around = random_weights(
        {
            "fc.weight": [WIDTH, 2 * WIDTH],
            "embedding_norm.weight": [WIDTH],
            "feature_norm.weight": [WIDTH],
        }
    )
    module = {
        name.removeprefix("model."): tensor
        for name, tensor in stored.items()
        if name.startswith(("model.layers.0.", "model.norm."))
    }
    starts, tensors = NAMES[naming], {}
    for name, tensor in {**module, **around}.items():
        start = next(start for start in starts if name.startswith(start))
        tensors[starts[start] + name.removeprefix(start)] = tensor
    tensors["model.layers.0.self_attn.q_proj.weight"] = torch.ones(2, 2)  # the model's own
    save_file(tensors, folder / "model.safetensors")
    whole = {**settings, "num_hidden_layers": NUM_LAYERS, "vocab_size": VOCAB, "model_type": kind}
    (folder / "config.json").write_text(json.dumps(whole))
    return folder, around


def equations(kind: str, model: Any, around: dict[str, Tensor]) -> Equations:
    """The module by transformers' own layer, over the whole text."""
    naming, _ = KINDS[kind]
    offset = float(kind.startswith("qwen"))

    def rows(embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        if naming == "deepseek":
            embedded = torch.cat([torch.zeros_like(embedded[:1]), embedded[1:]])
        eps = model.config.rms_norm_eps
        e = rms_norm(embedded, offset + around["embedding_norm.weight"], eps)
        f = rms_norm(features, offset + around["feature_norm.weight"], eps)
        x = torch.cat([e, f], dim=-1) @ around["fc.weight"].T
        before: list[Tensor] = []
        hook = model.model.norm.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        with torch.no_grad():
            last = model.model(inputs_embeds=x[None], use_cache=False).last_hidden_state[0]
        hook.remove()
        return last, before[0][0] if naming == "deepseek" else last

    assert VIEW.embed is not None
    assert VIEW.head is not None
    return Equations(lambda layers, final: final, rows, VIEW.embed, VIEW.head)


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_computes_what_transformers_own_layer_does(kind: str, tmp_path: Path) -> None:
    model = layer_of(kind)
    folder, around = write(tmp_path, kind, model)
    head = load_head(folder, TARGET, dtype=torch.float32)
    assert head.drafter == "mtp"
    hidden = random_hidden(len(TOKENS))
    assert hidden.final is not None
    found = chain_logits(head, VIEW, hidden, TOKENS, DRAFTED)
    expected = equations(kind, model, around).logits({}, hidden.final, TOKENS, DRAFTED)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    folder, _ = write(tmp_path, "glm4_moe", layer_of("glm4_moe"))
    stored = load_file(folder / "model.safetensors")
    del stored[f"model.layers.{NUM_LAYERS}.self_attn.o_proj.weight"]
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(ModelError, match="o_proj"):
        load_head(folder, TARGET, dtype=torch.float32)
