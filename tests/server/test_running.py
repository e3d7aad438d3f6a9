"""A server on a port of its own: how it begins, and how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from paceline.errors import InvalidInput
from paceline.server.app import make_app
from paceline.server.running import Server, address_of, is_loopback, listen
from paceline.server.settings import Settings
from tests.held import Gate

LONG = {"prompt": "the", "max_tokens": 20, "ignore_eos": True, "temperature": 0.0}


@contextmanager
def running(language_model: Any, grace: float, drafter: Any) -> Iterator[tuple[str, Server]]:
    app = make_app(language_model, Settings(name="tiny", options={"drafter": drafter}))
    listening = listen("127.0.0.1", 0)
    server = Server(app, app.state.service.engine, grace)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    try:
        yield address_of(listening), server
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("stream", [False, True])
def test_answers_finish_within_the_grace(tiny_model: Any, stream: bool) -> None:
    drafter = Gate()
    with (
        running(tiny_model, 30.0, drafter) as (url, server),
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        expected = tiny_model.generate("the", max_tokens=20, ignore_eos=True).text
        found: list[httpx.Response] = []
        body = {**LONG, "stream": stream}
        asking = threading.Thread(
            target=lambda: found.append(client.post("/v1/completions", json=body))
        )
        asking.start()
        engine = server._engine
        while not engine.num_open:
            threading.Event().wait(0.002)
        server.should_exit = True
        while engine.is_healthy:
            threading.Event().wait(0.002)
        drafter.gate.set()
        asking.join()
    (response,) = found
    assert response.status_code == 200
    if stream:
        parts = [part for part in response.text.split("\n\n") if part]
        assert parts[-1] == "data: [DONE]"
        texts = [json.loads(part[6:])["choices"][0]["text"] for part in parts[:-1]]
        assert "".join(texts) == expected
    else:
        assert response.json()["choices"][0]["text"] == expected


def test_without_grace_answers_end_by_an_error(tiny_model: Any) -> None:
    drafter = Gate()
    with running(tiny_model, 0.0, drafter) as (url, server):
        found: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: found.append(httpx.post(f"{url}/v1/completions", json=LONG, timeout=30))
        )
        asking.start()
        while not server._engine.num_open:
            threading.Event().wait(0.002)
        server.should_exit = True
        while server._engine.is_healthy:
            threading.Event().wait(0.002)
        drafter.gate.set()
        asking.join()
    (response,) = found
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "server_stopping"


def test_a_port_in_use_is_one_clear_error() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port}.*another --port"):
            listen("127.0.0.1", port)
    with pytest.raises(InvalidInput, match="no address here"):
        listen("not an address", 0)


def test_addresses() -> None:
    with listen("localhost", 0) as found:
        assert address_of(found).startswith("http://")
    if socket.has_ipv6:
        try:
            with listen("::1", 0) as found:
                assert address_of(found).startswith("http://[::1]:")
        except InvalidInput:
            pass  # this machine has no such address
    assert not is_loopback("")
