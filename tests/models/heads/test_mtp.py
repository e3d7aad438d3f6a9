"""MTP modules in every naming, against the equations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.hidden import Hidden
from paceline.errors import InvalidInput, ModelError, UnsupportedModel
from paceline.models.heads import load_head
from tests.models.heads.equations import mtp
from tests.models.heads.test_eagle3 import DRAFTED, TOKENS, close
from tests.tiny_heads import (
    NUM_LAYERS,
    TARGET,
    VOCAB,
    WIDTH,
    chain_logits,
    layer_settings,
    layer_shapes,
    random_hidden,
    random_weights,
    view_of,
)

NAMES: dict[str, dict[str, str]] = {
    "mimo": {
        "layers.0.": "model.mtp_layers.0.",
        "fc.": "model.mtp_layers.0.input_proj.",
        "embedding_norm.": "model.mtp_layers.0.token_layernorm.",
        "feature_norm.": "model.mtp_layers.0.hidden_layernorm.",
        "norm.": "model.mtp_layers.0.final_layernorm.",
    },
    "deepseek": {
        "layers.0.": f"model.layers.{NUM_LAYERS}.",
        "fc.": f"model.layers.{NUM_LAYERS}.eh_proj.",
        "embedding_norm.": f"model.layers.{NUM_LAYERS}.enorm.",
        "feature_norm.": f"model.layers.{NUM_LAYERS}.hnorm.",
        "norm.": f"model.layers.{NUM_LAYERS}.shared_head.norm.",
        "lm_head.": f"model.layers.{NUM_LAYERS}.shared_head.head.",
        "embed_tokens.": f"model.layers.{NUM_LAYERS}.embed_tokens.",
    },
    "qwen": {
        "layers.0.": "mtp.layers.0.",
        "fc.": "mtp.fc.",
        "embedding_norm.": "mtp.pre_fc_norm_embedding.",
        "feature_norm.": "mtp.pre_fc_norm_hidden.",
        "norm.": "mtp.norm.",
    },
    "speculators": {
        "layers.0.": "mtp_layers.0.",
        "fc.": "mtp_layers.0.input_proj.",
        "embedding_norm.": "mtp_layers.0.token_layernorm.",
        "feature_norm.": "mtp_layers.0.hidden_layernorm.",
        "norm.": "mtp_layers.0.final_layernorm.",
    },
}
"""What the names of the equations are called in each naming, by what they begin with."""

MEANS: dict[str, dict[str, bool]] = {
    "mimo": {"features_first": True, "zero_first": True},
    "deepseek": {"feeds_normed": False, "zero_first": True},
    "qwen": {},
    "speculators": {},
}
MODEL = {"model.embed_tokens.weight": [VOCAB, WIDTH], "lm_head.weight": [VOCAB, WIDTH]}
"""The rest of a model's files, in which a module stands."""


def module_weights(*, bias: bool = False) -> dict[str, Tensor]:
    shapes: dict[str, list[int]] = {
        "fc.weight": [WIDTH, 2 * WIDTH],
        "embedding_norm.weight": [WIDTH],
        "feature_norm.weight": [WIDTH],
        "norm.weight": [WIDTH],
        "layers.0.input_layernorm.weight": [WIDTH],
        **layer_shapes("layers.0"),
    }
    if bias:
        sizes = zip("qkv", (32, 16, 16), strict=True)
        shapes |= {f"layers.0.self_attn.{x}_proj.bias": [n] for x, n in sizes}
    return random_weights(shapes)


def named(naming: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    starts = NAMES[naming]
    found = {}
    for name, tensor in weights.items():
        start = next(start for start in starts if name.startswith(start))
        found[starts[start] + name.removeprefix(start)] = tensor
    return found


def write(folder: Path, naming: str, weights: dict[str, Tensor], **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tensors, layers = named(naming, weights), layer_settings(num_hidden_layers=NUM_LAYERS)
    config: dict[str, Any] = {"model_type": "llama", **layers, **changes}
    if naming == "mimo":
        config["model_type"] = "mimo"
    if naming == "speculators":
        config = {"speculators_model_type": "mtp", "transformer_layer_config": config}
    else:
        tensors |= random_weights(MODEL, seed=5)
        tensors |= random_weights(layer_shapes("model.layers.0"), seed=6)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def load(folder: Path) -> Any:
    return load_head(folder, TARGET, dtype=torch.float32)


@pytest.mark.parametrize("naming", NAMES)
def test_a_module_computes_the_equations_step_by_step(naming: str, tmp_path: Path) -> None:
    weights = module_weights(bias=naming == "mimo")
    model = random_weights(MODEL, seed=5)
    view = view_of(model["model.embed_tokens.weight"], model["lm_head.weight"])
    stored = dict(weights)
    if naming == "deepseek":  # its own copies of the shared rows
        stored |= {"embed_tokens.weight": model["model.embed_tokens.weight"]}
        stored |= {"lm_head.weight": model["lm_head.weight"]}
    head = load(write(tmp_path, naming, stored))
    shared = set() if naming == "deepseek" else {"embedding", "head"}
    assert head.needs == {Hidden(final=True), *shared}
    assert head.drafter == "mtp"
    assert view.head is not None
    assert view.embed is not None
    hidden, equations = (
        random_hidden(len(TOKENS)),
        mtp(weights, view.head, view.embed, **MEANS[naming]),
    )
    assert hidden.final is not None
    for end in (1, len(TOKENS)):
        close(
            chain_logits(head, view, hidden.rows(slice(0, end)), TOKENS[:end], DRAFTED),
            equations.logits(hidden.layers, hidden.final[:end], TOKENS[:end], DRAFTED),
        )


def test_what_the_namings_mean_differs() -> None:
    """The same weights give other logits where the order, the first row or what is fed differs."""
    weights, model = module_weights(), random_weights(MODEL, seed=5)
    view, hidden = (
        view_of(model["model.embed_tokens.weight"], model["lm_head.weight"]),
        random_hidden(3),
    )
    assert view.head is not None
    assert view.embed is not None
    assert hidden.final is not None
    found = [
        mtp(weights, view.head, view.embed, **meaning).logits({}, hidden.final, TOKENS[:3], [4])
        for meaning in ({}, {"features_first": True}, {"zero_first": True}, {"feeds_normed": False})
    ]
    for other in found[1:]:
        assert not torch.allclose(other[-1], found[0][-1], atol=1e-3)


def test_several_modules_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, "mimo", module_weights())
    other = {
        name.replace("mtp_layers.0.", "mtp_layers.1."): tensor
        for name, tensor in named("mimo", module_weights()).items()
    }
    save_file(other, folder / "more.safetensors")
    with pytest.raises(UnsupportedModel, match="2 MTP modules"):
        load(folder)


def test_bad_files_are_one_clear_error(tmp_path: Path) -> None:
    weights = module_weights()
    lacking = {name: x for name, x in weights.items() if name != "feature_norm.weight"}
    with pytest.raises(ModelError, match=r"feature_norm\.weight.*missing"):
        load(write(tmp_path / "a", "qwen", lacking))
    extra = {**weights, "layers.0.mlp.gate.weight": torch.ones(4, WIDTH)}
    with pytest.raises(ModelError, match=r"mtp\.layers\.0\.mlp\.gate"):
        load(write(tmp_path / "b", "qwen", extra))
    with pytest.raises(InvalidInput, match="vocabulary 70"):
        load(write(tmp_path / "c", "qwen", weights, vocab_size=70))
    with pytest.raises(UnsupportedModel, match="mixtral"):
        load(write(tmp_path / "d", "speculators", weights, model_type="mixtral"))
    with pytest.raises(ModelError, match="mlp"):  # it has no experts
        load(write(tmp_path / "e", "qwen", weights, model_type="mixtral"))
