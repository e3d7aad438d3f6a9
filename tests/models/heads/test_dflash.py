"""DFlash and DSpark heads against the equations, in the speculators format and z-lab's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import run
from paceline.core.view import TargetView
from paceline.errors import InvalidInput, ModelError, PacelineError, UnsupportedModel
from paceline.models.heads import load_head
from tests.models.heads import equations
from tests.models.heads.test_eagle3 import KEPT, LAYERS, TOKENS, close
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

BLOCK, MASK, RANK, NUM_LAYERS = 4, 6, 5, 2
DRAFTED = [11, 63, 0]
KINDS = ["vanilla", "gated", "rnn"]


def weights_of(kind: str | None = None, *, outputs: int | None = len(KEPT)) -> dict[str, Tensor]:
    shapes: dict[str, list[int]] = {
        "fc.weight": [WIDTH, len(LAYERS) * WIDTH],
        "hidden_norm.weight": [WIDTH],
        "norm.weight": [WIDTH],
    }
    for number in range(NUM_LAYERS):
        shapes |= layer_shapes(f"layers.{number}", qk_norms=True)
        shapes[f"layers.{number}.input_layernorm.weight"] = [WIDTH]
    if outputs is not None:
        shapes["lm_head.weight"] = [outputs, WIDTH]
    if kind is not None:
        shapes["markov_head.markov_w1.weight"] = [VOCAB, RANK]
        shapes["markov_head.markov_w2.weight"] = [outputs or VOCAB, RANK]
        shapes["confidence_head.proj.weight"] = [1, WIDTH + RANK]
        shapes["confidence_head.proj.bias"] = [1]
    if kind == "gated":
        shapes["markov_head.gate_proj.weight"] = [RANK, WIDTH + RANK]
        shapes["markov_head.gate_proj.bias"] = [RANK]
    if kind == "rnn":
        shapes["markov_head.joint_proj.weight"] = [3 * RANK, 2 * RANK + WIDTH]
        shapes["markov_head.joint_proj.bias"] = [3 * RANK]
    return random_weights(shapes)


def config_of(kind: str | None, **changes: Any) -> dict[str, Any]:
    layers = {"model_type": "qwen3", **layer_settings(num_hidden_layers=NUM_LAYERS)}
    return {
        "speculators_model_type": "dspark" if kind else "dflash",
        "transformer_layer_config": layers,
        "aux_hidden_state_layer_ids": list(LAYERS),
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "markov_head_type": kind,
        "markov_rank": RANK,
        **changes,
    }


def write(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stored = dict(weights)
    if len(weights.get("lm_head.weight", ())) == len(KEPT):
        stored["d2t"] = KEPT - torch.arange(len(KEPT))
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def load(folder: Path, **options: Any) -> Any:
    return load_head(folder, TARGET, dtype=torch.float32, **options)


EMBEDDING = random_weights({"embedding": [VOCAB, WIDTH]}, seed=8)["embedding"]
VIEW = view_of(EMBEDDING, random_weights({"output": [VOCAB, WIDTH]}, seed=9)["output"])


def expected(
    weights: dict[str, Tensor],
    hidden: HiddenStates,
    last: int,
    drafted: list[int],
    *,
    from_first: bool,
    kind: str | None = None,
) -> Tensor:
    g = torch.cat([hidden.layers[layer] for layer in LAYERS], dim=-1) @ weights["fc.weight"].T
    context = equations.rms_norm(g, weights["hidden_norm.weight"])
    rows = EMBEDDING[torch.tensor([last, *[MASK] * (BLOCK - 1)])]
    states = equations.block(weights, context, rows, num_layers=NUM_LAYERS)
    states = states if from_first else states[1:]
    output = weights.get("lm_head.weight")
    base = VIEW.head(states) if output is None else states @ output.T  # type: ignore[misc]
    found = equations.sequential(kind, weights, states, [last, *drafted], base)
    return found[: len(drafted) + 1]


@pytest.mark.parametrize("outputs", [len(KEPT), None])
@pytest.mark.parametrize("from_first", [False, True])
def test_dflash_computes_the_equations(
    from_first: bool, outputs: int | None, tmp_path: Path
) -> None:
    weights = weights_of(outputs=outputs)
    head = load(write(tmp_path, weights, config_of(None, sample_from_anchor=from_first)))
    most = BLOCK - (not from_first)
    assert (head.drafter, head.max_levels) == ("dflash", most)
    hidden, drafted = random_hidden(len(TOKENS)), DRAFTED[: most - 1]
    for end in (1, len(TOKENS)):
        part = hidden.rows(slice(0, end))
        close(
            chain_logits(head, VIEW, part, TOKENS[:end], drafted),
            expected(weights, part, TOKENS[end - 1], drafted, from_first=from_first),
        )


@pytest.mark.parametrize("kind", KINDS)
def test_dspark_computes_the_equations(kind: str, tmp_path: Path) -> None:
    weights = weights_of(kind)
    head = load(write(tmp_path, weights, config_of(kind)))
    assert (head.drafter, head.max_levels) == ("dspark", BLOCK)
    hidden = random_hidden(len(TOKENS))
    close(
        chain_logits(head, VIEW, hidden, TOKENS, DRAFTED),
        expected(weights, hidden, TOKENS[-1], DRAFTED, from_first=True, kind=kind),
    )


@pytest.mark.parametrize("by_token", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_its_confidence_is_that_of_the_equation(kind: str, by_token: bool, tmp_path: Path) -> None:
    """sigmoid(w [h_k; W1[x_{k-1}]] + b): of the token before, never of the token itself."""
    weights, config = weights_of(kind, outputs=None), config_of(kind)
    if not by_token:
        short = weights["confidence_head.proj.weight"][:, :WIDTH].clone()
        weights["confidence_head.proj.weight"] = short
        config["confidence_head_with_markov"] = False
    head, hidden = load(write(tmp_path, weights, config)), random_hidden(len(TOKENS))
    g = torch.cat([hidden.layers[layer] for layer in LAYERS], dim=-1) @ weights["fc.weight"].T
    context = equations.rms_norm(g, weights["hidden_norm.weight"])
    rows = EMBEDDING[torch.tensor([TOKENS[-1], *[MASK] * (BLOCK - 1)])]
    states = equations.block(weights, context, rows, num_layers=NUM_LAYERS)
    w, b = weights["confidence_head.proj.weight"][0], weights["confidence_head.proj.bias"]
    before = [TOKENS[-1], *DRAFTED]
    embedding = weights["markov_head.markov_w1.weight"]
    expected = [
        float(w[:WIDTH] @ h + b + (w[WIDTH:] @ embedding[token] if by_token else 0))
        for h, token in zip(states, before, strict=True)
    ]
    state = head.open(VIEW, 64)
    with torch.inference_mode():
        state.observe(hidden, TOKENS)
    levels = [run(state.start(BLOCK)), *(run(state.follow([0], [t])) for t in DRAFTED)]
    found = [float(level.acceptance[0]) for level in levels if level.acceptance is not None]
    assert found == pytest.approx(torch.tensor(expected).sigmoid().tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_of_dspark_is_its_paths(kind: str, tmp_path: Path) -> None:
    weights = weights_of(kind)
    head, hidden = load(write(tmp_path, weights, config_of(kind))), random_hidden(len(TOKENS))
    with torch.inference_mode():
        state = Alone(head.open(VIEW, 64))
        state.observe(hidden, TOKENS)
        state.start(3)
        state.follow([0, 0], [7, 9])
        rows = state.follow([1, 0, 1], [5, 6, 7])
    for row, path in zip(rows, ([9, 5], [7, 6], [9, 7]), strict=True):
        close(row, expected(weights, hidden, TOKENS[-1], path, from_first=True, kind=kind)[-1])


def test_tokens_that_come_in_parts_are_those_that_come_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, hidden = load(write(tmp_path, weights_of("rnn"), config_of("rnn"))), random_hidden(9)
    whole = chain_logits(head, VIEW, hidden, TOKENS, DRAFTED)
    monkeypatch.setattr("paceline.targets.heads.block.READ_ROWS", 2)
    for cuts in ([1], [4, 5], [3, 6]):
        with torch.inference_mode():
            state = Alone(head.open(VIEW, 64))
            for start, end in zip([0, *cuts], [*cuts, len(TOKENS)], strict=True):
                state.observe(hidden.rows(slice(start, end)), TOKENS[start:end])
                for _ in range(2):  # a draft may be made again
                    found = [state.start(4), *(state.follow([0], [t]) for t in DRAFTED)]
        close(torch.cat(found), whole)


@pytest.mark.parametrize("written", [[0, 1, 3], [-1, 1, 3]])
def test_z_labs_files_number_what_leaves_a_layer(written: list[int], tmp_path: Path) -> None:
    weights = weights_of(outputs=None)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **layer_settings(num_hidden_layers=NUM_LAYERS),
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": written},
    }
    head = load(write(tmp_path, weights, config))
    needs = next(need for need in head.needs if isinstance(need, Hidden))
    assert needs.layers == tuple(n + 1 for n in written)
    assert (head.drafter, head.max_levels) == ("dflash", BLOCK - 1)
    if written[0] == 0:
        hidden = random_hidden(len(TOKENS))
        close(
            chain_logits(head, VIEW, hidden, TOKENS, DRAFTED[:2]),
            expected(weights, hidden, TOKENS[-1], DRAFTED[:2], from_first=False),
        )
    with pytest.raises(InvalidInput, match="no dialects"):
        load(tmp_path, dialect="vllm")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"mask_token_id": None}, ModelError, "mask_token_id"),
        ({"mask_token_id": VOCAB}, ModelError, f"mask_token_id is {VOCAB}, and its tokens are 0"),
        ({"aux_hidden_state_layer_ids": None}, ModelError, "which layers"),
        ({"block_size": 0}, ModelError, "block_size"),
        ({"markov_head_type": "lstm"}, UnsupportedModel, "lstm"),
        ({"markov_rank": 6}, ModelError, "markov_w1"),
        ({"markov_head_type": "gated"}, ModelError, "gate_proj"),
        ({"aux_hidden_state_layer_ids": [1, 2, 9]}, InvalidInput, "layers, at least 9"),
    ],
    ids=str,
)
def test_bad_files_are_one_clear_error(
    changes: dict[str, Any], error: type[PacelineError], words: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, weights_of("vanilla"), config_of("vanilla", **changes))
    with pytest.raises(error, match=words):
        load(folder)


def test_a_target_without_the_layers_is_refused(tmp_path: Path) -> None:
    head = load(write(tmp_path, weights_of(), config_of(None)))
    small = replace(TARGET, gives=frozenset({"embedding", "head", Hidden.all(2)}))
    with pytest.raises(InvalidInput, match="hidden states 1, 2, 4"):
        head.open(TargetView(small), 8)


def test_it_may_be_cut_to_some_tokens_but_for_what_goes_from_token_to_token(tmp_path: Path) -> None:
    few = KEPT[3:7]
    folder = write(tmp_path / "a", weights_of(), config_of(None))
    hidden = random_hidden(3)
    whole, cut = (
        chain_logits(load(folder, **more), VIEW, hidden, TOKENS[:3], [1])
        for more in ({}, {"token_ids": few})
    )
    close(cut, whole[:, 3:7])
    assert torch.equal(load(folder, token_ids=few).token_ids, few)
    other = write(tmp_path / "b", weights_of("vanilla"), config_of("vanilla"))
    with pytest.raises(InvalidInput, match="draft_head_tokens"):
        load(other, token_ids=few)
