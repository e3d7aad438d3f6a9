import io
import json

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import paceline
from paceline.cli import terminal
from paceline.generate.api import Chunk, Piece
from tests import tiny_models, tiny_tokenizers
from tests.models import tiny_gguf

PROMPT = "the end of the end of the"
SPEC = {
    "drafter",
    "verifier",
    "exact",
    "promise",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_rate_per_position",
}


def expected_ids(folder, ids, max_tokens):
    """What transformers itself answers, greedily."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    output = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=max_tokens,
        pad_token_id=0,
    )
    return output[0, len(ids) :].tolist()


@pytest.fixture
def coloured(monkeypatch):
    """A terminal with colours; what is printed on it."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="standard", width=80)
    monkeypatch.setattr(terminal, "out", lambda: console)
    return screen


def test_json_is_one_object_with_the_answer_that_transformers_gives(run, tiny):
    result = run("generate", "-m", tiny, "--raw", "-p", PROMPT, "--max-tokens", 24, "--json")
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    ids = tokenizer.encode(PROMPT)
    assert found["token_ids"] == expected_ids(tiny, ids, 24)
    assert found["text"] == tokenizer.decode(found["token_ids"], skip_special_tokens=True)
    assert found["usage"] == {
        "prompt_tokens": len(ids),
        "completion_tokens": len(found["token_ids"]),
    }
    assert found["finish_reason"] in ("stop", "length")
    assert found["spec"].keys() >= SPEC
    assert found["time"].keys() >= {
        "load_s",
        "prefill_s",
        "decode_s",
        "draft_s",
        "target_s",
        "verify_s",
    }
    assert found["tokens_per_second"] > 0


def test_rates_are_null_where_nothing_was_drafted(run, tiny):
    result = run("generate", "-m", tiny, "-d", "none", "-p", PROMPT, "--max-tokens", 4, "--json")
    spec = json.loads(result.stdout)["spec"]
    assert spec["num_drafts"] == spec["num_draft_tokens"] == spec["num_accepted_tokens"] == 0
    assert spec["draft_acceptance_rate"] is spec["acceptance_rate_per_position"] is None


@pytest.mark.parametrize(
    "options",
    [
        ["-d", "none"],
        ["-d", "ngram", "-k", 1, "--max-ngram", 5, "--min-ngram", 2, "--ngram-match", "oldest"],
        ["--invariant", "-k", 3],
        ["--verify", "coupling"],
        ["--storage", "plain"],
    ],
    ids=str,
)
def test_greedy_text_is_the_same_with_every_option_of_drafting(run, tiny, options):
    arguments = ["generate", "-m", tiny, "-p", PROMPT, "--max-tokens", 16, "--dtype", "float32"]
    plain, other = run(*arguments), run(*arguments, *options)
    assert other.exit_code == 0, other.stderr
    assert plain.stdout == other.stdout
    assert plain.stdout.strip()


@pytest.mark.parametrize(
    ("rule", "option"),
    [("typical", "delta=0.5"), ("lenience", "lenience=0.1"), ("top-beta", "beta=3")],
)
def test_a_lossy_rule_says_so_everywhere(run, tiny, rule, option):
    arguments = ["generate", "-m", tiny, "-p", PROMPT, "--max-tokens", 6, "--temperature", 1]
    arguments += ["--verify", rule, "--verify-option", option]
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    spec = json.loads(result.stdout)["spec"]
    assert (spec["verifier"], spec["exact"], spec["promise"]) == (rule, False, "none")
    (summary,) = run(*arguments).stderr.splitlines()
    assert f"not exact: the rule {rule} changes the output distribution" in summary
    assert "are not exact" in " ".join(run("generate", "--help").stdout.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--verify", "typical", "--verify-option", "delta"], "--verify-option takes NAME=VALUE"),
        (["--verify", "typical", "--verify-option", "beta=1"], "unknown setting of verifier"),
        (["--verify", "lenience", "--verify-option", "lenience=2"], "at most 1"),
        (["--verify-option", "lenience=1"], "name the rule too"),
    ],
)
def test_settings_that_no_rule_has_are_refused_before_a_model_is_loaded(run, options, message):
    result = run("generate", "-m", "no-such-model", "-p", PROMPT, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_draft_model_drafts_unless_another_drafter_is_named(run, tiny, tiny_draft):
    arguments = ["generate", "-m", tiny, "-p", PROMPT, "--max-tokens", 8, "--json"]
    plain = json.loads(run(*arguments, "-d", "none").stdout)
    options = ["--draft-storage", "int8", "--draft-head-tokens", 200]
    result = run(*arguments, "--draft-model", tiny_draft, *options)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["spec"]["drafter"] == "tree"
    assert found["spec"]["draft"] == ("int8, 200 of 305 head tokens; tree of one path with leaves")
    assert found["token_ids"] == plain["token_ids"]


def test_a_setting_of_the_drafter_reaches_it(run, tiny, tiny_draft):
    arguments = ["generate", "-m", tiny, "-p", PROMPT, "--max-tokens", 8, "--json"]
    arguments += ["--draft-model", tiny_draft, "-k", 4, "--temperature", 1, "--seed", 5]
    spec = json.loads(run(*arguments).stdout)["spec"]
    # A draft ends where its model is not sure, and it is never as sure as this.
    unsure = json.loads(run(*arguments, "--drafter-option", "min_confidence=1").stdout)["spec"]
    assert unsure["num_draft_tokens"] < spec["num_draft_tokens"]


def test_loading_through_transformers_prints_nothing_of_its_own(run, tmp_path):
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.save_pretrained(tmp_path)
    tiny_models.build("gpt_neox", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    result = run("generate", "-m", tmp_path, "-p", "the", "--max-tokens", 2)
    assert result.exit_code == 0
    (summary,) = result.stderr.splitlines()
    assert summary.startswith("2 tokens in")


def test_the_sampling_options_of_a_draft_model_are_a_setting(run, tiny, tiny_draft):
    arguments = ["generate", "-m", tiny, "-p", PROMPT, "--max-tokens", 8, "--json"]
    params = 'params={"temperature": 0.5}'
    result = run(*arguments, "--draft-model", tiny_draft, "--drafter-option", params)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["spec"]["num_draft_tokens"] > 0


def test_a_reference_is_drafted_from(run, tiny, tmp_path):
    arguments = ["generate", "-m", tiny, "--raw", "-p", "é stop", "--max-tokens", 24, "--json"]
    plain = json.loads(run(*arguments, "-d", "none").stdout)
    reference = tmp_path / "reference.txt"
    reference.write_text("é stop" + plain["text"], encoding="utf-8")
    without = json.loads(run(*arguments).stdout)
    found = json.loads(run(*arguments, "--reference", reference).stdout)
    assert found["token_ids"] == plain["token_ids"]
    accepted = "num_accepted_tokens"
    assert found["spec"][accepted] > without["spec"][accepted]


def test_a_pipe_gets_the_bare_text_and_standard_error_the_summary(run, tiny):
    arguments = ["generate", "-m", tiny, "--raw", "-p", PROMPT, "--max-tokens", 12]
    expected = json.loads(run(*arguments, "--json").stdout)
    for stream in ([], ["--stream"], ["--no-stream"]):
        result = run(*arguments, *stream)
        assert result.stdout == expected["text"] + "\n"
        assert "12 tokens" in result.stderr
        assert "tokens/s" in result.stderr
        assert "acceptance rate" in result.stderr
        assert "\x1b" not in result.output


def test_an_adapter_is_merged(run, tiny, tmp_path):
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "base_model_name_or_path": str(tiny)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    query = "base_model.model.model.layers.0.self_attn.q_proj"
    width = AutoModelForCausalLM.from_pretrained(tiny).config.hidden_size
    noise = torch.Generator().manual_seed(0)
    parts = {
        f"{query}.lora_A.weight": torch.randn(2, width, generator=noise),
        f"{query}.lora_B.weight": torch.randn(width, 2, generator=noise),
    }
    save_file(parts, tmp_path / "adapter_model.safetensors")
    arguments = ["--raw", "-p", PROMPT, "--max-tokens", 24, "--dtype", "float32", "--json"]
    texts = [
        json.loads(run("generate", *model, *arguments).stdout)["text"]
        for model in (("-m", tiny), ("-m", tiny, "--adapter", tmp_path), ("-m", tmp_path))
    ]
    assert texts[0] != texts[1] == texts[2]


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_on_a_terminal_accepted_draft_tokens_are_green(run, tiny, coloured, stream):
    arguments = ["-p", PROMPT, "--max-tokens", 16, "--dtype", "float32", "-k", 5]
    result = run("generate", "-m", tiny, "--raw", *arguments, stream)
    assert result.exit_code == 0, result.stderr
    model = paceline.load(tiny, dtype="float32")
    items = model.stream(PROMPT, max_tokens=16, num_draft_tokens=5)
    chunks = [item for item in items if isinstance(item, Chunk)]
    pieces = [piece for chunk in chunks for piece in chunk.pieces]
    assert any(piece.drafted for piece in pieces)
    expected = io.StringIO()
    for piece in pieces:
        for part in terminal.printable(piece.text).splitlines(keepends=True):
            body = part.rstrip("\n")
            green = piece.drafted and body
            expected.write(f"\x1b[32m{body}\x1b[0m" if green else body)
            expected.write("\n" if part.endswith("\n") else "")
    merged = coloured.getvalue().replace("\x1b[0m\x1b[32m", "").expandtabs(8)
    assert merged == expected.getvalue().replace("\x1b[0m\x1b[32m", "").expandtabs(8)


def test_text_becomes_a_message_of_the_user_where_the_model_has_a_chat_template(
    run, tiny, tmp_path
):
    file = tmp_path / "messages.json"
    file.write_text(json.dumps([{"role": "user", "content": PROMPT}]))
    options = ["generate", "-m", tiny, "--max-tokens", 4, "--json"]
    as_text, as_message, raw = (
        json.loads(run(*options, *given).stdout)
        for given in (["-p", PROMPT], ["--messages", file], ["-p", PROMPT, "--raw"])
    )
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, return_dict=False
    )
    assert as_text["usage"]["prompt_tokens"] == as_message["usage"]["prompt_tokens"] == len(chat)
    assert as_text["token_ids"] == as_message["token_ids"]
    assert raw["usage"]["prompt_tokens"] == len(tokenizer.encode(PROMPT)) < len(chat)


def test_without_a_chat_template_the_text_is_continued(run, stranger):
    options = ["generate", "-m", stranger, "-p", "the", "--max-tokens", 2, "--json"]
    plain, raw = run(*options), run(*options, "--raw")
    assert json.loads(plain.stdout)["usage"] == json.loads(raw.stdout)["usage"]


def test_the_prompt_comes_from_standard_input(run, tiny):
    options = ["generate", "-m", tiny, "--max-tokens", 4]
    assert run(*options, input=PROMPT + "\n").stdout == run(*options, "-p", PROMPT).stdout


def test_a_seed_gives_the_same_sample_again(run, tiny):
    options = ["generate", "-m", tiny, "-p", PROMPT, "--max-tokens", 12, "--temperature", 1]
    first, again, other = (run(*options, "--seed", seed).stdout for seed in (3, 3, 4))
    assert first == again != other


def test_sampling_options_that_are_left_out_are_those_of_the_model(run, tiny, opinionated):
    arguments = ["--raw", "-p", PROMPT, "--max-tokens", 24, "--dtype", "float32", "--json"]
    found = json.loads(run("generate", "-m", opinionated, *arguments).stdout)
    ids = AutoTokenizer.from_pretrained(tiny).encode(PROMPT)
    assert found["token_ids"] == expected_ids(opinionated, ids, 24)
    assert found["token_ids"] != expected_ids(tiny, ids, 24)
    expected = {"repetition_penalty": 1.7, "top_k": 5, "top_p": 0.9, "min_p": 0.0}
    assert expected.items() <= found["sampling"].items()


def test_sampling_options_of_the_user_win_over_those_of_the_model(run, tiny, opinionated):
    arguments = ["-p", PROMPT, "--max-tokens", 24, "--dtype", "float32", "--json"]
    given = ["--repetition-penalty", "1.0", "--top-k", "0", "--top-p", "1.0"]
    found = json.loads(run("generate", "-m", opinionated, *arguments, *given).stdout)
    plain = json.loads(run("generate", "-m", tiny, *arguments).stdout)
    assert found["token_ids"] == plain["token_ids"]
    assert found["sampling"] == plain["sampling"]


def test_several_answers_in_one_object(run, tiny):
    options = ["-p", PROMPT, "--max-tokens", 6, "--temperature", 1, "--seed", 1, "-n", 3]
    result = run("generate", "-m", tiny, *options, "--json")
    answers = json.loads(result.stdout)["generations"]
    assert len({tuple(answer["token_ids"]) for answer in answers}) == 3
    as_text = run("generate", "-m", tiny, *options)
    assert as_text.stdout == "".join(f"{answer['text']}\n" for answer in answers)


def test_stops_and_lengths_and_logprobs(run, tiny):
    options = ["generate", "-m", tiny, "--raw", "-p", PROMPT, "--json", "--max-tokens", 12]
    found = json.loads(run(*options, "--logprobs", 2).stdout)
    assert len(found["logprobs"]) == len(found["top_logprobs"]) == 12
    assert all(len(row) == 2 for row in found["top_logprobs"])
    assert found["finish_reason"] == "length"
    middle = found["text"][len(found["text"]) // 2]
    stopped = json.loads(run(*options, "--stop", middle, "--stop", "never").stdout)
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == found["text"].split(middle)[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-m", "smollm-135"], "did you mean 'smollm2-135m'"),
        (["-d", "ngran"], "did you mean 'ngram'"),
        (["--verify", "tokens"], "did you mean 'token'"),
        (["--drafter-option", "max_ngrm=3"], "did you mean 'max_ngram'"),
        (["--drafter-option", "max_ngram"], "takes NAME=VALUE"),
        (["--drafter-option", "references=3"], "references must be a text, or a list"),
        (["-d", "ngram", "--drafter-option", "model=x"], "setting of drafter 'ngram': 'model'"),
        (["--temprature", "1"], "No such option: --temprature"),
        (["-m", "/nowhere/model"], "no such file or folder: /nowhere/model"),
        (["-m", "nowhere.gguf"], "no such file or folder: nowhere.gguf"),
        (["--messages", "nowhere.json"], "not both"),
        (["--reference", "nowhere.txt"], "--reference: cannot read nowhere.txt"),
        (["-p", ""], "the prompt is empty"),
        (["-p", "", "--raw"], "the prompt is empty"),
        (["-p", "x" * 2000], "takes 1024"),
        (["--temperature", "-1"], "temperature must be a finite number, at least 0; it is -1"),
        (["--temperature", "warm"], "--temperature"),
        (["--top-p", "1.5"], "top_p must be"),
        (["-k", "-1"], "--num-draft-tokens"),
        (["--max-tokens", "2", "--min-tokens", "3"], "min_tokens must be at most max_tokens"),
        (["--dtype", "float8"], "float8"),
        (["--device", "gpu"], "device must be a device of torch, such as 'cpu', 'cuda' or"),
        (["--device", "xpu:7"], "on this machine; leave device out"),
        (["--dtype", "float16", "--storage", "packed"], "packed weights are for the CPU"),
        (["-d", "model"], "give --draft-model"),
        (["--draft-storage", "int4"], "require --draft-model"),
        (["-d", "none", "--max-ngram", "3"], "max_ngram"),
        (["--max-ngram", "1", "--min-ngram", "2"], "max_ngram must be at least 2"),
        (["--logprobs", "2"], "--json"),
        (["--json", "--stream"], "leave --stream out"),
        (["-n", "2", "--stream"], "leave --stream or -n out"),
        (["--stop", ""], "stop"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_input_is_answered_in_one_line(run, tiny, options, message):
    before = [] if "-m" in options else ["-m", tiny]
    before += [] if "-p" in options else ["-p", PROMPT]
    check_refused(run("generate", *before, *options), message)


def check_refused(result, message):
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert result.stdout == ""


def test_a_draft_model_with_another_tokenizer_is_refused(run, tiny, stranger):
    result = run("generate", "-m", tiny, "-p", PROMPT, "--draft-model", stranger)
    check_refused(result, "has another tokenizer")


def test_a_rule_that_does_not_take_the_drafts_is_refused(run, tiny):
    options = ["--drafter", "recycling", "--verify", "token"]
    result = run("generate", "-m", tiny, "-p", PROMPT, *options)
    check_refused(result, "the rule 'token' does not take what drafter 'recycling' may draft")


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_a_draft_model_that_is_known_not_to_fit_is_refused_before_anything_is_fetched(
    run, monkeypatch, tmp_path, command
):
    def never(*_, **__):
        raise AssertionError("something was loaded")

    monkeypatch.setattr(paceline, "load", never)
    (tmp_path / "prompts.txt").write_text("one two")
    options = {
        "generate": ["-p", PROMPT],
        "bench": ["--prompts", tmp_path / "prompts.txt", "--method", "model,k=2"],
    }
    pair = ["-m", "qwen2.5-coder-1.5b", "--draft-model", "smollm2-135m"]
    result = run(command, *pair, *options[command])
    assert result.exit_code == 2
    line = result.stderr.splitlines()[-1]
    assert "smollm2-135m has another tokenizer than qwen2.5-coder-1.5b" in line
    assert "choose qwen2.5-coder-0.5b, or the drafter 'universal'" in line


def test_a_draft_model_that_is_given_twice_is_refused(run, tiny, tiny_draft):
    options = ["--drafter-option", f"model={tiny_draft}", "--draft-model", tiny_draft]
    check_refused(
        run("generate", "-m", tiny, "-p", PROMPT, *options), "given twice, as --draft-model"
    )


def test_a_draft_model_for_a_drafter_that_takes_none_is_refused(run, tiny, tiny_draft):
    options = ["-d", "ngram", "--draft-model", tiny_draft]
    check_refused(run("generate", "-m", tiny, "-p", PROMPT, *options), "takes no draft model")


def test_an_encoder_decoder_model_is_refused(run, encoder_decoder):
    result = run("generate", "-m", encoder_decoder, "-p", PROMPT)
    check_refused(result, "encoder-decoder model (t5); those are not supported yet")


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_truncated_gguf_file_is_refused(run, tmp_path, share):
    path = tmp_path / "cut.gguf"
    tiny_gguf.write_gguf(path, tiny_gguf.make_model(tiny_gguf.CONFIGS["llama"]))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    result = run("generate", "-m", path, "-p", PROMPT)
    assert result.exit_code == 2
    assert result.stdout == ""
    # The steps that came first are told too, where no bar can be drawn.
    *steps, line = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert "cut.gguf" in line
    assert all(step.startswith(("checking", "reading", "converting")) for step in steps)


def test_a_gguf_file_is_converted_and_answers(run, tmp_path):
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write_gguf(path, tiny_gguf.make_model(tiny_gguf.CONFIGS["llama"]))
    result = run("generate", "-m", path, "-p", PROMPT, "--max-tokens", 3, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["usage"]["completion_tokens"] == 3
    assert "converting tiny.gguf" in result.stderr


def test_an_interruption_ends_the_line_and_the_process_quietly(run, tiny, monkeypatch):
    def interrupted(*_, **__):
        yield Chunk((Piece("the", 1, drafted=False),))
        raise KeyboardInterrupt

    monkeypatch.setattr(paceline.LanguageModel, "stream", interrupted)
    result = run("generate", "-m", tiny, "-p", PROMPT, "--stream")
    assert result.exit_code == 130
    assert result.stdout == "the\n"
    assert result.stderr == ""


@pytest.mark.parametrize("more", [[], ["--json"], ["--stream"]], ids=str)
def test_a_trace_of_the_answer(run, tiny, tmp_path, more):
    path = tmp_path / "run.jsonl"
    options = ["-m", tiny, "--raw", "-p", PROMPT, "--max-tokens", 12, "-d", "ngram"]
    result = run("generate", *options, "--trace", path, *more)
    assert result.exit_code == 0, result.stderr
    assert f"written: {path}" in result.stderr
    trace = paceline.read_trace(path)
    assert trace.prompt == PROMPT
    ids = AutoTokenizer.from_pretrained(tiny).encode(PROMPT)
    assert list(trace.lanes["speculative"].tokens) == expected_ids(tiny, ids, 12)


def test_a_trace_is_of_one_answer_and_of_a_file_that_can_be_written(run, tiny, tmp_path):
    result = run("generate", "-m", tiny, "-p", PROMPT, "-n", 2, "--trace", tmp_path / "a.jsonl")
    assert result.exit_code == 2
    assert "--trace writes down one answer; leave it or -n out" in result.stderr
    result = run("generate", "-m", tiny, "-p", PROMPT, "--trace", tmp_path)
    assert result.exit_code == 2
    assert "--trace: cannot write" in result.stderr


def test_an_answer_satisfies_the_schema_of_a_file(run, tiny, tmp_path):
    file = tmp_path / "schema.json"
    file.write_text('{"enum": ["the end", "stop"]}')
    arguments = ("generate", "-m", tiny, "-p", "the", "--raw", "--json", "--json-schema", file)
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads(json.loads(result.stdout)["text"]) in ("the end", "stop")
    for content in ("[", "[]", '{"type": "nothing"}'):
        file.write_text(content)
        refused = run(*arguments)
        assert refused.exit_code == 2
        assert "Traceback" not in refused.stderr
