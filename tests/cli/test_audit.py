"""`paceline audit` on a tiny model."""

import json

import pytest

from paceline.generate.settings import SCHEMA
from tests.workbench.audit.servers import Server, running, table

SIZES = ("--max-tokens", 8, "--sample-tokens", 4, "--detect", 0.4)


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "the stop the END the stop"}, {"turns": ["a b a b a b"], "question_id": 7}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_right_configuration_passes(run, tiny, prompts):
    result = run("audit", "-m", tiny, "--prompts", prompts, "-k", 4, *SIZES, "--json")
    found = json.loads(result.stdout)
    checks = {finding["check"]: finding["verdict"] for finding in found["findings"]}
    assert list(checks) == [
        "exact distribution",
        "greedy equality",
        "sampled answers",
        "same seed, same text",
    ]
    assert checks["exact distribution"] == checks["same seed, same text"] == "pass"
    assert found["verdict"] != "fault"
    assert result.exit_code == found["exit_code"]
    assert found["subject"]["drafter"] == "ngram"
    assert [row["prompt"] for row in found["findings"][1]["evidence"]] == ["1", "7"]


def test_a_draft_model_and_coupling(run, tiny, tiny_draft, prompts):
    options = ("--draft-model", tiny_draft, "--verify", "coupling", "-k", 2)
    result = run("audit", "-m", tiny, "--prompts", prompts, *options, *SIZES, "--json")
    found = json.loads(result.stdout)
    assert (found["subject"]["drafter"], found["subject"]["verifier"]) == ("model", "coupling")
    assert all("plain" in row for row in found["findings"][3]["evidence"])


def test_the_sampling_options_of_the_model_are_audited(run, opinionated, prompts):
    arguments = ("audit", "-m", opinionated, "--prompts", prompts, "--temperature", 0)
    result = run(*arguments, "--max-tokens", 8, "--json")
    found = json.loads(result.stdout)
    assert found["subject"]["sampling"]["repetition_penalty"] == 1.7
    assert found["findings"][0]["verdict"] == "pass"


def test_at_temperature_0_nothing_is_sampled(run, tiny, prompts):
    result = run("audit", "-m", tiny, "--prompts", prompts, "--temperature", 0, "--max-tokens", 8)
    assert result.exit_code in (0, 3)
    assert "exact distribution" in result.stdout
    assert "sampled answers" not in result.stdout
    assert result.stdout.splitlines()[-1].startswith("verdict: ")


def test_too_few_samples_are_inconclusive(run, tiny, prompts):
    result = run("audit", "-m", tiny, "--prompts", prompts, *SIZES, "-n", 2)
    assert result.exit_code == 3
    assert "verdict: inconclusive" in result.stdout
    assert "Too few samples" in " ".join(result.stdout.split())


def test_settings_are_audited_as_they_were_written(run, tiny, prompts, tmp_path):
    file = tmp_path / "settings.json"
    drafting = {"drafter": "suffix", "num_draft_tokens": 3}
    file.write_text(json.dumps({"schema": SCHEMA, "drafting": drafting}))
    arguments = ("audit", "-m", tiny, "--prompts", prompts, "--temperature", 0, "--max-tokens", 8)
    found = json.loads(run(*arguments, "--settings", file, "--json").stdout)
    assert found["subject"]["drafter"] == "suffix"
    assert found["subject"]["num_draft_tokens"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--detect", "2"], "effect must be a finite number"),
        (["--detect", "0.0001"], "takes more than 20000 answers"),
        (["--power", "1"], "power must be"),
        (["-d", "ngran"], "did you mean 'ngram'"),
        (["--temperature", "-1"], "temperature must be"),
        (["--draft-storage", "int4"], "require --draft-model"),
        (["--samples", "0"], "--samples"),
        (["--controller", "fixd"], "did you mean 'fixed'"),
        (["-k", "some"], "--num-draft-tokens"),
    ],
)
def test_bad_input_is_answered_in_one_line(run, tiny, prompts, options, message):
    result = run("audit", "-m", tiny, "--prompts", prompts, *options)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert message in line


def test_a_malformed_line_is_named(run, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": \n')
    result = run("audit", "--prompts", file)
    assert result.exit_code == 2
    assert "line 2" in result.stderr


SERVERS = ("--max-tokens", 8, "--sample-tokens", 5, "--detect", 0.4)


@pytest.fixture
def words(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("red green\nblue gold blue\n")
    return file


def test_two_servers(run, words, tmp_path):
    page, text = tmp_path / "audit.html", tmp_path / "audit.md"
    with running(Server()) as one, running(Server()) as other:
        arguments = ["audit", "--url", one, "--baseline-url", f"{other}/v1", "--prompts", words]
        result = run(*arguments, *SERVERS, "--html", page, "--markdown", text)
        as_json = json.loads(run(*arguments, *SERVERS, "--temperature", 0, "--json").stdout)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "verdict: pass"
    assert f"written: {page}" in result.stderr
    assert "<html" in page.read_text()
    assert text.read_text().startswith("# Audit")
    assert as_json["verdict"] == "pass"
    assert as_json["subject"]["url"] == f"{one}/v1"
    assert as_json["subject"]["options"] == {"temperature": 0.0}


def test_a_faulty_server(run, words):
    with running(Server(law=table(seed=5))) as one, running(Server()) as other:
        arguments = ["audit", "--url", one, "--baseline-url", other, "--prompts", words]
        result = run(*arguments, *SERVERS, "--temperature", 0)
    assert result.exit_code == 1
    assert "verdict: fault" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--url", "http://127.0.0.1:9"], "--url and --baseline-url go together"),
        (["--baseline-url", "http://127.0.0.1:9"], "go together"),
        (["--url", "a", "--baseline-url", "b"], "expected the address of a server"),
        (
            ["--url", "http://127.0.0.1:9", "--baseline-url", "http://127.0.0.1:9"],
            "cannot reach http://127.0.0.1:9/v1/models",
        ),
        (
            ["--url", "http://x", "--baseline-url", "http://x", "-d", "ngram"],
            "--drafter is for audits without --url",
        ),
        (
            ["--url", "http://x", "--baseline-url", "http://x", "--controller-option", "a=1"],
            "--controller-option is for audits without --url",
        ),
        (["--concurrency", "2"], "--concurrency goes with --url"),
        (
            ["--url", "http://x", "--baseline-url", "http://x", "--api-key-env", "NO_SUCH_KEY"],
            "NO_SUCH_KEY is not set",
        ),
        (["--html", "/nowhere/a.html"], "--html: cannot write /nowhere/a.html"),
    ],
)
def test_bad_input_about_servers_and_reports(run, words, options, message):
    retries = ["--retries", 0] if "--url" in options and "--baseline-url" in options else []
    result = run("audit", "--prompts", words, *retries, *options)
    assert result.exit_code == 2, result.output
    assert message in result.stderr.splitlines()[-1]
    assert result.stdout == ""
