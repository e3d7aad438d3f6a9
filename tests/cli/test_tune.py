"""`paceline tune layer-skip` on a tiny model, and the drafter that finds its settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.tune import sentences
from paceline.core.target import SkipSet
from paceline.drafters.layer_skip import LayerSkipDrafter
from paceline.drafting.tuned import tuned_file
from paceline.workbench.tune import Found, Score
from tests import tiny_tokenizers
from tests.tiny_models import randomise

LAYERS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = tiny_tokenizers.byte_level()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    randomise(lambda: LlamaForCausalLM(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "prompts.txt"
    file.write_text("one two three\nfour five\n")
    return file


def tune(folder: Path, prompts: Path, *more: str) -> Any:
    arguments = ["tune", "layer-skip", "--model", str(folder), "--prompts", str(prompts)]
    return CliRunner().invoke(app, [*arguments, "--trials", "14", "--max-tokens", "12", *more])


def test_what_is_kept_is_what_the_drafter_uses(folder: Path, prompts: Path) -> None:
    result = tune(folder, prompts)
    assert result.exit_code == 0, result.output
    assert "Tried 14 sets of the 8 parts of 4 layers." in result.stdout
    file = tuned_file("layer-skip", "tiny")
    kept = json.loads(file.read_text())
    assert (kept["num_layers"], kept["trials"], kept["num_prompts"]) == (LAYERS, 14, 2)
    found = LayerSkipDrafter().skip("tiny", LAYERS)
    assert (sorted(found.attention), sorted(found.mlp)) == (kept["attention"], kept["mlp"])


def test_json_and_a_file_of_one_s_own(folder: Path, prompts: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    result = tune(folder, prompts, "--json", "--output", str(file))
    told = json.loads(result.stdout)
    assert told["file"] == str(file)
    assert {**json.loads(file.read_text()), "file": str(file)} == told
    assert not tuned_file("layer-skip", "tiny").exists()
    LayerSkipDrafter(tuned=file).skip("tiny", LAYERS)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--max-tokens", "5"], "no prompt has an answer of 8 tokens or more"),
        (["--prompts", "/none.txt"], "none.txt"),
    ],
)
def test_what_cannot_be_tuned(folder: Path, prompts: Path, more: list[str], message: str) -> None:
    result = tune(folder, prompts, *more)
    assert result.exit_code == 2
    assert message in result.stderr


def test_it_says_where_no_set_pays() -> None:
    skip = SkipSet(frozenset({2, 1}))
    for speedup, expected in (
        (1.31, "Predicted: 1.31 times"),
        (0.97, "No set that was tried pays"),
    ):
        best = Score(skip, speedup, 3, 0.8, (0.9, 0.8, 0.7))
        lines = sentences(Found(best, 7, True, (speedup,)), 4)
        assert lines[0] == "Stopped after 7 sets of the 8 parts of 4 layers."
        assert "attention of layers 1, 2 and the feed-forward parts of layers none" in lines[1]
        assert expected in lines[-1]


def test_a_missing_extra_is_found_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("paceline.cli.tune.find_spec", lambda name: None)
    (tmp_path / "prompts.txt").write_text("one two")
    arguments = ["tune", "layer-skip", "-m", "no-such-model", "--prompts", tmp_path / "prompts.txt"]
    result = CliRunner().invoke(app, [str(item) for item in arguments])
    assert result.exit_code == 2
    assert "paceline[tune]" in result.stderr
