"""What stands before every route: the key, the size of the body, and faults that nobody handles.

Plain ASGI, so that streams pass through untouched.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.errors import ApiError, api_error, log_fault

OPEN_PATHS = frozenset({"/", "/health", "/ping"})
"""Those that need no key: whether the server lives, and a page that holds no figures itself."""


class KeyGuard:
    """Refuse requests that do not show the key, in the header that OpenAI's clients send."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app, self._expected = app, f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                wrong = ApiError(
                    401,
                    "the key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                    kind="authentication_error",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await wrong.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


class HostGuard:
    """Refuse requests that address the server by another name than its own.

    A page of another site could otherwise have a browser reach it under a name of that site (DNS
    rebinding).
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self.app, self._names = app, frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
            if name.lower() not in self._names:
                wrong = ApiError(
                    421,
                    f"this server answers to {', '.join(sorted(self._names))} only, and was asked "
                    f"as {name!r:.80}",
                    code="wrong_host",
                )
                await wrong.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


class BodyGuard:
    """Refuse bodies above a size, before they are read or while they come."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        too_large = f"a request may have {self._most} bytes; send a shorter one"
        said = Headers(scope=scope).get("content-length", "0")
        if said.isascii() and said.isdigit() and int(said[:20]) > self._most:
            await ApiError(413, too_large, code="request_too_large").response()(
                scope, receive, send
            )
            return
        came = 0

        async def counted() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._most:
                raise HTTPException(413, too_large)  # the kind that FastAPI lets pass
            return message

        await self.app(scope, counted, send)


class FaultGuard:
    """Answer what nothing else has handled with status 500, and log where it happened."""

    def __init__(self, app: ASGIApp, show: bool) -> None:
        self.app, self._show = app, show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception as error:
            if scope["type"] != "http":
                raise
            if has_begun:  # the connection is cut, which tells the client
                log_fault(error, show=self._show)
                return
            await api_error(error, show=self._show).response()(scope, receive, send)
