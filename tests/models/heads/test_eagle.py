"""Heads in the formats of EAGLE's repository, and what their writers mean by the same settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.hidden import Hidden
from paceline.core.view import TargetView
from paceline.errors import InvalidInput, ModelError, UnsupportedModel
from paceline.models.heads import load_head
from tests.models.heads.equations import eagle1, eagle3
from tests.models.heads.test_eagle3 import (
    DRAFTED,
    KEPT,
    LAYERS,
    TOKENS,
    close,
    settings_of,
    weights_of,
)
from tests.tiny_heads import (
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

IDS = "eagle_aux_hidden_state_layer_ids"


def write(folder: Path, weights: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    settings = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **layer_settings()}
    (folder / "config.json").write_text(json.dumps({**settings, **config}))
    return folder


def midlayer(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """An EAGLE-3 head with the names of EAGLE's repository."""
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[KEPT] = True
    named = {name.replace("layers.0.", "midlayer."): x for name, x in weights.items()}
    return {**named, "d2t": KEPT - torch.arange(len(KEPT)), "t2d": known}


def load(folder: Path | str, **options: Any) -> Any:
    return load_head(folder, TARGET, dtype=torch.float32, **options)


def reads(head: Any) -> tuple[int, ...]:
    return next(need.layers for need in head.needs if isinstance(need, Hidden))


def logits_of(head: Any) -> Tensor:
    return chain_logits(head, TargetView(TARGET), random_hidden(len(TOKENS)), TOKENS, DRAFTED)


@pytest.mark.parametrize(
    ("dialect", "written"), [("eagle", LAYERS), ("vllm", LAYERS), ("specforge", (0, 1, 3))]
)
@pytest.mark.parametrize("within", [True, False])
def test_layers_are_numbered_as_the_dialect_numbers_them(
    dialect: str, written: tuple[int, ...], within: bool, tmp_path: Path
) -> None:
    """The same head with the numbers of each dialect, in either place of the configuration."""
    weights = weights_of(settings_of())
    config = {IDS: list(written)}
    folder = write(tmp_path, midlayer(weights), **({"eagle_config": config} if within else config))
    head = load(folder, dialect=dialect)
    hidden, equations = random_hidden(len(TOKENS)), eagle3(weights, LAYERS)
    assert hidden.final is not None
    assert reads(head) == reads(load(f"{folder}@{dialect}")) == LAYERS
    close(logits_of(head), equations.logits(hidden.layers, hidden.final, TOKENS, DRAFTED))


def test_a_file_that_may_mean_either_is_refused(tmp_path: Path) -> None:
    weights = midlayer(weights_of(settings_of()))
    for setting in ({IDS: [1, 2, 4]}, {"norm_output": True}):
        folder = write(tmp_path, weights, **setting)
        with pytest.raises(InvalidInput, match=r"@eagle, .*@vllm, .*@specforge"):
            load(folder)
        with pytest.raises(InvalidInput, match="unknown dialect 'sglang'"):
            load(folder, dialect="sglang")
    with pytest.raises(InvalidInput, match="no such draft head"):
        load(f"{folder}@sglang")
    with pytest.raises(InvalidInput, match="another dialect"):
        load(f"{folder}@vllm", dialect="eagle")
    # A folder that is there is meant, whatever it is called.
    folder = write(tmp_path / "a@vllm", weights, **{IDS: [1, 2, 4]})
    assert reads(load(folder, dialect="specforge")) == (2, 3, 5)


def test_without_numbers_all_dialects_read_the_same_layers(tmp_path: Path) -> None:
    folder = write(tmp_path, midlayer(weights_of(settings_of())))
    target = replace(TARGET, gives=frozenset({Hidden.all(30)}))
    for dialect in (None, "eagle", "vllm", "specforge"):
        assert reads(load_head(folder, target, dialect=dialect)) == (2, 15, 27)


@pytest.mark.parametrize(("dialect", "feeds_normed"), [("vllm", True), ("specforge", False)])
def test_the_output_norm_is_what_the_dialect_means(
    dialect: str, feeds_normed: bool, tmp_path: Path
) -> None:
    weights = weights_of(settings_of(fc_norm=True))
    written = [layer - (dialect == "specforge") for layer in LAYERS]
    config = {IDS: written, "norm_output": True, "fc_norm": True}
    folder = write(tmp_path, midlayer(weights), **config)
    equations = eagle3(weights, LAYERS, fc_norm=True, norm_output=feeds_normed)
    hidden = random_hidden(len(TOKENS))
    assert hidden.final is not None
    close(
        logits_of(load(folder, dialect=dialect)),
        equations.logits(hidden.layers, hidden.final, TOKENS, DRAFTED),
    )


def test_a_head_without_a_last_norm_is_refused(tmp_path: Path) -> None:
    weights = midlayer(weights_of(settings_of()))
    folder = write(tmp_path, weights, **{IDS: [0, 1, 3], "norm_output": False})
    with pytest.raises(UnsupportedModel, match="last norm"):
        load(folder, dialect="specforge")


def eagle1_weights(*, bias: bool = True) -> dict[str, Tensor]:
    shapes: dict[str, list[int]] = {
        "embed_tokens.weight": [VOCAB, WIDTH],
        "fc.weight": [WIDTH, 2 * WIDTH],
        **layer_shapes("layers.0"),
    }
    if bias:
        shapes["fc.bias"] = [WIDTH]
        shapes |= {
            f"layers.0.self_attn.{x}_proj.bias": [n]
            for x, n in zip("qkv", (32, 16, 16), strict=True)
        }
    # Without norms before it, the layer would make large numbers of the usual random weights.
    return {name: x if "norm" in name else 0.5 * x for name, x in random_weights(shapes).items()}


@pytest.mark.parametrize("bias", [True, False])
def test_eagle1_computes_the_equations(bias: bool, tmp_path: Path) -> None:
    weights = eagle1_weights(bias=bias)
    output = 0.3 * torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(9))
    view = view_of(weights["embed_tokens.weight"], output)
    head = load(write(tmp_path, weights, bias=bias))
    assert view.head is not None
    assert view.embed is not None
    assert head.needs == {Hidden(final=True), "head"}
    hidden, equations = random_hidden(len(TOKENS)), eagle1(weights, view.head, view.embed)
    assert hidden.final is not None
    close(
        chain_logits(head, view, hidden, TOKENS, DRAFTED),
        equations.logits(hidden.layers, hidden.final, TOKENS, DRAFTED),
    )


def test_the_norm_that_no_eagle1_applies_is_ignored(tmp_path: Path) -> None:
    weights = eagle1_weights()
    plain = load(write(tmp_path / "plain", weights))
    extra = {**weights, "layers.0.input_layernorm.weight": torch.full((WIDTH,), 7.0)}
    other = load(write(tmp_path / "other", extra))
    view, hidden = (
        view_of(weights["embed_tokens.weight"], torch.eye(VOCAB, WIDTH)),
        random_hidden(3),
    )
    found = [chain_logits(head, view, hidden, TOKENS[:3], DRAFTED) for head in (plain, other)]
    assert torch.equal(*found)


def test_what_is_missing_or_left_is_named(tmp_path: Path) -> None:
    weights = eagle1_weights()
    lacking = {name: x for name, x in weights.items() if "up_proj" not in name}
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj"):
        load(write(tmp_path / "a", lacking))
    with pytest.raises(ModelError, match="scale"):
        load(write(tmp_path / "b", {**weights, "scale": torch.ones(1)}))
    with pytest.raises(InvalidInput, match=r"hidden size 32 .the target has 48"):
        load_head(write(tmp_path / "c", weights), replace(TARGET, hidden_size=48))
