import json

import pytest

import paceline
from paceline.cli.demo import CASES
from tests.cli.scripted import Scripted


def test_json_holds_both_answers_to_both_prompts(run, tiny):
    options = ["--max-tokens", 12, "--repeats", 1, "--json"]
    result = run("demo", "--model", tiny, *options)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert found["identical"] is True
    assert found["dtype"] == "float32"
    assert [item["name"] for item in found["prompts"]] == [case.name for case in CASES]
    model = paceline.load(tiny, dtype="float32")
    for case, item in zip(CASES, found["prompts"], strict=True):
        prompt = [{"role": "user", "content": case.text}]
        expected = model.generate(prompt, drafter="none", max_tokens=12)
        assert item["prompt"] == case.text
        assert item["plain"]["token_ids"] == list(expected.token_ids)
        assert item["speculative"]["token_ids"] == list(expected.token_ids)
        assert item["plain"]["spec"]["drafter"] == "none"
        assert item["speculative"]["spec"]["drafter"] == "ngram"
        assert item["first_difference"] is None
        plain, speculative = item["tokens_per_second"].values()
        assert item["speedup"] == pytest.approx(speculative / plain)


def test_without_a_terminal_it_is_plain_text_that_ends_with_what_to_do_next(run, tiny):
    result = run("demo", "--model", tiny, "--max-tokens", 8, "--repeats", 1)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert result.stdout.count("The tokens are identical.") == 2
    *_, command, call = result.stdout.splitlines()
    assert "paceline generate --prompt" in command
    assert "custom_generate=paceline.speculate" in call


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_it_fails_where_the_tokens_differ(run, monkeypatch, options):
    model = Scripted("abcdef", "abXdef", gap=1e-5)
    model.name = "scripted"
    monkeypatch.setattr(paceline, "load", lambda *_, **__: model)
    result = run("demo", "--repeats", 1, *options)
    assert result.exit_code == 1
    if options:
        found = json.loads(result.stdout)
        assert found["identical"] is False
        difference = found["prompts"][0]["first_difference"]
        assert difference.pop("gap") == pytest.approx(1e-5)
        assert difference == {"position": 2, "plain": "c", "speculative": "X"}
    else:
        assert "NOT identical: they diverge at token 3" in result.stdout
        assert "a near-tie" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "smol"], "unknown model 'smol'"),
        (["--repeats", "0"], "--repeats"),
    ],
)
def test_bad_input_is_answered_in_one_line(run, options, message):
    result = run("demo", *options)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.model
@pytest.mark.slow
def test_the_real_demo_gives_identical_tokens_and_speeds_up_the_first_prompt(run, monkeypatch):
    monkeypatch.delenv("PACELINE_CACHE")
    result = run("demo", "--json", "--repeats", 1, "--max-tokens", 64)
    assert result.exit_code == 0, result.output
    quote, story = json.loads(result.stdout)["prompts"]
    assert quote["identical"]
    assert story["identical"]
    # What was accepted does not depend on the machine's load, as the speed does.
    lengths = [item["speculative"]["spec"]["mean_acceptance_length"] for item in (quote, story)]
    assert lengths[0] > 2.5 > 1.6 > lengths[1]


def test_by_default_the_controller_chooses_how_far_to_draft(run, monkeypatch):
    """So that the prompt with little to draft from is not slower than plain decoding."""
    asked = []

    class Asked(Scripted):
        def generate(self, prompt, *, drafter, **options):
            asked.append((drafter, options.get("num_draft_tokens")))
            return super().generate(prompt, drafter=drafter, **options)

    model = Asked("abcdef", "abcdef")
    model.name = "scripted"
    monkeypatch.setattr(paceline, "load", lambda *_, **__: model)
    result = run("demo", "--repeats", 1)
    assert result.exit_code == 0, result.output
    assert set(asked) == {("none", None), ("ngram", "auto")}
    assert "as many tokens as pay" in result.output


def test_a_trace_of_each_prompt_holds_both_lanes_of_the_first_pair(run, tiny, tmp_path):
    result = run(
        "demo", "-m", tiny, "--max-tokens", 8, "--repeats", 2, "--trace", tmp_path / "race.jsonl"
    )
    assert result.exit_code == 0, result.output
    model = paceline.load(tiny, dtype="float32")
    for case in CASES:
        path = tmp_path / f"race-{case.name}.jsonl"
        assert f"written: {path}" in result.stderr
        trace = paceline.read_trace(path)
        prompt = [{"role": "user", "content": case.text}]
        expected = model.generate(prompt, drafter="none", max_tokens=8)
        assert trace.prompt == case.text
        assert [lane.tokens for lane in trace.lanes.values()] == [expected.token_ids] * 2
        assert trace.lanes["plain"].about["drafter"] == "none"
        assert trace.lanes["speculative"].about["drafter"] == "ngram"


def test_a_trace_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    run, monkeypatch, tmp_path
):
    monkeypatch.setattr(paceline, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    result = run("demo", "--trace", tmp_path / "none" / "race.jsonl")
    assert result.exit_code == 2
    assert "--trace: cannot write" in result.stderr
    assert "there is no folder" in result.stderr
