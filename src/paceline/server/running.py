"""Listen, answer, and end in good order."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from paceline.errors import InvalidInput
from paceline.generate.async_engine import Engine

LATE_S = 5.0
"""How long clients get to read what is there, once the grace is over."""

OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""The names under which a server of this machine alone is addressed."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        InvalidInput: the address cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidInput(f"--host: {host!r} is no address here: {error.strerror}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        raise InvalidInput(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port"
        ) from error
    return found


def address_of(listening: socket.socket) -> str:
    """The URL of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """Asked to end by SIGTERM or Ctrl-C, it takes nothing more and lets answers finish for a while.

    Args:
        app: the application.
        engine: its engine, which gives up what is not finished when the grace is over.
        grace: seconds.
    """

    def __init__(self, app: FastAPI, engine: Engine, grace: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=int(grace + LATE_S),
            )
        )
        self._engine, self._grace = engine, grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        closing = asyncio.ensure_future(self._engine.close(self._grace))
        await super().shutdown(sockets)
        await closing

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but a signal that was obeyed is not raised again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    app: FastAPI, listening: socket.socket, *, grace: float, ready: Callable[[], None] | None = None
) -> None:
    """Answer until the process is asked to end.

    Args:
        app: see `app.make_app`.
        listening: see `listen`.
        grace: for how many seconds answers may go on after that; then they end by an error.
        ready: called when requests are taken.
    """
    server = Server(app, app.state.service.engine, grace)

    async def main() -> None:
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if ready is not None and server.started:
            ready()
        await serving

    with listening:
        asyncio.run(main())
