"""The weights of a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.errors import ModelError
from paceline.targets.dense.checkpoint import Checkpoint
from tests.tiny_models import build


def test_it_is_a_mapping_of_the_weights(tmp_path: Path) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    expected = load_file(tmp_path / "model.safetensors")
    assert set(checkpoint) == set(expected)
    assert len(checkpoint) == len(expected)
    for name, weight in expected.items():
        assert torch.equal(checkpoint[name], weight)
    assert "model.norm.bias" not in checkpoint
    assert checkpoint.get("model.norm.bias") is None


def test_reads_the_index_of_shards(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint["a"].tolist() == [1, 1]
    assert checkpoint["b"].tolist() == [0, 0, 0]


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        Checkpoint(tmp_path)
