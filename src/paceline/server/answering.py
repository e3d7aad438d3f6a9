"""An answer on its way to a client: for as long as the client is there and its time lasts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from fastapi import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from paceline.generate.async_engine import Answers
from paceline.generate.results import Chunk, Generation
from paceline.server.errors import ApiError
from paceline.server.service import Service

Item = tuple[int, Chunk | Generation]
"""The place of an answer among those of a request, and what it added."""

Items = AsyncIterator[Item]
Payload = dict[str, Any]


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def whole(service: Service, request: Request, answers: Answers) -> list[Generation]:
    """The finished answers, in order."""
    async with answering(service, request, answers) as items:
        found = {index: item async for index, item in items if isinstance(item, Generation)}
    return [found[index] for index in sorted(found)]


async def streamed(
    service: Service,
    request: Request,
    answers: Answers,
    payloads: Callable[[Items], AsyncIterator[Payload]],
    *,
    event: Callable[[Payload], bytes] | None = None,
    end: bytes = b"data: [DONE]\n\n",
) -> Response:
    """The answers as server-sent events.

    The first item is awaited before the response begins, so that what is wrong with a request is an
    error of its response; what fails later is an event with `error`.

    Args:
        service, request, answers: what is answered, and to whom.
        payloads: from items to the objects of the events.
        event: from an object to the bytes of its event; None sends its JSON as data.
        end: what follows the last event.
    """
    written = data_event if event is None else event
    stack = AsyncExitStack()
    try:
        items = await stack.enter_async_context(answering(service, request, answers))
        first = await anext(items)
    except BaseException:
        await stack.aclose()
        raise

    async def body() -> AsyncIterator[bytes]:
        try:
            async for payload in payloads(_after(first, items)):
                yield written(payload)
            yield end
        except ApiError as error:
            yield written(error.body)
        except Exception as error:  # noqa: BLE001 - the response has begun
            yield written(service.plain(error).body)

    return EventStream(body(), stack)


def data_event(payload: Payload) -> bytes:
    r"""A server-sent event without a name.

    >>> data_event({"a": 1})
    b'data: {"a":1}\n\n'
    """
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"data: {text}\n\n".encode()


class EventStream(StreamingResponse):
    """A stream of events that frees what it holds, however it ends, and if it never begins."""

    def __init__(self, body: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
        # Proxies that collect what they pass on would make a stream arrive in one piece.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(body, media_type="text/event-stream", headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        async with self._stack:
            await super().__call__(scope, receive, send)


@asynccontextmanager
async def answering(service: Service, request: Request, answers: Answers) -> AsyncIterator[Items]:
    """The items of the answers; what is not finished at the end is cancelled."""
    gone = asyncio.ensure_future(_gone(request))
    try:
        async with aclosing(_items(service, answers, gone)) as items:
            yield items
    finally:
        gone.cancel()
        answers.cancel()


async def _items(
    service: Service, answers: Answers, gone: asyncio.Future[None]
) -> AsyncGenerator[Item]:
    """The items, until the client has gone or its time is over."""
    seconds = service.settings.limits.seconds
    deadline = asyncio.get_running_loop().time() + seconds
    while answers.is_open:
        step = asyncio.ensure_future(answers.__anext__())
        try:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait((step, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientGone
            if not step.done():
                raise ApiError(
                    504,
                    f"the answer took longer than {seconds:g} seconds; ask for a shorter one",
                    code="timeout",
                    kind="server_error",
                )
            try:
                item = step.result()
            except Exception as error:
                raise service.plain(error) from error
        finally:
            step.cancel()
        yield item


async def _after(first: Item, rest: Items) -> Items:
    yield first
    async for item in rest:
        yield item


async def _gone(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
