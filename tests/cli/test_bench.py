"""`paceline bench` from the command line, on tiny models."""

from __future__ import annotations

import json

import pytest

from paceline.workbench.bench import running
from paceline.workbench.workload import read_records

TEXTS = ["one two one two one two", "a b c a b c a b c", "x y z"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"question_id": n, "category": "ab"[n % 2], "turns": [text, "more"]}
        for n, text in enumerate(TEXTS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def bench(run, tiny, prompts):
    def bench(*arguments, **options):
        default = ["--model", tiny, "--prompts", prompts, "--max-tokens", 12]
        return run("bench", *default, *arguments, **options)

    return bench


def test_a_benchmark_writes_all_its_reports(bench, tiny_draft, tmp_path):
    files = {kind: tmp_path / f"report.{kind}" for kind in ("html", "md", "jsonl")}
    result = bench(
        "--method", "ngram,k=2,4", "--method", f"model,draft={tiny_draft},k=3",
        "--html", files["html"], "--markdown", files["md"], "--save-answers", files["jsonl"],
        "--repeats", 2, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    names = ["none", "ngram,k=2", "ngram,k=4", f"model,draft={tiny_draft},k=3"]
    assert [method["name"] for method in found["methods"]] == names
    assert found["methods"][3]["draft_model"] == str(tiny_draft)
    assert found["options"]["repeats"] == 2
    assert found["environment"]["torch"]
    assert found["environment"]["command"]
    assert not found["interrupted"]
    for method in found["methods"]:
        assert method["same_tokens"]["num_different"] == 0
        assert len(found["prompts"][0]["methods"][method["name"]]["tokens_per_second"]) == (
            4 if method["name"] == "none" else 2
        )
    assert files["html"].read_text().startswith("<!doctype html>")
    assert files["md"].read_text().startswith("# Paceline bench")
    records = read_records(files["jsonl"])
    assert [record.max_tokens for record in records] == [12, 12, 12]
    assert all(record.answer_tokens for record in records)
    assert "3 prompts have further turns" in result.stderr


def test_prompts_bring_predictions_and_references(bench, tmp_path):
    """What plain decoding answered is expected back; of what a tiny model says, little is text."""
    answers = tmp_path / "answers.jsonl"
    assert bench("--method", "ngram", "--save-answers", answers).exit_code == 0
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    forms = [
        {"prediction": line["answer"], "references": ["w w w", line["answer"]]} for line in lines
    ]
    forms[1]["prediction"] = {"type": "content", "content": lines[1]["answer"]}
    prompts = tmp_path / "with.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"prompt": line["prompt"], **form}) + "\n"
            for line, form in zip(lines, forms, strict=True)
        )
    )
    result = bench(
        "--prompts", prompts, "--method", "predicted-output,k=4", "--method", "reference,k=4",
        "--method", 'reference,k=4,references=["w w w"]', "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    _, prediction, reference, given = json.loads(result.stdout)["methods"]
    every = (prediction, reference, given)
    lengths = [method["overall"]["mean_acceptance_length"] for method in every]
    assert min(lengths[:2]) > 1
    assert lengths[2] == 1


def test_a_prompt_without_the_prediction_that_a_method_needs(bench, prompts):
    lines = prompts.read_text().splitlines()
    prompts.write_text("\n".join([lines[0][:-1] + ', "prediction": "one"}', *lines[1:]]))
    result = bench("--method", "predicted-output,k=4")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"error: {prompts}, line 2: --method predicted-output,k=4 needs a 'prediction' with each "
        "prompt, and this one has none; add it to the object, or leave the method out"
    ]


def test_the_tables_stand_on_standard_output(bench):
    result = bench("--method", "ngram", "--categories", "b")
    assert result.exit_code == 0, result.stderr
    for part in ("speed-up", "ngram", "none", "same tokens", "noise", "By category"):
        assert part in result.stdout


def test_sampled_answers_are_not_compared(bench):
    result = bench("--method", "ngram", "--temperature", 1, "--json", "--limit", 1)
    found = json.loads(result.stdout)
    assert found["methods"][1]["same_tokens"] is None


def test_ctrl_c_keeps_what_was_measured(bench, tmp_path, monkeypatch):
    made = []
    run_once = running.run

    def stopped(setting, step, **changes):
        if len(made) == 6:
            raise KeyboardInterrupt
        made.append(step)
        return run_once(setting, step, **changes)

    monkeypatch.setattr(running, "run", stopped)
    html = tmp_path / "report.html"
    result = bench("--method", "ngram", "--json", "--html", html)
    assert result.exit_code == 130
    assert "interrupted; the report holds what was measured" in result.stderr
    found = json.loads(result.stdout)
    assert found["interrupted"]
    assert len(found["prompts"]) == 2  # two for the warm-up, three of the first prompt, one more
    assert "interrupted" in html.read_text()


def test_ctrl_c_before_anything_was_measured(bench, monkeypatch):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run", stopped)
    result = bench("--method", "ngram")
    assert result.exit_code == 130
    assert "nothing to report" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to compare with plain decoding; give --method"),
        (["--method", "ngrm"], "unknown drafter 'ngrm'; did you mean 'ngram'?"),
        (["--method", "ngram,k=x"], "k must be a whole number, or auto"),
        (["--method", "model"], "needs a draft model"),
        (["--method", "ngram", "--draft-storage", "int4"], "require --draft-model"),
        (["--method", "ngram", "--categories", "c"], "no prompt has the category 'c'"),
        (["--method", "ngram", "--html", "/none/a.html"], "there is no folder /none"),
        (["--method", "ngram", "--markdown", "/"], "--markdown: cannot write /"),
        (["--method", "ngram", "--max-tokens", "0"], "nothing to time"),
        (["--method", "ngram", "--temperature", "-1"], "temperature must be"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(bench, arguments, message, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("something was run")

    monkeypatch.setattr(running, "run", never)
    result = bench(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no prompt"),
        ('{"prompt": "x"}\n{"prompt": ', "line 2: expected one JSON object per line"),
        ('{"prompt": "x"}\n\n{"prompt": 1}', "line 3: prompt must be a text"),
    ],
)
def test_a_malformed_file_of_prompts_names_the_line(bench, prompts, content, message):
    prompts.write_text(content)
    result = bench("--method", "ngram")
    assert result.exit_code == 2
    assert str(prompts) in result.stderr
    assert message in result.stderr


def test_prompts_come_from_standard_input_too(run, tiny):
    result = run(
        "bench", "--model", tiny, "--prompts", "-", "--method", "ngram", "--max-tokens", 8,
        input="one two one two\n",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr


def test_a_plan_reads_what_a_benchmark_of_auto_wrote(bench, run, tiny, tmp_path):
    """`auto` is a candidate by its measured speed; fixed lengths only as far as they are known."""
    found = bench("--method", "ngram,k=auto", "--method", "recycling,k=auto,3", "--json")
    assert found.exit_code == 0, found.stderr
    report = tmp_path / "bench.json"
    report.write_text(found.stdout)
    marks = json.loads(found.stdout)["prompts"][0]["methods"]["ngram,k=auto"]["drafts"]
    assert [len(text) for text in marks] == [12]
    assert set(marks[0]) <= set("10+-")
    result = run("plan", "--model", tiny, "--from", report, "--json")
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    methods = json.loads(found.stdout)["methods"]
    auto = {
        (row["method"], row["speedup"])
        for row in [*plan["predictions"], *({**row, "method": "noise"} for row in plan["noise"])]
        if row.get("num_draft_tokens") == "auto" or row["method"] == "noise"
    }
    drafted = [
        method
        for method in methods
        if method["num_draft_tokens"] == "auto" and method["acceptance"]["drafted"]
    ]
    assert {speed for _, speed in auto} == {
        method["overall"]["speedup"]["value"] for method in drafted
    }
    lengths = {row["num_draft_tokens"] for row in plan["predictions"]}
    assert 3 in lengths or not any(
        method["acceptance"]["drafted"] for method in methods if method["num_draft_tokens"] == 3
    )


def test_a_benchmark_samples_as_the_model_asks_unless_told_otherwise(run, opinionated, prompts):
    common = ["--prompts", prompts, "--limit", 1, "--max-tokens", 4, "--method", "ngram,k=2"]
    result = run("bench", "--model", opinionated, *common, "--top-k", 3, "--json")
    assert result.exit_code == 0, result.stderr
    options = json.loads(result.stdout)["options"]
    assert (options["repetition_penalty"], options["top_k"], options["top_p"]) == (1.7, 3, 0.9)
