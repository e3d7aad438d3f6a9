"""Keys, hosts, sizes, full queues, clients that leave and time that runs out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from paceline.server.app import CLIENT_CLOSED_REQUEST
from paceline.server.running import OWN_NAMES
from paceline.server.settings import Limits
from tests.held import Gate
from tests.server.conftest import client_of

TEXT = "/v1/completions"
SHORT = {"prompt": "the", "max_tokens": 1}


def test_with_a_key_every_route_but_health_needs_it(tiny_model: Any) -> None:
    async def main() -> None:
        async with client_of(tiny_model, api_key="sécret") as client:
            assert (await client.get("/health")).status_code == 200
            for path in ("/v1/models", "/version", "/openapi.json"):
                assert (await client.get(path)).status_code == 401
            for wrong in ("Bearer ", "Bearer secret", "sécret", "Basic sécret"):
                headers = {"authorization": wrong.encode("utf-8")}
                response = await client.post(TEXT, json=SHORT, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
            headers = {"authorization": "Bearer sécret".encode()}
            assert (await client.post(TEXT, json=SHORT, headers=headers)).status_code == 200

    asyncio.run(main())


def test_a_server_of_this_machine_answers_under_its_names_only(tiny_model: Any) -> None:
    async def main() -> None:
        async with client_of(tiny_model, hosts=OWN_NAMES) as client:
            for name in ("127.0.0.1", "127.0.0.1:80", "LocalHost:9", "[::1]", "[::1]:8000"):
                response = await client.get("/health", headers={"host": name})
                assert (name, response.status_code) == (name, 200)
            for name in ("evil.example", "127.0.0.1.evil.example", "[::2]:8000", ""):
                response = await client.get("/health", headers={"host": name})
                assert (name, response.status_code) == (name, 421)

    asyncio.run(main())


@pytest.mark.parametrize("says_its_length", [True, False])
def test_a_body_above_the_limit_is_refused(tiny_model: Any, says_its_length: bool) -> None:
    body = json.dumps({**SHORT, "user": "x" * 2000}).encode()

    async def pieces() -> Any:
        for start in range(0, len(body), 500):
            yield body[start : start + 500]

    async def main() -> httpx.Response:
        async with client_of(tiny_model, limits=Limits(body_bytes=1000)) as client:
            content = body if says_its_length else pieces()
            headers = {"content-type": "application/json"}
            assert (await client.post(TEXT, json=SHORT)).status_code == 200
            return await client.post(TEXT, content=content, headers=headers)

    response = asyncio.run(main())
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


def test_prompts_and_answers_above_the_limits_are_refused(tiny_model: Any) -> None:
    limits = Limits(prompt_tokens=5, answer_tokens=7)

    async def main() -> None:
        async with client_of(tiny_model, limits=limits) as client:
            long = await client.post(TEXT, json={"prompt": [40] * 6})
            assert (long.status_code, "5 tokens" in long.text) == (400, True)
            more = await client.post(TEXT, json={"prompt": [40] * 5, "max_tokens": 8})
            assert (more.status_code, "7 tokens" in more.text) == (400, True)
            body = {"messages": [{"role": "user", "content": "."}], "ignore_eos": True}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.json()["usage"]["completion_tokens"] == 7

    asyncio.run(main())


def test_a_full_queue_says_when_to_come_again(tiny_model: Any) -> None:
    held = Gate()
    settings = {"options": {"drafter": held}, "max_sequences": 1, "max_waiting": 1}

    async def main() -> None:
        async with client_of(tiny_model, **settings) as client:
            both = [asyncio.create_task(client.post(TEXT, json=SHORT)) for _ in range(2)]
            engine = client.app.state.service.engine
            while engine.num_open < 2:
                await asyncio.sleep(0.001)
            full = await client.post(TEXT, json=SHORT)
            assert full.status_code == 429
            assert full.json()["error"]["type"] == "rate_limit_error"
            assert int(full.headers["retry-after"]) >= 1
            assert (await client.get("/health")).status_code == 200
            held.gate.set()
            assert [(await task).status_code for task in both] == [200, 200]
            assert (await client.post(TEXT, json=SHORT)).status_code == 200

    asyncio.run(main())


def test_an_answer_that_takes_too_long_is_given_up(tiny_model: Any) -> None:
    held = Gate()
    settings = {"options": {"drafter": held}, "limits": Limits(seconds=0.01)}

    async def main() -> None:
        async with client_of(tiny_model, **settings) as client:
            for stream in (False, True):
                late = await client.post(TEXT, json={**SHORT, "stream": stream})
                assert late.status_code == 504
                assert late.json()["error"]["code"] == "timeout"
            held.gate.set()

    asyncio.run(main())


async def spoken(app: Any, body: dict[str, Any], leave_after: int) -> list[dict[str, Any]]:
    """What the application sends to a client that leaves after some messages."""
    sent: list[dict[str, Any]] = []
    left = asyncio.Event()
    content = json.dumps(body).encode()
    requests = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in requests:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if len(sent) >= leave_after:
            left.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": TEXT,
        "raw_path": TEXT.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    if not leave_after:
        left.set()
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_with_its_client(tiny_model: Any, stream: bool) -> None:
    """Whether it leaves before the first token or in the midst of a stream."""
    held = Gate()

    async def main() -> None:
        async with client_of(tiny_model, options={"drafter": held}) as client:
            service = client.app.state.service
            body = {"prompt": "the", "max_tokens": 200, "stream": stream, "ignore_eos": True}
            sent = await spoken(client.app, body, leave_after=0)
            assert [message.get("status") for message in sent[:1]] == [CLIENT_CLOSED_REQUEST]
            held.gate.set()
            if stream:
                sent = await spoken(client.app, body, leave_after=3)
                assert sent[0]["status"] == 200
                assert b"[DONE]" not in sent[-1].get("body", b"")
            while service.engine.num_open:
                await asyncio.sleep(0.001)
            assert not service.engine._core.is_busy

    asyncio.run(main())
