"""The application: routes over one engine, behind the guards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.responses import Response

from paceline.generate.api import LanguageModel
from paceline.generate.async_engine import MAX_SEQUENCES, Engine
from paceline.server import chat, completions, errors, figures, info, lesson, responses
from paceline.server.answering import ClientGone
from paceline.server.guard import BodyGuard, FaultGuard, HostGuard, KeyGuard
from paceline.server.metrics import Metrics
from paceline.server.service import VERSION, Service
from paceline.server.settings import Settings

CLIENT_CLOSED_REQUEST = 499
"""What servers log of a request whose client did not wait. Nobody receives it."""


def make_app(
    model: LanguageModel,
    settings: Settings,
    *,
    max_sequences: int = MAX_SEQUENCES,
    max_waiting: int | None = 64,
    memory: int | None = None,
    prefix_bytes: int = 0,
) -> FastAPI:
    """The application, which decodes from its start-up to its end.

    Args:
        model: the model that answers; it needs a tokenizer.
        settings: how it answers.
        max_sequences: how many answers are decoded at once.
        max_waiting: how many may wait; a request beyond gets status 429.
        memory, prefix_bytes: see `async_engine.Engine`.
    """
    metrics = Metrics(settings.name)
    engine = Engine(
        model,
        max_sequences=max_sequences,
        max_waiting=max_waiting,
        memory=memory,
        prefix_bytes=prefix_bytes,
        observer=metrics,
    )
    service = Service(engine, settings, metrics)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    app = FastAPI(
        title="Paceline",
        version=VERSION,
        summary="Exact speculative decoding behind the interface of OpenAI.",
        lifespan=life,
    )
    app.state.service = service
    errors.install(app)

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.add_exception_handler(ClientGone, gone)
    for part in (chat, completions, responses, info, figures, lesson):
        app.include_router(part.routes(service))
    # The last one added stands first.
    app.add_middleware(FaultGuard, show=settings.show_errors)
    app.add_middleware(BodyGuard, most=settings.limits.body_bytes)
    if settings.api_key is not None:
        app.add_middleware(KeyGuard, api_key=settings.api_key)
    if settings.hosts is not None:
        app.add_middleware(HostGuard, names=settings.hosts)
    return app
