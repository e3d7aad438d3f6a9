"""`--draft-head` on every command that decodes."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from paceline.generate.settings import read_settings
from tests.tiny_head_files import HEADS

PROMPT = "é stop é stop é"


@pytest.fixture(scope="module")
def heads(tiny, tmp_path_factory):
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    folder = tmp_path_factory.mktemp("heads")
    return {kind: write(model, folder / kind) for kind, write in HEADS.items()}


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(["a b c", "the the", "é stop", "x y z"]) + "\n")
    return path


@pytest.mark.parametrize("kind", HEADS)
def test_generate_finds_out_its_kind(run, tiny, heads, kind):
    arguments = ["generate", "-m", tiny, "-p", PROMPT, "--max-tokens", 8, "--json"]
    plain = json.loads(run(*arguments, "-d", "none").stdout)
    result = run(*arguments, "--draft-head", heads[kind], "--draft-storage", "int8", "-k", 3)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["spec"]["drafter"] == kind
    assert found["spec"]["draft"] == f"head {kind}; drafter {kind}, a tree"
    assert found["spec"]["num_draft_tokens"] > 0
    assert found["token_ids"] == plain["token_ids"]


def test_a_pickle_needs_the_switch(run, tiny, heads, tmp_path):
    file = tmp_path / "medusa_lm_head.pt"
    torch.save(load_file(heads["medusa"] / "medusa_lm_head.safetensors"), file)
    arguments = ["generate", "-m", tiny, "-p", PROMPT, "--max-tokens", 4, "--draft-head", file]
    result = run(*arguments)
    assert result.exit_code == 2
    assert "is a pickle" in result.stderr
    assert "--allow-pickle" in result.stderr
    assert "Traceback" not in result.output
    assert run(*arguments, "--allow-pickle").exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--draft-head", "none/such/head"], "no such draft head"),
        (["--draft-head", "h", "--draft-model", "m"], "--draft-model and --draft-head are both"),
        (["--draft-head", "h", "-d", "ngram"], "takes no draft head; leave --draft-head out"),
        (["-d", "hydra"], "drafter 'hydra' needs a draft head; give --draft-head"),
    ],
)
def test_what_cannot_work_is_one_clear_line(run, tiny, options, message):
    result = run("generate", "-m", tiny, "-p", PROMPT, *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_chat_and_settings(run, tiny, heads, tmp_path):
    result = run("chat", "-m", tiny, "--draft-head", heads["mlp"], "--json", input="hello\n")
    assert json.loads(result.stdout)["spec"]["drafter"] == "mlp"
    file = tmp_path / "settings.json"
    drafting = {"draft_head": str(heads["hydra"]), "num_draft_tokens": 2}
    file.write_text(json.dumps({"schema": "paceline.settings/1", "drafting": drafting}))
    arguments = ["generate", "-m", tiny, "-p", PROMPT, "--max-tokens", 4, "--json"]
    found = json.loads(run(*arguments, "--settings", file).stdout)
    assert found["spec"]["drafter"] == "hydra"


def test_demo_drafts_with_n_grams_or_else_the_head(run, tiny, heads):
    options = ["--max-tokens", 8, "--repeats", 1, "--draft-head", heads["medusa"]]
    found = json.loads(run("demo", "--model", tiny, *options, "--json").stdout)
    assert found["identical"] is True
    for item in found["prompts"]:
        assert item["speculative"]["spec"]["draft"] == "head medusa; drafter medusa, a tree"
        assert item["speculative"]["spec"]["num_draft_tokens"] > 0
    text = "".join(run("demo", "--model", tiny, *options).stdout.split())
    assert f"orelsethehead{heads['medusa']},draftahead" in text


def test_bench_takes_it_for_all_methods_or_in_one(run, tiny, heads, prompts):
    result = run(
        "bench", "--model", tiny, "--prompts", prompts, "--max-tokens", 6, "--json",
        "--draft-head", heads["medusa"], "--method", "head,k=2", "--method", "ngram+medusa,k=2",
        "--method", f"mlp,head={heads['mlp']},k=2,storage=int8",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    _, generic, mixed, other = found["methods"]
    assert generic["settings"] == mixed["settings"] == {"head": str(heads["medusa"])}
    assert other["settings"] == {"head": str(heads["mlp"])}
    assert (generic["draft_storage"], other["draft_storage"]) == (None, "int8")
    for method in found["methods"]:
        assert method["same_tokens"]["num_different"] == 0
    assert all(m["acceptance"]["drafted"][0] > 0 for m in (generic, mixed, other))


def test_bench_cuts_it_to_some_tokens(run, tiny, heads, prompts):
    result = run(
        "bench", "--model", tiny, "--prompts", prompts, "--max-tokens", 4, "--json",
        "--draft-head", heads["medusa"], "--draft-head-tokens", 30, "--method", "head,k=2",
        "--method", "medusa,k=2,head_tokens=all", "--method", f"mlp,head={heads['mlp']},k=2",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [method["draft_head_tokens"] for method in found["methods"]] == [None, 30, "all", None]
    for method in found["methods"]:
        assert method["same_tokens"]["num_different"] == 0


def test_recommend_tries_it_and_its_settings_hold_it(run, tiny, heads, prompts, tmp_path):
    file = tmp_path / "settings.json"
    result = run(
        "recommend", "--model", tiny, "--prompts", prompts, "--max-tokens", 6, "--budget", 2,
        "--draft-head", heads["medusa"], "--output", file, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    tried = {method["name"] for method in found["methods"]} | set(found["left_out"])
    assert {"head,k=auto", "ngram+head,k=auto", "head,k=3"} <= tried
    if found["recommended"] is not None:
        assert read_settings(json.loads(file.read_text()))["drafter"]


def test_plan_measures_it(run, tiny, heads, tmp_path):
    costs = tmp_path / "costs.json"
    options = ["--alpha", 0.7, "--draft-head", heads["medusa"], "--context", 64]
    options += ["--draft-head-tokens", 30]
    result = run("plan", "--model", tiny, *options, "--save-costs", costs, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["costs"]["methods"]["head"]["draft_per_token"] >= 0
    assert set(json.loads(costs.read_text())["methods"]) == {"none", "head"}


def test_audit_passes_it(run, tiny, heads, prompts):
    options = ["--temperature", 0, "--max-tokens", 6, "--draft-head", heads["hydra"], "-k", 2]
    result = run("audit", "-m", tiny, "--prompts", prompts, *options, "--json")
    assert result.stdout, result.stderr
    found = json.loads(result.stdout)
    assert found["subject"]["drafter"] == "hydra"
    assert found["findings"][0]["verdict"] == "pass"


def test_replay_counts_what_it_would_have_accepted(run, tiny, heads, tmp_path):
    records = tmp_path / "records.jsonl"
    records.write_text(json.dumps({"prompt": "a b", "answer": "a b c d"}) + "\n")
    method = f"medusa,head={heads['medusa']},k=2"
    result = run(
        "replay", "--records", records, "--model", tiny, "--method", method, "--untimed", "--json"
    )
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)["methods"]
    assert found["acceptance"]["drafted"][0] > 0
