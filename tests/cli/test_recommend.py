"""`paceline recommend` from the command line, on tiny models."""

from __future__ import annotations

import json

import pytest

from paceline.generate.settings import read_settings, settings_json
from paceline.workbench.bench import running

TEXTS = [
    "one two one two one two",
    "a b c a b c a b c",
    "x y z",
    "1 2 1 2",
    "p q",
    "r s t",
    "u",
    "v w",
]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture
def recommend(run, tiny, prompts, tmp_path):
    def recommend(*arguments):
        default = ["--model", tiny, "--prompts", prompts, "--max-tokens", 10, "--budget", 4]
        file = tmp_path / "settings.json"
        return run("recommend", *default, "--output", file, *arguments)

    return recommend


def test_it_tries_every_method_and_writes_settings(recommend, tiny_draft, tmp_path):
    html = tmp_path / "report.html"
    result = recommend(
        "--draft-model", tiny_draft, "--draft-storage", "plain", "--json", "--html", html
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["schema"] == "paceline.recommend/1"
    tried = {method["name"] for method in found["methods"]} | set(found["left_out"])
    for drafter in ("none", "ngram", "suffix", "recycling", "lookahead", "jacobi", "tree", "model"):
        assert any(name.split(",")[0] == drafter for name in tried), drafter
    assert "ngram+model,k=auto" in tried
    assert max(method["against_best"] for method in found["methods"] if not method["left"]) == 1.0
    assert min(method["num_prompts"] for method in found["methods"]) >= 1
    if found["recommended"] is not None:
        kept = json.loads((tmp_path / "settings.json").read_text())
        assert kept == found["settings"]
        assert read_settings(kept)["drafter"]
    assert html.read_text().startswith("<!doctype html>")


def test_the_result_says_what_to_do(recommend):
    result = recommend()
    assert result.exit_code == 0, result.stderr
    assert any(
        word in result.stdout for word in ("use: ", "use plain decoding: ", "measure again: ")
    )
    assert "against" in result.stdout
    assert "trying" in result.stderr


def test_ctrl_c_keeps_what_was_found(recommend, monkeypatch):
    """Stopped in the second block of the race: everybody has run once."""
    run_once, steps = running.run, []

    def stopped(setting, step, **changes):
        if len(steps) > 2 * len(setting.methods) + 3:
            raise KeyboardInterrupt
        steps.append(step)
        return run_once(setting, step, **changes)

    monkeypatch.setattr(running, "run", stopped)
    result = recommend("--budget", 60)
    assert result.exit_code == 130
    assert "Stopped before the end" in result.stdout


def test_ctrl_c_before_anybody_ran(recommend, monkeypatch):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run", stopped)
    result = recommend()
    assert (result.exit_code, result.stdout) == (130, "")
    assert "nothing can be recommended" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft-storage", "int4"], "require --draft-model"),
        (["--prompts", "none.jsonl"], "none.jsonl"),
        (["--html", "/none/a.html"], "there is no folder /none"),
        (["--temperature", "-1"], "temperature must be"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(recommend, arguments, message, monkeypatch):
    monkeypatch.setattr(running, "run", lambda *_, **__: pytest.fail("something was run"))
    result = recommend(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_draft_model_that_does_not_fit_is_refused(recommend, stranger):
    result = recommend("--draft-model", stranger)
    assert result.exit_code == 2
    assert "another tokenizer" in result.stderr


def test_another_file_is_not_replaced(recommend, tmp_path):
    (tmp_path / "settings.json").write_text("{}")
    result = recommend()
    assert result.exit_code == 2
    assert "exists and does not hold settings" in result.stderr
    assert (tmp_path / "settings.json").read_text() == "{}"


def test_generate_takes_what_it_wrote(recommend, run, tiny, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text(
        json.dumps(settings_json("T", {"drafter": "suffix", "num_draft_tokens": 3}, {}))
    )
    arguments = ["generate", "--model", tiny, "--prompt", "one two one two", "--settings", file]
    result = run(*arguments, "--max-tokens", 8, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["spec"]["drafter"] == "suffix"
    for more in (["--drafter", "ngram"], ["-k", "3"], ["--max-ngram", "2"]):
        refused = run(*arguments, *more)
        assert refused.exit_code == 2
        assert "settings say how to draft" in refused.stderr
