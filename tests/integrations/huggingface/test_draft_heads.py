"""`speculate(draft_head=...)`: exact, of whatever kind, with whatever model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import InvalidInput
from paceline.integrations.huggingface import speculate
from paceline.models.heads import load_head
from tests.integrations.huggingface.doors import REPETITIVE, ids, padded, same
from tests.tiny_head_files import HEADS, medusa, watched_heads
from tests.tiny_models import build, tiny


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_greedy_tokens_are_those_of_generate(tmp_path: Path, family: str, kind: str) -> None:
    model = tiny(family)
    path = HEADS[kind](model, tmp_path / kind)
    settings: list[dict[str, Any]] = [
        {"num_draft_tokens": 3},
        {"drafter": "ngram,head", "num_draft_tokens": 2},
        {"shape": "chain"},
    ]
    for own in settings:
        same(model, {"draft_head": path, **own}, inputs=ids(REPETITIVE), max_new_tokens=12)
    speculation = speculate(draft_head=path, num_draft_tokens=3)
    assert speculation.drafter.name == kind
    assert speculation.draft == f"head {kind}; drafter {kind}, a tree"


def test_a_batch_of_rows(tmp_path: Path) -> None:
    model = tiny("llama")
    rows = padded((7, 8, 9), (3,), tuple(REPETITIVE))
    same(model, {"draft_head": medusa(model, tmp_path / "h")}, **rows, max_new_tokens=8)


def test_one_that_is_loaded_and_one_by_path_draft_alike(tmp_path: Path) -> None:
    model = tiny("llama")
    path = medusa(model, tmp_path / "h")
    for head in (path, str(path), load_head(path)):
        output = model.generate(
            ids(REPETITIVE),
            max_new_tokens=10,
            return_dict_in_generate=True,
            custom_generate=speculate(draft_head=head, num_draft_tokens=3),
        )
        assert output.spec["drafter"] == "medusa"
        assert output.spec["num_draft_tokens"] > 0


def test_sampled_text_is_that_of_its_seed(tmp_path: Path) -> None:
    model = tiny("llama")
    path = medusa(model, tmp_path / "h")
    call: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "top_k": 0}
    texts = [
        model.generate(
            ids(REPETITIVE), **call, custom_generate=speculate(seed=3, verify="coupling", **given)
        )
        for given in ({"draft_head": path}, {"drafter": "none"})
    ]
    assert torch.equal(*texts)


def hydra_of_an_earlier_layer(model: Any, folder: Path) -> Path:
    """A head that counts its layer back from the last."""
    path = HEADS["hydra"](model, folder)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "hidden_state_offset": 1}))
    return path


def eagle_without_layers(model: Any, folder: Path) -> Path:
    """A head in EAGLE's own format, whose layers follow from the number that the model has."""
    path = HEADS["eagle"](model, folder)
    config = json.loads((path / "config.json").read_text())
    plain = {**config["transformer_layer_config"], "draft_vocab_size": config["draft_vocab_size"]}
    (path / "config.json").write_text(json.dumps(plain))
    return path


@pytest.mark.parametrize("write", [hydra_of_an_earlier_layer, eagle_without_layers])
def test_one_whose_layers_are_counted_from_the_model_s_goes_by_path(
    tmp_path: Path, write: Any
) -> None:
    model = build("llama", num_hidden_layers=8)
    path = write(model, tmp_path / "head")
    given = {"draft_head": path, "num_draft_tokens": 3}
    same(model, given, inputs=ids(REPETITIVE), max_new_tokens=12)


def test_a_head_for_another_model_is_refused_in_the_call(tmp_path: Path) -> None:
    """The model is not known before."""
    speculation = speculate(draft_head=medusa(build("llama", hidden_size=64), tmp_path / "h"))
    with pytest.raises(InvalidInput, match=r"hidden size 64 \(the target has 32\)"):
        tiny("llama").generate(ids(REPETITIVE), custom_generate=speculation, max_new_tokens=4)


def test_its_weights_are_stored_once_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the model is known the file is only opened, and no weight is read."""
    seen = watched_heads(monkeypatch)
    model = tiny("llama")
    speculation = speculate(draft_head=medusa(model, tmp_path / "h"), draft_storage="int8")
    assert seen == ["opened"]
    for _ in range(2):
        model.generate(ids(REPETITIVE), custom_generate=speculation, max_new_tokens=4)
    assert seen == ["opened", "int8"]
    with pytest.raises(InvalidInput, match="storage must be"):
        speculate(draft_head=tmp_path / "h", draft_storage="int7")  # type: ignore[arg-type]


def test_what_is_wrong_with_the_file_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such draft head"):
        speculate(draft_head=tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="takes no draft head"):
        speculate("ngram", draft_head=tmp_path)
