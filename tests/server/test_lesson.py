"""The lesson over HTTP: its files, who may ask, and races that are traces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import paceline
from paceline.lesson import served_lesson
from paceline.server.lesson import FEWEST_TOKENS, MOST_TOKENS
from paceline.trace import Trace, parse_trace
from tests.server.conftest import NAME, client_of

PROMPT = "the stop the END the stop the"
HOME = "http://127.0.0.1"


def run(work: Any) -> Any:
    return asyncio.run(work)


def events(text: str) -> list[str]:
    """The data of server-sent events."""
    found = text.split("\n\n")
    assert found.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in found)
    return [event.removeprefix("data: ") for event in found]


async def raced(client: httpx.AsyncClient, **asked: Any) -> Trace:
    answer = await client.post("/lesson/rounds", json={"prompt": PROMPT, **asked})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parse_trace("\n".join(events(answer.text)))


async def refused(model: Any, asked: dict[str, Any], **headers: str) -> tuple[int, str]:
    async with client_of(model) as client:
        answer = await client.post("/lesson/rounds", json=asked, headers=headers)
        return answer.status_code, answer.json()["error"]["message"]


class TestPage:
    def test_every_file_is_served_under_a_policy(self, tiny_model: Any) -> None:
        async def work() -> None:
            async with client_of(tiny_model) as client:
                assets, policy = served_lesson("/lesson")
                for path, asset in assets.items():
                    answer = await client.get(path)
                    assert answer.status_code == 200
                    assert answer.content == asset.content
                    assert answer.headers["content-type"] == asset.media_type
                    assert answer.headers["content-security-policy"] == policy
                    assert answer.headers["x-content-type-options"] == "nosniff"
                assert (await client.get("/lesson/none.js")).status_code == 404

        run(work())

    def test_it_is_told_what_may_be_asked_for(self, tiny_model: Any) -> None:
        async def work() -> dict[str, Any]:
            async with client_of(tiny_model, options={"drafter": "suffix"}) as client:
                return (await client.get("/lesson/info")).json()

        told = run(work())
        names = [drafter["name"] for drafter in told["drafters"]]
        assert told["model"] == NAME
        assert names[:2] == ["suffix", "ngram"], "the server's own first"
        assert len(names) == len(set(names))
        # Those that would need what this server does not have are not offered.
        assert {"none", "model", "tree", "eagle", "medusa", "retrieval"}.isdisjoint(names)
        rules = {rule["name"]: rule["exact"] for rule in told["verifiers"]}
        assert rules["token"] is True
        assert rules["typical"] is False
        assert told["limits"] == {
            "tokens": [FEWEST_TOKENS, MOST_TOKENS],
            "temperature": [0, 2],
            "num_draft_tokens": [0, 16],
        }

    def test_with_a_draft_model_its_drafters_are_offered(self, tiny_model: Any) -> None:
        async def work() -> tuple[dict[str, Any], Trace]:
            options = {"draft_model": tiny_model}
            async with client_of(tiny_model, options=options) as client:
                told = (await client.get("/lesson/info")).json()
                trace = await raced(client, drafter="tree", num_draft_tokens=3, max_tokens=12)
                return told, trace

        told, trace = run(work())
        names = [drafter["name"] for drafter in told["drafters"]]
        assert names[0] == "tree"
        assert "model" in names
        lane = trace.lanes["speculative"]
        assert lane.about["drafter"] == "tree"
        assert lane.metrics.num_draft_tokens > 0


class TestRace:
    @pytest.mark.parametrize("length", ["auto", 0, 4])
    def test_both_lanes_are_what_the_model_answers(self, tiny_model: Any, length: Any) -> None:
        async def work() -> Trace:
            async with client_of(tiny_model) as client:
                return await raced(client, drafter="ngram", num_draft_tokens=length, max_tokens=20)

        trace = run(work())
        chat = [{"role": "user", "content": PROMPT}]  # as its template is for
        expected = tiny_model.generate(chat, drafter="none", max_tokens=20)
        assert list(trace.lanes) == ["plain", "speculative"]
        assert (trace.model, trace.prompt) == (NAME, PROMPT)
        for lane in trace.lanes.values():
            assert lane.tokens == expected.token_ids
            assert lane.text == expected.text
            assert lane.about["promise"] == "law, path"
            assert all(event.draft is not None for event in lane.rounds)
        assert "command" not in trace.environment
        assert "commit" not in trace.environment

    @pytest.mark.parametrize("verifier", [None, "coupling"])
    def test_a_rule_that_couples_gives_the_plain_lane_at_any_temperature(
        self, tiny_model: Any, verifier: str | None
    ) -> None:
        async def work() -> Trace:
            async with client_of(tiny_model) as client:
                asked = {"temperature": 1.0, "seed": 3, "verifier": verifier}
                return await raced(client, **asked, num_draft_tokens="auto", max_tokens=16)

        trace = run(work())
        plain, fast = trace.lanes.values()
        assert fast.about["verifier"] == plain.about["verifier"] == "coupling"
        assert fast.about["promise"] == "law, path"
        assert plain.tokens == fast.tokens
        assert trace.sampling["seed"] == 3

    def test_a_rule_that_is_not_exact_says_so(self, tiny_model: Any) -> None:
        async def work() -> Trace:
            async with client_of(tiny_model) as client:
                asked = {"temperature": 1.0, "verifier": "typical", "num_draft_tokens": 2}
                return await raced(client, **asked, max_tokens=8)

        plain, fast = run(work()).lanes.values()
        assert (plain.about["exact"], fast.about["exact"]) == (True, False)
        assert fast.about["promise"] == "none"

    def test_lines_come_while_it_runs_and_one_lane_after_the_other(self, tiny_model: Any) -> None:
        async def work() -> tuple[list[str], list[int]]:
            async with streaming(tiny_model, max_tokens=24) as (chunks, engine):
                lanes, open_then = [], []
                async for chunk in chunks:
                    for line in map(json.loads, events(chunk)):
                        if line["event"] == "round":
                            lanes.append(line["lane"])
                            open_then.append(engine.num_open)
                return lanes, open_then

        lanes, open_then = run(work())
        assert lanes == sorted(lanes), "plain first"
        assert set(lanes) == {"plain", "speculative"}
        assert open_then[0] == 1, "the first round was sent after the last was decoded"

    def test_a_client_that_goes_ends_it_within_a_round(self, tiny_model: Any) -> None:
        async def work() -> int:
            async with streaming(tiny_model, max_tokens=MOST_TOKENS) as (chunks, engine):
                await anext(chunks)
                await anext(chunks)
            for _ in range(200):
                if not engine.num_open:
                    break
                await asyncio.sleep(0.01)
            return engine.num_open

        assert run(work()) == 0

    def test_a_server_that_stops_midway_leaves_a_trace_that_says_so(self, tiny_model: Any) -> None:
        async def work() -> Trace:
            async with streaming(tiny_model, max_tokens=MOST_TOKENS) as (chunks, engine):
                text = await anext(chunks) + await anext(chunks)
                await engine.close()
                async for chunk in chunks:
                    text += chunk
                return parse_trace("\n".join(events(text)))

        trace = run(work())
        plain, fast = trace.lanes.values()
        assert 1 <= len(plain.rounds) < MOST_TOKENS
        assert "stopped" in (plain.error or "")
        assert "stopped" in (fast.error or "")
        assert fast.rounds == ()


@asynccontextmanager
async def streaming(model: Any, **asked: Any) -> AsyncIterator[tuple[AsyncIterator[str], Any]]:
    """The body of a race as it is sent, and the engine; leaving it closes the connection.

    httpx hands an application's answer over only once it is whole, so this speaks ASGI itself.
    """
    async with client_of(model) as client:
        body = json.dumps({"prompt": PROMPT, **asked}).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/lesson/rounds",
            "raw_path": b"/lesson/rounds",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        sent: asyncio.Queue[str | None] = asyncio.Queue()
        given = iter([{"type": "http.request", "body": body, "more_body": False}])
        gone = asyncio.Event()

        async def receive() -> Any:
            if (message := next(given, None)) is not None:
                return message
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if gone.is_set():
                raise OSError("the connection is closed")
            if message["type"] == "http.response.start":
                assert message["status"] == 200
            elif text := message["body"].decode():
                sent.put_nowait(text)

        async def served() -> None:
            try:
                await client.app(scope, receive, send)
            finally:
                sent.put_nowait(None)

        async def chunks() -> AsyncIterator[str]:
            while (text := await sent.get()) is not None:
                yield text

        task = asyncio.create_task(served())
        try:
            yield chunks(), client.app.state.service.engine
        finally:
            gone.set()
            await asyncio.wait([task])


class TestRefused:
    def test_a_page_of_another_site(self, tiny_model: Any) -> None:
        asked = {"prompt": PROMPT, "max_tokens": 8}
        for origin in ("https://elsewhere.example", "null", "http://127.0.0.1:81"):
            status, message = run(refused(tiny_model, asked, origin=origin))
            assert status == 403
            assert origin in message

    def test_its_own_page_is_served(self, tiny_model: Any) -> None:
        async def work() -> int:
            async with client_of(tiny_model) as client:
                asked = {"prompt": PROMPT, "max_tokens": 8}
                answer = await client.post("/lesson/rounds", json=asked, headers={"origin": HOME})
                return answer.status_code

        assert run(work()) == 200

    @pytest.mark.parametrize(
        ("asked", "told"),
        [
            ({}, "prompt"),
            ({"prompt": ""}, "prompt"),
            ({"prompt": 3}, "prompt"),
            ({"temperature": 2.5}, "temperature"),
            ({"temperature": -1}, "temperature"),
            ({"max_tokens": FEWEST_TOKENS - 1}, "max_tokens"),
            ({"max_tokens": MOST_TOKENS + 1}, "max_tokens"),
            ({"num_draft_tokens": 17}, "num_draft_tokens"),
            ({"num_draft_tokens": "many"}, "num_draft_tokens"),
            ({"seed": -1}, "seed"),
            ({"drafter": "ngrm"}, "did you mean 'ngram'"),
            ({"drafter": "model"}, "needs a draft model, and this server has none"),
            ({"drafter": "none"}, "plain"),
            ({"verifier": "tokn"}, "did you mean 'token'"),
            ({"top_p": 0.5}, "top_p is not a field"),
            ({"prompt": "the " * 2000}, "tokens"),
        ],
        ids=str,
    )
    def test_what_cannot_be_run(self, tiny_model: Any, asked: dict[str, Any], told: str) -> None:
        full = {"prompt": PROMPT, **asked} if asked else {}
        status, message = run(refused(tiny_model, full))
        assert status == 400
        assert told in message


def test_a_saved_race_is_read_back(tiny_model: Any, tmp_path: Any) -> None:
    """What the page saves is what came: a trace like any other."""

    async def work() -> str:
        async with client_of(tiny_model) as client:
            asked = {"prompt": PROMPT, "max_tokens": 12}
            return (await client.post("/lesson/rounds", json=asked)).text

    path = tmp_path / "race.jsonl"
    path.write_text("\n".join(events(run(work()))) + "\n", encoding="utf-8")
    trace = paceline.read_trace(path)
    assert trace.lanes["plain"].text == trace.lanes["speculative"].text
