"""`paceline train` on tiny models: what it prints, resumes and refuses."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.train.loop import Trainer
from paceline.workbench.report.figures import require
from tests.train import periodic

SMALL = (
    "--tokens", 300, "--max-tokens", 20, "--batch", 4, "--epochs", 80, "--heads", 3,
    "--draft-vocab", "all", "--batch-tokens", 120, "--learning-rate", 0.05,
)  # fmt: skip


@pytest.fixture(scope="module")
def circle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return periodic.save(tmp_path_factory.mktemp("models") / "circle")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(periodic.prompts(60)))
    return file


@pytest.fixture
def train(run: Callable[..., Any], circle: Path, prompts: Path) -> Callable[..., Any]:
    def train(folder: Path, *options: Any) -> Any:
        return run(
            "train", "medusa", "-m", circle, "-o", folder, "--prompts", prompts, *SMALL, *options
        )

    return train


def test_a_run_says_what_came_of_it(train: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "head"
    result = train(folder)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Learned from: 300 answer tokens in 15 sequences (")
    # Of 20 tokens in 6 rounds the first draft fails: it reads the state of the template's last
    # token but one, which does not tell what the last one is.
    assert "acceptance length 3.50, acceptance by position 0.83, 1.00, 1.00" in result.stdout
    assert "the drafter has 100.0% of their tokens" in result.stdout
    assert lines[-1].startswith("Use it with: paceline generate -m ")
    assert f"--draft-head {folder}" in lines[-1]
    names = {path.name for path in folder.iterdir()}
    assert names == {"medusa_lm_head.safetensors", "config.json", "training", "report.html"}
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 3
    assert "Loss by step" in page
    require()  # matplotlib, without which there is no report


def test_json(train: Callable[..., Any], tmp_path: Path) -> None:
    result = train(tmp_path / "head", "--json", "--html", tmp_path / "page.html")
    told = json.loads(result.stdout)
    assert told == json.loads((tmp_path / "head/training/result.json").read_text())
    assert told["conditional_acceptance_rate_per_position"] == [5 / 6, 1.0, 1.0]
    assert told["settings"]["head"]["draft_vocab"] is None
    assert (tmp_path / "page.html").exists()


def test_an_eagle_head_is_trained_and_decoded_with(
    run: Callable[..., Any], circle: Path, prompts: Path, tmp_path: Path
) -> None:
    """From the command to the command: the answers are those of plain decoding."""
    folder = tmp_path / "head"
    result = run(
        "train", "eagle", "-m", circle, "-o", folder, "--prompts", prompts,
        "--tokens", 300, "--max-tokens", 20, "--batch", 4, "--epochs", 40, "--steps", 2,
        "--draft-vocab", "all", "--batch-tokens", 120, "--learning-rate", 0.01, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["settings"]["head"]["num_steps"] == 2
    # The first of eight drafts of an answer comes after the template, as no other does.
    first, second = told["conditional_acceptance_rate_per_position"]
    assert first >= 7 / 8
    assert second == 1.0
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors", "config.json", "training", "report.html"
    }  # fmt: skip
    answers = [
        json.loads(
            run(
                "generate", "-m", circle, "-p", "the stop", "--max-tokens", 24, "--json", *more
            ).stdout
        )
        for more in (["-d", "none"], ["--draft-head", folder, "-k", 2])
    ]
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert answers[1]["spec"]["num_accepted_tokens"] >= 14


def test_what_one_run_captured_another_learns_from(
    train: Callable[..., Any], run: Callable[..., Any], circle: Path, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first = json.loads(train(one, "--json", "--temperature", 0.5).stdout)
    options = ("--epochs", 80, "--batch-tokens", 120, "--learning-rate", 0.05, "--heads", 2)
    result = run(
        "train", "medusa", "-o", other, "--data", one, "--tokens", 200, *options,
        "--draft-vocab", "all", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["data"]["num_answer_tokens"] == 200 < first["data"]["num_answer_tokens"]
    assert told["data"]["ended"] == "data"
    assert told["settings"]["model"] == str(circle)
    assert told["settings"]["sampling"] == {"temperature": 0.5}
    assert not list((other / "training").glob("shard-*"))
    for more, message in (
        (["--temperature", 0.7], "have sampling {'temperature': 0.5}, and {'temperature': 0.7}"),
        (["-m", "smollm2-135m"], "have model"),
        (["--batch", 5], "and 5 was given"),
        (["--data", tmp_path / "nowhere"], "holds no run"),
    ):
        refused = run("train", "medusa", "-o", tmp_path / "third", "--data", one, *more)
        assert refused.exit_code == 2
        assert message in refused.stderr
    assert not (tmp_path / "nowhere").exists()
    lacking = run("train", "eagle", "-o", tmp_path / "fourth", "--data", one)
    assert lacking.exit_code == 2
    assert (
        "have hidden states final, and this drafter learns from hidden states 0" in lacking.stderr
    )


def test_a_signal_stops_between_steps_and_resume_goes_on(
    train: Callable[..., Any],
    run: Callable[..., Any],
    circle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = json.loads(train(tmp_path / "whole", "--json").stdout)
    step = Trainer._step

    def met(trainer: Trainer, numbers: list[int]) -> None:
        if trainer.progress.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        step(trainer, numbers)

    monkeypatch.setattr(Trainer, "_step", met)
    folder = tmp_path / "head"
    stopped = train(folder)
    monkeypatch.undo()
    assert stopped.exit_code == 130
    planned = whole["training"]["num_steps"]
    assert f"Stopped after 6 of {planned} steps" in stopped.stdout
    assert f"Go on with: paceline train medusa -m {circle} -o {folder} --resume" in stopped.stdout
    resumed = run("train", "medusa", "-m", circle, "-o", folder, "--resume", "--json")
    assert resumed.exit_code == 0, resumed.output
    told = json.loads(resumed.stdout)
    assert told["training"]["curve"] == whole["training"]["curve"]
    assert told["best"] == whole["best"]


def test_a_run_that_is_there_is_not_overwritten(
    train: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "head"
    assert train(folder).exit_code == 0
    again = train(folder)
    assert again.exit_code == 2
    assert "holds a run already; add --resume" in again.stderr
    other = run("train", "medusa", "-o", folder, "--resume", "--heads", 5)
    assert other.exit_code == 2
    assert "has num_heads 3, and 5 was given" in other.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "holds no run to resume"),
        (["--prompts", "/none.txt"], "cannot read /none.txt"),
        (["--exclude", "/none.txt"], "cannot read /none.txt"),
        (["--draft-vocab", "few"], "it is 'all' or a whole number"),
        (["--draft-vocab", "3"], "draft_vocab must be at least 16"),
        (["--learning-rate", "3"], "learning_rate must be above 0"),
        (["--top-p", "2"], "top_p"),
        (["--minutes", "inf"], "minutes must be a finite number above 0; it is inf"),
        (["--minutes", "nan"], "Invalid value for '--minutes'"),
        (["--seed", str(2**64)], f"seed must be at least 0 and at most {2**64 - 1}"),
        (["--raw"], "--raw is about the prompts of a file; give one with --prompts FILE"),
        (["--chat"], "--chat is about the prompts of a file; give one with --prompts FILE"),
        (["--html", "/none/page.html"], "there is no folder /none"),
        (["--data", "/none"], "/none holds no run with answers to learn from"),
        (["-m", "/none"], "/none"),
    ],
)
def test_what_cannot_be_trained(
    run: Callable[..., Any], circle: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    result = run("train", "medusa", "-m", circle, "-o", tmp_path / "head", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert not (tmp_path / "head").exists(), "nothing stands in the way of the next try"
    assert "Traceback" not in result.stderr


def test_a_run_of_another_kind_is_not_resumed(
    train: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    assert train(tmp_path / "head").exit_code == 0
    result = run("train", "eagle", "-o", tmp_path / "head", "--resume")
    assert result.exit_code == 2
    assert "trains 'medusa'; resume it with `paceline train medusa`" in result.stderr


def test_a_line_of_prompts_that_is_none(
    run: Callable[..., Any], circle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": 2}\n')
    result = run("train", "medusa", "-m", circle, "-o", tmp_path / "head", "--prompts", file)
    assert result.exit_code == 2
    assert "prompts.jsonl, line 2: prompt must be a text" in result.stderr


def test_the_help_says_how_long_and_how_much(run: Callable[..., Any]) -> None:
    text = " ".join(run("train", "--help").stdout.split())
    assert "--minutes 60" in text
    assert "115 MB for SmolLM2-135M" in text
