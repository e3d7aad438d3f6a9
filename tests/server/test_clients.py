"""The `openai` client, as it is installed, against a server on a port of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

import paceline
from paceline.server.app import make_app
from paceline.server.running import Server, address_of, listen
from paceline.server.settings import Settings
from tests.server.conftest import NAME
from tests.tiny_folders import model, tokenizer
from tests.tiny_tokenizers import CHAT_TEMPLATE

CHAT: Any = [{"role": "user", "content": "the stop"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Any]]:
    """The address of a server in a thread, and its model."""
    words = tokenizer()
    words.chat_template = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT_TEMPLATE.replace(
        "('system', 'user', 'assistant')", "('system', 'user', 'assistant', 'tool')"
    )
    language_model = paceline.load(
        model(eos_token_id=words.eos_token_id, max_position_embeddings=1024), words
    )
    app = make_app(language_model, Settings(name=NAME, api_key="key", request_metrics=True))
    listening = listen("127.0.0.1", 0)
    server = Server(app, app.state.service.engine, grace=5)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    yield address_of(listening) + "/v1", language_model
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served[0], api_key="key", max_retries=0) as found:
        yield found


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [item.id for item in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "paceline"


def test_a_chat_whole_and_streamed(client: openai.OpenAI, served: Any) -> None:
    expected = served[1].generate(CHAT, max_tokens=10, temperature=1.0, seed=3)
    options: Any = {"model": NAME, "messages": CHAT, "max_tokens": 10, "seed": 3}
    answer = client.chat.completions.create(**options)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(expected.token_ids)
    told = answer.model_extra["metrics"]["speculative_decoding"]  # type: ignore[index]
    assert sum(told["per_step_drafted"]) == told["num_draft_tokens"]
    usage = {"include_usage": True}
    parts = list(client.chat.completions.create(stream=True, stream_options=usage, **options))
    text = "".join(part.choices[0].delta.content or "" for part in parts[:-1])
    assert text == expected.text
    assert parts[-1].usage == answer.usage


def test_the_asynchronous_client(served: Any) -> None:
    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=served[0], api_key="key", max_retries=0) as client:

            async def one(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model=NAME, messages=CHAT, max_tokens=8, seed=seed, stream=True
                )
                return "".join([part.choices[0].delta.content or "" async for part in stream])

            return await asyncio.gather(*(one(seed) for seed in range(3)))

    expected = [
        served[1].generate(CHAT, max_tokens=8, temperature=1.0, seed=seed).text for seed in range(3)
    ]
    assert asyncio.run(main()) == expected


def test_a_text_completion(client: openai.OpenAI, served: Any) -> None:
    expected = served[1].generate("the", max_tokens=6, temperature=0.0).text
    answer = client.completions.create(model=NAME, prompt="the", max_tokens=6, temperature=0)
    assert answer.choices[0].text == expected


class Verdict(BaseModel):
    the: Literal["stop", "END"]
    count: int


def test_an_answer_of_a_schema_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=NAME, messages=CHAT, response_format=Verdict, seed=1, max_tokens=200
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(answer.choices[0].message.parsed, Verdict)
    said = answer.choices[0].message.content
    assert said is not None
    assert "".join(said.split()).startswith('{"the":"')


def test_a_call_that_is_required_is_made(client: openai.OpenAI) -> None:
    options: Any = {"model": NAME, "messages": CHAT, "tools": TOOLS, "tool_choice": "required"}
    answer = client.chat.completions.create(seed=2, **options)
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert answer.choices[0].finish_reason == "tool_calls"
    assert [call.function.name for call in calls] == ["add"]  # type: ignore[union-attr]
    arguments = calls[0].function.arguments  # type: ignore[union-attr]
    assert json.loads(arguments)["a"] in range(10)
    streamed = [
        call
        for part in client.chat.completions.create(seed=2, stream=True, **options)
        for call in part.choices[0].delta.tool_calls or ()
    ]
    assert "".join(call.function.arguments for call in streamed) == arguments
    result: Any = {"role": "tool", "tool_call_id": calls[0].id, "content": "4"}
    said: Any = answer.choices[0].message.model_dump()
    again = client.chat.completions.create(
        model=NAME, messages=[*CHAT, said, result], tools=TOOLS, max_tokens=4
    )
    assert again.usage is not None


def test_a_response_whole_and_streamed(client: openai.OpenAI, served: Any) -> None:
    chat = [{"role": "system", "content": "END"}, *CHAT]
    expected = served[1].generate(chat, max_tokens=16, temperature=0.0)
    options: Any = {"model": NAME, "instructions": "END", "input": "the stop", "temperature": 0}
    options["max_output_tokens"] = 16
    answer = client.responses.create(**options)
    assert answer.output_text == expected.text
    assert answer.usage is not None
    assert answer.usage.output_tokens == len(expected.token_ids)
    events = list(client.responses.create(stream=True, **options))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert kinds[-1] == f"response.{answer.status}"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == expected.text
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_response_that_must_call(client: openai.OpenAI) -> None:
    function = {"type": "function", **TOOLS[0]["function"], "strict": True}
    options: Any = {"model": NAME, "input": "the", "tools": [function, {"type": "web_search"}]}
    options["tool_choice"] = "required"
    answer = client.responses.create(temperature=0, **options)
    (call,) = answer.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["a"] in range(10)
    events = list(client.responses.create(temperature=0, stream=True, **options))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output[0].arguments == call.arguments  # type: ignore[union-attr]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
    said: Any = [{"role": "user", "content": "the"}, call.model_dump(), output]
    again = client.responses.create(model=NAME, input=said, max_output_tokens=3)
    assert again.usage is not None


def test_errors_are_those_of_the_client(client: openai.OpenAI, served: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="n times the number") as caught:
        client.chat.completions.create(model=NAME, messages=CHAT, n=99)
    assert caught.value.param == "n"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=CHAT)
    with (
        openai.OpenAI(base_url=served[0], api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model=NAME, input="the", previous_response_id="resp_1")
