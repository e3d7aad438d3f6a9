"""Answers over HTTP are those of `LanguageModel.generate`, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.server.chat import ChatRequest
from paceline.server.completions import CompletionRequest
from tests.server.conftest import NAME
from tests.tiny_folders import model
from tests.tiny_models import own_logits

PROMPT = "the stop the stop the"
CHAT = [{"role": "user", "content": "the stop"}]
DRAWN = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.0, "seed": 5, "top_p": 0.9, "top_k": 20, "min_p": 0.02},
    {"temperature": 1.0, "seed": 5, "frequency_penalty": 0.5, "presence_penalty": -0.5},
    {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.3, "logit_bias": {"30": 4.0}},
    {"temperature": 1.0, "seed": -1, "allowed_token_ids": [40, 41, 42], "min_tokens": 3},
    {"temperature": 0.0, "speculative": False},
    {"temperature": 0.8, "seed": 5, "speculative": {"drafter": "suffix", "num_draft_tokens": 3}},
]


def in_python(model: Any, prompt: Any, given: dict[str, Any], **more: Any) -> Any:
    """What `generate` answers to the same request."""
    options = {name: value for name, value in given.items() if name != "speculative"}
    if "seed" in options:
        options["seed"] %= 2**64
    if "logit_bias" in options:
        options["logit_bias"] = {int(key): bias for key, bias in options["logit_bias"].items()}
    asked = given.get("speculative")
    options |= {"drafter": "none"} if asked is False else asked or {}
    return model.generate(prompt, max_tokens=12, **options, **more)


def events(text: str) -> list[dict[str, Any]]:
    """The objects of a stream, which ends as OpenAI's do."""
    parts = text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


@pytest.mark.parametrize("given", DRAWN)
def test_a_text_is_continued_as_in_python(ask: Any, tiny_model: Any, given: dict[str, Any]) -> None:
    expected = in_python(tiny_model, PROMPT, given)
    body = {"prompt": PROMPT, "max_tokens": 12, **given}
    answer = ask("/v1/completions", **body).json()
    assert answer["choices"][0]["text"] == expected.text
    assert answer["choices"][0]["finish_reason"] == expected.finish_reason
    assert answer["usage"]["completion_tokens"] == len(expected.token_ids)
    assert answer["usage"]["prompt_tokens"] == expected.num_prompt_tokens
    parts = events(ask("/v1/completions", stream=True, **body).text)
    assert "".join(part["choices"][0]["text"] for part in parts) == expected.text
    assert parts[-1]["choices"][0]["finish_reason"] == expected.finish_reason
    assert {(part["id"], part["object"], part["model"]) for part in parts} == {
        (parts[0]["id"], "text_completion", NAME)
    }


@pytest.mark.parametrize("given", DRAWN)
def test_a_conversation_is_answered_as_in_python(
    ask: Any, tiny_model: Any, given: dict[str, Any]
) -> None:
    expected = in_python(tiny_model, CHAT, given)
    body = {"messages": CHAT, "max_completion_tokens": 12, **given}
    answer = ask("/v1/chat/completions", **body).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == expected.text
    parts = events(ask("/v1/chat/completions", stream=True, **body).text)
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == expected.text
    assert parts[-1]["choices"][0]["finish_reason"] == expected.finish_reason


def test_the_temperature_is_one_unless_it_is_given(ask: Any, tiny_model: Any) -> None:
    expected = tiny_model.generate(PROMPT, temperature=1.0, seed=3, max_tokens=12).text
    answer = ask("/v1/completions", prompt=PROMPT, seed=3, max_tokens=12).json()
    assert answer["choices"][0]["text"] == expected


def test_several_answers_have_consecutive_seeds_and_count_the_prompt_once(
    ask: Any, tiny_model: Any
) -> None:
    expected = tiny_model.generate(CHAT, n=3, temperature=1.0, seed=7, max_tokens=6)
    body = {"messages": CHAT, "n": 3, "seed": 7, "max_tokens": 6}
    answer = ask("/v1/chat/completions", **body).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == [item.text for item in expected]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == expected[0].num_prompt_tokens
    streamed = ["", "", ""]
    options = {"include_usage": True, "continuous_usage_stats": True}
    parts = events(ask("/v1/chat/completions", stream=True, stream_options=options, **body).text)
    for part in parts[:-1]:
        choice = part["choices"][0]
        streamed[choice["index"]] += choice["delta"].get("content", "")
        assert part["usage"]["completion_tokens"] <= answer["usage"]["completion_tokens"]
    assert streamed == texts
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == answer["usage"]


def test_several_prompts_are_answered_in_their_order(ask: Any, tiny_model: Any) -> None:
    prompts = ["the", "stop", tiny_model.encode("END the")]
    body = {"max_tokens": 5, "temperature": 0.0, "n": 2}
    answer = ask("/v1/completions", prompt=prompts[:2], **body).json()
    expected = [tiny_model.generate(prompt, max_tokens=5).text for prompt in prompts]
    assert [choice["text"] for choice in answer["choices"]] == [
        text for text in expected[:2] for _ in range(2)
    ]
    ids = ask("/v1/completions", prompt=[prompts[2]], **body).json()
    assert [choice["text"] for choice in ids["choices"]] == [expected[2]] * 2
    assert ids["usage"]["prompt_tokens"] == len(prompts[2])


def test_logprobs_are_the_models_own_for_accepted_draft_tokens_too(
    ask: Any, tiny_model: Any
) -> None:
    """The answer itself as the prediction: nearly all of its tokens are accepted drafts."""
    prompt_ids = tiny_model.encode(CHAT)
    options = {"max_tokens": 12, "temperature": 0.0, "allowed_token_ids": list(range(60, 90))}
    plain = tiny_model.generate(CHAT, **options)
    logits = own_logits(model(), [*prompt_ids, *plain.token_ids])
    rows = logits[len(prompt_ids) - 1 : -1].log_softmax(-1)
    expected = [float(row[token]) for row, token in zip(rows, plain.token_ids, strict=True)]
    body = {"messages": CHAT, "logprobs": True, "top_logprobs": 3, **options}
    body["prediction"] = {"type": "content", "content": plain.text}
    body["speculative"] = {"num_draft_tokens": 4}
    answer = ask("/v1/chat/completions", **body).json()
    assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] >= 6
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == pytest.approx(expected, abs=1e-5)
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == plain.text
    for entry, row in zip(content, rows, strict=True):
        best = row.topk(3).values.tolist()
        assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(best, abs=1e-5)
    parts = events(ask("/v1/chat/completions", stream=True, **body).text)
    logprobs = [part["choices"][0]["logprobs"] for part in parts]
    assert [entry for item in logprobs if item for entry in item["content"]] == content
    body = {"prompt": prompt_ids, "logprobs": 3, **options}
    text = ask("/v1/completions", **body).json()["choices"][0]
    assert text["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-5)
    assert "".join(text["logprobs"]["tokens"]) == plain.text == text["text"]
    spans = zip(text["logprobs"]["text_offset"], text["logprobs"]["tokens"], strict=True)
    assert all(plain.text[start:].startswith(token) for start, token in spans)


def test_stop_strings_end_an_answer_and_are_no_part_of_it(ask: Any, tiny_model: Any) -> None:
    full = tiny_model.generate(PROMPT, max_tokens=24, temperature=1.0, seed=2).text
    stop = full[len(full) // 2 :][:2]
    expected = tiny_model.generate(PROMPT, max_tokens=24, temperature=1.0, seed=2, stop=stop)
    assert expected.finish_reason == "stop"
    for given in (stop, [stop, "never there"]):
        answer = ask("/v1/completions", prompt=PROMPT, max_tokens=24, seed=2, stop=given).json()
        assert answer["choices"][0]["text"] == expected.text
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_echo_repeats_the_prompt(ask: Any, tiny_model: Any) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0.0, "echo": True}
    expected = PROMPT + tiny_model.generate(PROMPT, max_tokens=4).text
    assert ask("/v1/completions", **body).json()["choices"][0]["text"] == expected
    parts = events(ask("/v1/completions", stream=True, **body).text)
    assert "".join(part["choices"][0]["text"] for part in parts) == expected


def test_answers_are_as_long_as_the_context_unless_a_chat_says_otherwise(
    ask: Any, tiny_model: Any
) -> None:
    chat = ask("/v1/chat/completions", messages=CHAT, ignore_eos=True, seed=1).json()
    assert chat["usage"]["total_tokens"] == tiny_model.target.info.max_length
    text = ask("/v1/completions", prompt=PROMPT, ignore_eos=True, seed=1).json()
    assert text["usage"]["completion_tokens"] == 16


def test_a_prediction_that_is_wrong_is_told_so_and_changes_nothing(
    ask: Any, tiny_model: Any
) -> None:
    options = {"max_tokens": 10, "temperature": 0.0, "allowed_token_ids": list(range(60, 90))}
    plain = tiny_model.generate(CHAT, **options)
    body = {"messages": CHAT, "speculative": {"num_draft_tokens": 3}, **options}
    body["prediction"] = {"type": "content", "content": "\u0001\u0002\u0003" * 20}
    answer = ask("/v1/chat/completions", **body).json()
    assert answer["choices"][0]["message"]["content"] == plain.text
    told = answer["usage"]["completion_tokens_details"]
    assert told["accepted_prediction_tokens"] == 0
    assert told["rejected_prediction_tokens"] > 0


NULLABLE = [
    (path, name)
    for path, fields in (
        ("/v1/chat/completions", ChatRequest),
        ("/v1/completions", CompletionRequest),
    )
    for name, field in fields.model_fields.items()
    if not field.is_required()
]
"""OpenAI's clients send null for what their caller left out."""


@pytest.mark.parametrize(("path", "name"), NULLABLE)
def test_null_is_as_good_as_nothing(ask: Any, path: str, name: str) -> None:
    body = {"messages": CHAT} if "chat" in path else {"prompt": PROMPT}
    body = {"max_tokens": 2, "seed": 1, **body}
    left_out = ask(path, **{key: value for key, value in body.items() if key != name}).json()
    given_null = ask(path, **{**body, name: None}).json()
    assert given_null["choices"] == left_out["choices"] or name == "seed"
