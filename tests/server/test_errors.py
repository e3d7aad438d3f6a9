"""What cannot be served is refused with OpenAI's error body, and says what to do."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from tests.held import SECRET, Faulty
from tests.server.conftest import NAME, client_of

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "the"}]

REFUSED: list[tuple[str, dict[str, Any], str | None, str]] = [
    (TEXT, {}, "prompt", "missing_required_parameter"),
    (TEXT, {"prompt": "a", "best": 1}, "best", "unknown_parameter"),
    (TEXT, {"prompt": "a", "n": "2"}, "n", "invalid_value"),
    (TEXT, {"prompt": "a", "n": 0}, "n", "invalid_value"),
    (TEXT, {"prompt": "a", "n": 17}, "n", "invalid_value"),
    (TEXT, {"prompt": ["a"] * 17}, "n", "invalid_value"),
    (TEXT, {"prompt": "a", "temperature": -0.1}, "temperature", "invalid_value"),
    (TEXT, {"prompt": "a", "suffix": "b"}, "suffix", "invalid_value"),
    (TEXT, {"prompt": "a", "best_of": 2}, "best_of", "invalid_value"),
    (TEXT, {"prompt": "a", "echo": True, "logprobs": 1}, None, "invalid_value"),
    (TEXT, {"prompt": "a", "stream_options": {"include_usage": True}}, None, "invalid_value"),
    (TEXT, {"prompt": ""}, None, "invalid_value"),
    (TEXT, {"prompt": []}, None, "invalid_value"),
    (TEXT, {"prompt": "a", "logit_bias": {"x": 1.0}}, None, "invalid_value"),
    (TEXT, {"prompt": "a", "logit_bias": {"9999": 1.0}}, None, "invalid_value"),
    (TEXT, {"prompt": [9999]}, None, "invalid_value"),
    (TEXT, {"prompt": "a", "speculative": {"drafter": "model"}}, None, "invalid_value"),
    (TEXT, {"prompt": "a", "speculative": {"drafter": "medusa"}}, None, "invalid_value"),
    (TEXT, {"prompt": "a", "speculative": {"drafter": "nope"}}, None, "invalid_value"),
    (TEXT, {"prompt": "a", "speculative": {"draft_model": "/x"}}, None, "unknown_parameter"),
    (TEXT, {"prompt": "a" * 300}, None, "context_length_exceeded"),
    (CHAT, {"messages": []}, "messages", "invalid_value"),
    (CHAT, {"messages": [{"role": "king", "content": "a"}]}, "messages.0.role", "invalid_value"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages.0", "invalid_value"),
    (CHAT, {"messages": HELLO, "top_logprobs": 2}, None, "invalid_value"),
    (CHAT, {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 2}, None, "invalid_value"),
    (CHAT, {"messages": HELLO, "store": True}, "store", "invalid_value"),
    (
        CHAT,
        {"messages": HELLO, "reasoning_effort": "high"},
        "reasoning_effort",
        "unknown_parameter",
    ),
    (CHAT, {"messages": HELLO, "chat_template_kwargs": {"think": 1}}, None, "invalid_value"),
    (
        CHAT,
        {"messages": HELLO, "chat_template_kwargs": {"chat_template": "x"}},
        None,
        "invalid_value",
    ),
    (
        CHAT,
        {
            "messages": HELLO,
            "prediction": {"type": "content", "content": "a"},
            "speculative": False,
        },
        None,
        "invalid_value",
    ),
]


@pytest.mark.parametrize(("path", "body", "param", "code"), REFUSED)
def test_a_field_that_is_not_honoured_is_refused(
    ask: Any, path: str, body: dict[str, Any], param: str | None, code: str
) -> None:
    response = ask(path, **body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == code
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param
    assert len(error["message"]) > 20


@pytest.mark.parametrize(("path", "field"), [(TEXT, {"prompt": "a"}), (CHAT, {"messages": HELLO})])
def test_another_model_is_not_found(ask: Any, path: str, field: dict[str, Any]) -> None:
    response = ask(path, model="gpt-9", **field)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert ask(path, model=NAME, max_tokens=1, **field).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b'"text"', "application/json"),
        (b"\xff", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"prompt": "\\ud800"}', "application/json"),
        (b'{"\\ud800": 1, "prompt": "a"}', "application/json"),
        (b'{"prompt": "a", "temperature": NaN}', "application/json"),
        (b'{"prompt": "a", "seed": 1e400}', "application/json"),
        (b'{"prompt": "a"}', "text/plain"),
        (b"", "application/json"),
    ],
)
def test_a_broken_body_is_refused(tiny_model: Any, content: bytes, kind: str) -> None:
    async def main() -> httpx.Response:
        async with client_of(tiny_model) as client:
            return await client.post(TEXT, content=content, headers={"content-type": kind})

    response = asyncio.run(main())
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_fault_of_the_server_is_told_without_its_message(
    tiny_model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(**more: Any) -> httpx.Response:
        async with client_of(tiny_model, options={"drafter": Faulty()}, **more) as client:
            response = await client.post(TEXT, json={"prompt": "a"})
            again = {"prompt": "a", "speculative": False, "max_tokens": 1}
            assert (await client.post(TEXT, json=again)).status_code == 200
            return response

    with caplog.at_level(logging.ERROR, "paceline.server"):
        response = asyncio.run(main())
        assert response.status_code == 500
        assert SECRET not in response.text
        assert "Traceback" not in response.text
        assert "ArithmeticError" in caplog.text
        assert SECRET not in caplog.text
        asyncio.run(main(show_errors=True))
        assert SECRET in caplog.text


def test_the_models_own_name_is_not_told_where_it_is_served_under_another(tiny_model: Any) -> None:
    async def main() -> str:
        async with client_of(tiny_model, name="served") as client:
            return (await client.post(TEXT, json={"prompt": "a" * 300})).text

    assert f"and {tiny_model.name} takes" not in asyncio.run(main())
    assert "and served takes" in asyncio.run(main())
