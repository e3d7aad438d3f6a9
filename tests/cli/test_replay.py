"""`paceline replay` from the command line, on tiny models."""

from __future__ import annotations

import json

import pytest

import paceline
from paceline.workbench.plan.acceptance import read_acceptance

CHAT = [
    {"role": "user", "content": "one two one two"},
    {"role": "assistant", "content": "one two one two one two"},
]


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "records.jsonl"
    lines = [
        {"category": "x", "prompt": "a b c a b c", "answer": "a b c a b c a b c"},
        {"category": "y", "messages": CHAT},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_replay_writes_all_its_reports(run, tiny, tiny_draft, records, tmp_path):
    html, markdown = tmp_path / "a.html", tmp_path / "a.md"
    result = run(
        "replay", "--model", tiny, "--records", records, "--draft-model", tiny_draft,
        "--method", "ngram,k=2,4", "--method", "model,k=3", "--json",
        "--html", html, "--markdown", markdown,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["schema"] == "paceline.replay/1"
    assert [item["name"] for item in found["methods"]] == ["ngram,k=2", "ngram,k=4", "model,k=3"]
    for item in found["methods"]:
        assert set(item["categories"]) == {"x", "y"}
        assert item["overall"]["predicted_speedup"] > 0
        assert item["acceptance"] == item["overall"]["acceptance"]
    assert "<svg" in html.read_text()
    assert markdown.read_text().startswith("# Paceline replay")


def test_own_greedy_text_needs_no_model_for_ngrams(run, tiny, records, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(paceline, "load", never)
    result = run(
        "replay", "--model", tiny, "--records", records, "--method", "ngram,k=4",
        "--text-by", "target", "--untimed",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "nothing was timed" in result.stdout


def test_what_bench_saves_is_replayed_to_the_same_counts(run, tiny, tiny_draft, tmp_path):
    prompts, answers = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text("one two one two one\na b c a b c\nx y z\n")
    methods = ["--method", "ngram,k=2", "--method", f"model,draft={tiny_draft},k=3"]
    measured = run(
        "bench", "--model", tiny, "--prompts", prompts, *methods, "--max-tokens", 24,
        "--save-answers", answers, "--json",
    )  # fmt: skip
    assert measured.exit_code == 0, measured.stderr
    found = run(
        "replay", "--model", tiny, "--records", answers, *methods, "--text-by", "target", "--json"
    )
    assert found.exit_code == 0, found.stderr
    ours, theirs = (json.loads(result.stdout)["methods"] for result in (found, measured))
    for one, other in zip(ours, theirs[1:], strict=True):
        assert one["acceptance"] == other["acceptance"]
    # And a plan reads the same out of both.
    read = []
    for result in (found, measured):
        file = tmp_path / "report.json"
        file.write_text(result.stdout)
        read.append(read_acceptance(file))
    for one, other, length in zip(*read, (2, 3), strict=True):
        assert one.by_length[length] == other.by_length[length]
        assert (one.name, one.draft, one.settings) == (other.name, other.draft, other.settings)
    assert [item.drafter for item in read[0]] == ["ngram", "model"]


def test_a_folder_of_texts(run, tiny, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("one two one two one two one two")
    result = run(
        "replay", "--model", tiny, "--records", tmp_path / "notes", "--method", "ngram", "--json"
    )
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["num_texts"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no drafter to replay; give --method"),
        (["--method", "ngram,verify=coupling"], "uses the rule 'token'"),
        (["--method", "ngram", "--html", "/none/a.html"], "there is no folder /none"),
        (["--method", "model"], "needs a draft model"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(run, tiny, records, arguments, message):
    result = run("replay", "--model", tiny, "--records", records, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_record_that_does_not_fit_is_named(run, tiny, records):
    records.write_text('{"prompt": "x", "answer": "y", "answer_token_ids": [99999]}')
    result = run("replay", "--model", tiny, "--records", records, "--method", "ngram")
    assert result.exit_code == 2
    assert f"{records}, line 1: the recorded answer holds token 99999" in result.stderr
