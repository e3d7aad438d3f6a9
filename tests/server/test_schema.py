"""Requests made from the OpenAPI schema, right and wrong ones: none is answered with a fault."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from paceline.server.app import make_app
from paceline.server.running import Server, address_of, listen
from paceline.server.settings import Limits, Settings

OPERATIONS = [
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/models/{name}", "GET"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/metrics", "GET"),
    ("/load", "GET"),
]


@pytest.fixture(scope="module")
def url(tiny_model: Any) -> Iterator[str]:
    limits = Limits(answer_tokens=3, answers=2, seconds=20)
    app = make_app(tiny_model, Settings(name="tiny", limits=limits))
    listening = listen("127.0.0.1", 0)
    server = Server(app, app.state.service.engine, grace=0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    yield address_of(listening)
    server.should_exit = True
    thread.join()
    listening.close()


RIGHT, WRONG = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
CASES = [(path, method, RIGHT) for path, method in OPERATIONS]
CASES += [(path, method, WRONG) for path, method in OPERATIONS if method == "POST"]


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_no_request_is_answered_with_a_fault(url: str, path: str, method: str, mode: Any) -> None:
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path][method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=8,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        response = case.call(base_url=url)
        assert response.status_code < 500
        if response.status_code >= 400:
            assert response.json()["error"]["message"]

    check()
