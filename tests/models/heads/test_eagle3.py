"""EAGLE-3 and P-EAGLE heads, from files in the speculators format, against the equations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.view import TargetView
from paceline.errors import InvalidInput, ModelError, PacelineError, UnsupportedModel
from paceline.models.heads import load_head
from paceline.models.heads.eagle3 import Eagle3Settings
from paceline.models.heads.speculators import save_eagle3
from paceline.models.heads.weights import layer_config
from tests.models.heads.equations import eagle3
from tests.tiny_heads import (
    TARGET,
    VOCAB,
    WIDTH,
    Alone,
    chain_logits,
    layer_settings,
    layer_shapes,
    random_hidden,
    random_weights,
    view_of,
)

LAYERS = (1, 2, 4)
KEPT = torch.arange(24) * 2 + 1
TOKENS = [3, 9, 2, 30, 17, 44, 8, 60, 5]
DRAFTED = [11, 63, 0]
FLAGS: list[dict[str, bool]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_output": True},
    {"fc_norm": True, "norm_output": True, "norm_before_residual": True},
]


def settings_of(kind: str = "llama", num_layers: int = 1, **flags: Any) -> Eagle3Settings:
    given = {"model_type": kind, **layer_settings(num_hidden_layers=num_layers)}
    return Eagle3Settings(layer_config(given, "tiny"), layers=LAYERS, **flags)


def weights_of(settings: Eagle3Settings, num_outputs: int = len(KEPT)) -> dict[str, Tensor]:
    layers = settings.layer_config
    has_norms = layers.model_type == "qwen3"
    shapes: dict[str, list[int]] = {
        "fc.weight": [WIDTH, len(LAYERS) * WIDTH],
        "layers.0.hidden_norm.weight": [WIDTH],
        "norm.weight": [WIDTH],
        "lm_head.weight": [num_outputs, WIDTH],
        "embed_tokens.weight": [VOCAB, WIDTH],
    }
    for number in range(layers.num_hidden_layers):
        at = f"layers.{number}"
        width = WIDTH if number else 2 * WIDTH
        shapes |= layer_shapes(at, width, qk_norms=has_norms)
        shapes[f"{at}.input_layernorm.weight"] = [WIDTH]
    if settings.norm_before_fc:
        shapes["input_norm.weight"] = [len(LAYERS) * WIDTH]
    if settings.fc_norm:
        shapes |= {f"fc_norm.{number}.weight": [WIDTH] for number in range(len(LAYERS))}
    if settings.mask_token is not None:
        shapes["mask_hidden"] = [1, 1, len(LAYERS) * WIDTH]
    return random_weights(shapes)


def write(
    folder: Path,
    settings: Eagle3Settings | None = None,
    weights: dict[str, Tensor] | None = None,
    *,
    token_ids: Tensor | None = KEPT,
) -> Path:
    settings = settings or settings_of()
    save_eagle3(
        folder,
        settings,
        weights or weights_of(settings, VOCAB if token_ids is None else len(token_ids)),
        verifier="tiny",
        architectures=["LlamaForCausalLM"],
        num_draft_tokens=4,
        token_ids=token_ids,
    )
    return folder


def load(folder: Path, **options: Any) -> Any:
    return load_head(folder, TARGET, dtype=torch.float32, **options)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(flags) or "plain")
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_head_that_was_written_computes_the_equations(
    kind: str, flags: dict[str, bool], num_layers: int, tmp_path: Path
) -> None:
    settings = settings_of(kind, num_layers, **flags)
    weights = weights_of(settings)
    head = load(write(tmp_path, settings, weights))
    hidden = random_hidden(len(TOKENS))
    assert hidden.final is not None
    expected = eagle3(weights, LAYERS, num_layers=num_layers, **flags)
    close(
        chain_logits(head, TargetView(TARGET), hidden, TOKENS, DRAFTED),
        expected.logits(hidden.layers, hidden.final, TOKENS, DRAFTED),
    )
    assert torch.equal(head.token_ids, KEPT)
    assert (head.name, head.drafter, head.max_levels) == (tmp_path.name, "eagle", None)


def test_a_tree_of_drafted_tokens_is_its_paths(tmp_path: Path) -> None:
    """Cousins of a level go through in one pass, and see their own ancestors alone."""
    weights = weights_of(settings_of())
    head = load(write(tmp_path, settings_of(), weights))
    hidden, equations = random_hidden(len(TOKENS)), eagle3(weights, LAYERS)
    assert hidden.final is not None
    levels = [([0, 0, 0], [7, 9, 50]), ([2, 0, 2], [1, 2, 1]), ([0, 1], [5, 6])]
    with torch.inference_mode():
        state = Alone(head.open(TargetView(TARGET), 64))
        state.observe(hidden, TOKENS)
        paths: list[list[int]] = [[]]
        rows = state.start(4)
        for parents, tokens in [*levels, ([], [])]:
            for row, path in zip(rows, paths, strict=True):
                close(row, equations.logits(hidden.layers, hidden.final, TOKENS, path)[-1])
            if tokens:
                rows = state.follow(parents, tokens)
                paths = [
                    [*paths[parent], token] for parent, token in zip(parents, tokens, strict=True)
                ]


def test_what_was_drafted_between_rounds_leaves_nothing_behind(tmp_path: Path) -> None:
    """Tokens that became final in parts, with drafts between, are those that came at once."""
    head = load(write(tmp_path))
    hidden = random_hidden(len(TOKENS))
    expected = chain_logits(head, TargetView(TARGET), hidden, TOKENS, DRAFTED)
    for cuts in ([1], [3, 4], [2, 5, 8]):
        with torch.inference_mode():
            state = Alone(head.open(TargetView(TARGET), 64))
            for start, end in zip([0, *cuts], [*cuts, len(TOKENS)], strict=True):
                state.observe(hidden.rows(slice(start, end)), TOKENS[start:end])
                if end != cuts[-1]:  # once nothing is drafted, and rows wait
                    found = [state.start(4)]
                    found += [state.follow([0, 0], [token, 1])[:1] for token in DRAFTED[:1]]
                    found += [state.follow([0], [token]) for token in DRAFTED[1:]]
        close(torch.cat(found), expected)


def test_a_long_prompt_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = load(write(tmp_path))
    hidden = random_hidden(len(TOKENS))
    expected = chain_logits(head, TargetView(TARGET), hidden, TOKENS, DRAFTED)
    monkeypatch.setattr("paceline.targets.heads.state.READ_ROWS", 3)
    with torch.inference_mode():
        state = Alone(head.open(TargetView(TARGET), 64))
        for at in range(0, len(TOKENS), 2):
            state.observe(hidden.rows(slice(at, at + 2)), TOKENS[at : at + 2])
        found = [state.start(4)] + [state.follow([0], [token]) for token in DRAFTED]
    close(torch.cat(found), expected)


def test_the_mask_of_peagle_is_a_token(tmp_path: Path) -> None:
    settings = settings_of(mask_token=VOCAB, max_levels=4)
    folder = write(tmp_path, settings, weights_of(settings))
    with pytest.raises(ModelError, match=f"mask_token_id is {VOCAB}, and its tokens are 0"):
        load(folder)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_peagle_drafts_all_levels_in_one_pass(num_layers: int, tmp_path: Path) -> None:
    """A row without a token has the mask's embedding and state, and sees all rows before it."""
    settings = settings_of(num_layers=num_layers, mask_token=5, max_levels=4)
    weights = weights_of(settings)
    head = load(write(tmp_path, settings, weights))
    assert head.max_levels == 4
    hidden, equations = random_hidden(len(TOKENS)), eagle3(weights, LAYERS, num_layers=num_layers)
    assert hidden.final is not None
    mask = weights["mask_hidden"].reshape(1, -1) @ weights["fc.weight"].T
    with torch.inference_mode():
        state = Alone(head.open(TargetView(TARGET), 64))
        for start, end in ((0, 4), (4, 4), (4, 6), (6, len(TOKENS))):
            if end > start:
                state.observe(hidden.rows(slice(start, end)), TOKENS[start:end])
            found = [state.start(4), *(state.follow([0, 0], [1, 2])[:1] for _ in range(3))]
            states = {layer: x[:end] for layer, x in hidden.layers.items()}
            features = torch.cat([equations.fuse(states, hidden.final), mask.expand(3, -1)])
            embedded = equations.embed(torch.tensor([*TOKENS[:end], 5, 5, 5]))
            expected = equations.head(equations.rows(embedded, features)[0][-4:])
            close(torch.cat(found), expected)
            close(state.start(1), expected[:1])


def test_embedding_and_output_rows_may_be_the_targets(tmp_path: Path) -> None:
    weights = weights_of(settings_of(), VOCAB)
    hidden, view = (
        random_hidden(4),
        view_of(weights["embed_tokens.weight"], weights["lm_head.weight"]),
    )
    expected = chain_logits(
        load(write(tmp_path, None, weights, token_ids=None)), view, hidden, TOKENS[:4], DRAFTED
    )
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    del stored["embed_tokens.weight"], stored["lm_head.weight"]
    save_file(stored, path)
    head = load(tmp_path)
    assert {"embedding", "head"} <= set(head.needs)
    close(chain_logits(head, view, hidden, TOKENS[:4], DRAFTED), expected)


def test_storage_in_few_bits_changes_the_logits_a_little(tmp_path: Path) -> None:
    folder, hidden = write(tmp_path), random_hidden(len(TOKENS))
    exact = chain_logits(load(folder), TargetView(TARGET), hidden, TOKENS, DRAFTED)
    coarse = chain_logits(load(folder, storage="int8"), TargetView(TARGET), hidden, TOKENS, DRAFTED)
    assert not torch.equal(exact, coarse)
    assert float((exact - coarse).abs().max()) < 0.1 * float(exact.abs().max())


Change = Callable[[dict[str, Any], dict[str, Tensor]], None]


def _set(**entries: Any) -> Change:
    return lambda config, weights: config.update(entries)


def _without(name: str) -> Change:
    return lambda config, weights: (config if name in config else weights).pop(name)  # type: ignore[attr-defined]


def _weight(name: str, value: Tensor) -> Change:
    return lambda config, weights: weights.update({name: value})


def _layer(**entries: Any) -> Change:
    return lambda config, weights: config["transformer_layer_config"].update(entries)


BAD: dict[str, tuple[Change, type[PacelineError], str]] = {
    "missing weight": (_without("fc.weight"), ModelError, "fc.weight"),
    "missing norm": (_without("norm.weight"), ModelError, "norm.weight"),
    "missing layer": (_layer(num_hidden_layers=2), ModelError, "layers.1"),
    "left over": (_weight("layers.0.self_attn.q_scale", torch.ones(1)), ModelError, "q_scale"),
    "wrong size": (_weight("norm.weight", torch.ones(3)), ModelError, "norm.weight"),
    "wrong product": (_weight("fc.weight", torch.ones(WIDTH, 5)), ModelError, "fc"),
    "taps differ": (_set(eagle_aux_hidden_state_layer_ids=[1, 2]), ModelError, "fc"),
    "other width": (_set(target_hidden_size=48), InvalidInput, "hidden size 48"),
    "other vocabulary": (_layer(vocab_size=65), InvalidInput, "vocabulary 65"),
    "too few layers": (
        _set(eagle_aux_hidden_state_layer_ids=[2, 16, 29]),
        InvalidInput,
        "29 .the target has 5",
    ),
    "negative layer": (_set(eagle_aux_hidden_state_layer_ids=[-1, 2, 3]), ModelError, "from 0"),
    "no numbers": (_set(eagle_aux_hidden_state_layer_ids="1"), ModelError, "whole numbers"),
    "unknown kind": (_set(speculators_model_type="xpress"), UnsupportedModel, "xpress"),
    "unknown layers": (_layer(model_type="mamba"), UnsupportedModel, "mamba"),
    "no layers": (_without("transformer_layer_config"), ModelError, "describe the layers"),
    "two norms": (_set(norm_before_fc=True, fc_norm=True), InvalidInput, "both"),
    "no flag": (_set(fc_norm="yes"), ModelError, "fc_norm"),
    "token twice": (
        _weight("d2t", torch.zeros(24).long() - torch.arange(24)),
        InvalidInput,
        "twice",
    ),
    "token outside": (_weight("d2t", torch.full((24,), 60)), InvalidInput, "83"),
    "other map": (_weight("t2d", torch.ones(64, dtype=torch.bool)), ModelError, "t2d"),
    "no map": (
        lambda config, weights: [weights.pop(name) for name in ("d2t", "t2d")] and None,
        ModelError,
        "lm_head",
    ),
    "residual unknown": (_without("norm_before_residual"), InvalidInput, "@vllm"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_one_clear_error(case: str, tmp_path: Path) -> None:
    change, error, words = BAD[case]
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    weights = load_file(tmp_path / "model.safetensors")
    change(config, weights)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(error, match=words) as caught:
        load(tmp_path)
    assert tmp_path.name in str(caught.value) or case == "two norms"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("dialect", "normed"), [("speculators", False), ("vllm", True)])
def test_a_residual_that_is_not_named_follows_the_dialect(
    dialect: str, normed: bool, tmp_path: Path
) -> None:
    weights = weights_of(settings_of())
    write(tmp_path, settings_of(), weights)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("norm_before_residual") is False
    (tmp_path / "config.json").write_text(json.dumps(config))
    hidden = random_hidden(3)
    assert hidden.final is not None
    equations = eagle3(weights, LAYERS, norm_before_residual=normed)
    close(
        chain_logits(load(tmp_path, dialect=dialect), TargetView(TARGET), hidden, TOKENS[:3], [4]),
        equations.logits(hidden.layers, hidden.final, TOKENS[:3], [4]),
    )


def test_layers_that_are_not_named_follow_the_target(tmp_path: Path) -> None:
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match="L // 2"):
        load_head(tmp_path)
    with pytest.raises(InvalidInput, match="too few"):
        load(tmp_path)  # of five layers they would be 2, 2, 2
    head = load_head(tmp_path, replace(TARGET, gives=_gives(9)))
    assert sorted(next(need.layers for need in head.needs if not isinstance(need, str))) == [
        2,
        4,
        6,
    ]


def _gives(num_layers: int) -> Any:
    from paceline.core.hidden import Hidden

    return frozenset({Hidden.all(num_layers)})


def test_nothing_is_written_that_would_not_load(tmp_path: Path) -> None:
    settings = settings_of()
    good = weights_of(settings)
    with pytest.raises(InvalidInput, match=r"norm\.weight missing; extra without a place"):
        write(tmp_path, settings, {**_drop(good, "norm.weight"), "extra": torch.ones(1)})
    with pytest.raises(InvalidInput, match="24 outputs, and there are 64"):
        write(tmp_path, settings, good, token_ids=None)
    with pytest.raises(InvalidInput, match="layers"):
        write(tmp_path, replace(settings, layers=None), good)
    assert not (tmp_path / "model.safetensors").exists()


def _drop(weights: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: value for key, value in weights.items() if key != name}
