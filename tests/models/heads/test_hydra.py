"""Hydra heads: the forward by its equations, as a chain and as a tree, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.target import Need, TargetInfo
from paceline.core.view import TargetView
from paceline.errors import InvalidInput, ModelError
from paceline.models.heads import load_head
from tests.tiny_heads import Alone

HIDDEN, VOCAB, HEADS = 16, 40, 3
TARGET = TargetInfo("tiny", VOCAB, gives=frozenset({Hidden.all(4)}), hidden_size=HIDDEN)


def drawn(*shape: int, seed: int) -> Tensor:
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


EMBEDDING = drawn(VOCAB, HIDDEN, seed=77)
X = drawn(HIDDEN, seed=1)


def tensors_of(
    *, grounded: bool = True, blocks: int = 1, dropout: bool = False, bias: bool = True
) -> dict[str, Tensor]:
    """Random weights in the names of the repository; a dropout layer shifts the numbers."""
    found: dict[str, Tensor] = {}
    for head in range(HEADS):
        for rank in range(blocks):
            wide = HIDDEN * (head + 2) if grounded and rank == 0 else HIDDEN
            stem = f"hydra_mlp.{head}.{2 * rank + 1 if dropout else rank}"
            layers = ["linear", "res_connection"] if wide != HIDDEN else ["linear"]
            for place, layer in enumerate(layers):
                seed = 100 * head + 10 * rank + place
                found[f"{stem}.{layer}.weight"] = drawn(HIDDEN, wide, seed=seed)
                found[f"{stem}.{layer}.bias"] = drawn(HIDDEN, seed=seed + 5)
        stem = f"hydra_lm_head.{head}{'.1' if dropout else ''}"
        found[f"{stem}.weight"] = drawn(VOCAB, HIDDEN, seed=900 + head)
        if bias:
            found[f"{stem}.bias"] = drawn(VOCAB, seed=950 + head)
    return found


def written(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "hydra_lm_head.safetensors")
    settings = {"hydra_num_heads": HEADS, "hydra_num_layers": 1, "grounded_heads": True, **config}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def by_the_equations(
    tensors: dict[str, Tensor], path: tuple[int, ...], *, grounded: bool = True
) -> Tensor:
    """The logits of the head that follows the last committed token and the drafted ones of path."""
    head = len(path) - 1
    x = torch.cat([X, *(EMBEDDING[token] for token in path)]) if grounded else X
    numbers = sorted(
        {int(key.split(".")[2]) for key in tensors if key.startswith(f"hydra_mlp.{head}.")}
    )
    for number in numbers:
        stem = f"hydra_mlp.{head}.{number}"
        inner = tensors[f"{stem}.linear.weight"] @ x + tensors[f"{stem}.linear.bias"]
        if f"{stem}.res_connection.weight" in tensors:
            residual = tensors[f"{stem}.res_connection.weight"] @ x
            residual = residual + tensors[f"{stem}.res_connection.bias"]
        else:
            residual = x
        x = residual + inner * torch.sigmoid(inner)
    stem = next(k for k in tensors if k.startswith(f"hydra_lm_head.{head}.") and k[-6:] == "weight")
    bias = tensors.get(stem.removesuffix("weight") + "bias", torch.zeros(VOCAB))
    return tensors[stem] @ x + bias


def levels_of(head: Any, hidden: HiddenStates) -> dict[tuple[int, ...], Tensor]:
    """The logits after each path of a tree, through the contract."""
    state = Alone(head.open(TargetView(TARGET, embed=lambda tokens: EMBEDDING[tokens]), 10))
    with torch.inference_mode():
        state.observe(hidden, [5, 7])
        first = state.start(3)
        second = state.follow([0, 0], [1, 2])
        third = state.follow([1, 0, 1], [3, 4, 5])
    return {
        (7,): first[0],
        (7, 1): second[0],
        (7, 2): second[1],
        (7, 2, 3): third[0],
        (7, 1, 4): third[1],
        (7, 2, 5): third[2],
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"blocks": 3},
        {"bias": False},
        {"dropout": True},
        {"grounded": False, "blocks": 2},
    ],
    ids=str,
)
def test_the_forward_is_that_of_the_equations(tmp_path: Path, options: dict[str, Any]) -> None:
    tensors = tensors_of(**options)
    head = load_head(written(tmp_path / "head", tensors), TARGET)
    grounded = options.get("grounded", True)
    needs = {Hidden(final=True)} | ({Need.EMBEDDING} if grounded else set())
    assert (head.drafter, head.max_levels, head.needs) == ("hydra", HEADS, needs)
    found = levels_of(head, HiddenStates({}, torch.stack([0 * X, X])))
    for path, logits in found.items():
        expected = by_the_equations(tensors, path, grounded=grounded)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_an_offset_names_an_earlier_layer(tmp_path: Path) -> None:
    """1 is the input of the last layer: the state before the last one in transformers' list."""
    tensors = tensors_of()
    folder = written(tmp_path / "head", tensors, hidden_state_offset=1)
    head = load_head(folder, TARGET)
    assert head.needs == {Hidden((3,)), Need.EMBEDDING}
    found = levels_of(head, HiddenStates({3: torch.stack([0 * X, X])}))
    torch.testing.assert_close(
        found[7, 2, 5], by_the_equations(tensors, (7, 2, 5)), rtol=0, atol=1e-5
    )
    with pytest.raises(InvalidInput, match="the number of layers of the target is not known"):
        load_head(folder)


class TestRefused:
    def test_attention_of_its_own(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "h", tensors_of(), hydra_head_arch="prefix-mlp")
        with pytest.raises(InvalidInput, match="architecture 'prefix-mlp', with attention of its"):
            load_head(folder, TARGET)

    def test_another_target(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "h", tensors_of())
        with pytest.raises(InvalidInput, match=r"hidden size 16 \(the target has 48\), vocabulary"):
            load_head(folder, TargetInfo("other", 50, hidden_size=48))

    @pytest.mark.parametrize(
        ("key", "words"),
        [
            ("hydra_mlp.1.0.res_connection.weight", "lacks the tensor 'hydra_mlp.1.0.res_conn"),
            ("hydra_mlp.1.0.linear.weight", "lacks the tensor 'hydra_mlp.1.0.linear.weight'"),
            ("hydra_lm_head.1.weight", "lacks the tensor 'hydra_lm_head.1.weight'"),
        ],
    )
    def test_a_missing_key(self, tmp_path: Path, key: str, words: str) -> None:
        tensors = tensors_of()
        del tensors[key]
        with pytest.raises(ModelError, match=words):
            load_head(written(tmp_path / "h", tensors), TARGET)

    def test_no_tensor_of_a_hydra_head(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "h", {"a": torch.ones(1)})
        with pytest.raises(ModelError, match="has no tensors of Hydra heads"):
            load_head(folder, TARGET)

    def test_a_tensor_without_a_place(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "h", {**tensors_of(), "gate": torch.ones(1)})
        with pytest.raises(ModelError, match=r"1 of its tensors have no place in a Hydra head \(g"):
            load_head(folder, TARGET)

    def test_output_layers_of_different_lengths(self, tmp_path: Path) -> None:
        tensors = tensors_of(bias=False)
        tensors["hydra_lm_head.1.weight"] = torch.ones(VOCAB - 1, HIDDEN)
        with pytest.raises(ModelError, match="the output layers have 39 and 40 rows"):
            load_head(written(tmp_path / "h", tensors), TARGET)


def test_it_is_cut_to_some_tokens(tmp_path: Path) -> None:
    tensors, kept = tensors_of(), torch.tensor([2, 30])
    head = load_head(written(tmp_path / "h", tensors), TARGET, token_ids=kept)
    assert head.token_ids is not None
    assert head.token_ids.tolist() == [2, 30]
    found = levels_of(head, HiddenStates({}, torch.stack([0 * X, X])))
    for path, logits in found.items():
        expected = by_the_equations(tensors, path)[kept]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
