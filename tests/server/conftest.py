"""A server over a tiny model, spoken to without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import paceline
from paceline.server.app import make_app
from paceline.server.settings import Settings
from tests.tiny_folders import model, tokenizer

NAME = "tiny"


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    words = tokenizer()
    return paceline.load(model(eos_token_id=words.eos_token_id), words)


@asynccontextmanager
async def client_of(language_model: Any, **settings: Any):
    """A client of a fresh server; what `make_app` takes is passed on."""
    engine = {
        name: settings.pop(name) for name in ("max_sequences", "max_waiting") if name in settings
    }
    app = make_app(language_model, Settings(**{"name": NAME, **settings}), **engine)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            client.app = app
            yield client


@pytest.fixture
def ask(tiny_model: Any) -> Iterator[Callable[..., httpx.Response]]:
    """POST a body to a path of a server that lasts as long as the test."""
    runner = asyncio.Runner()
    context = client_of(tiny_model)
    client = runner.run(context.__aenter__())

    def post(path: str, method: str = "POST", **body: Any) -> httpx.Response:
        content = {"json": body} if method == "POST" else {}
        return runner.run(client.request(method, path, **content))

    yield post
    runner.run(context.__aexit__(None, None, None))
    runner.close()
