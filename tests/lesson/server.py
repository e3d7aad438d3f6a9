"""A small server that speaks the protocol of the lesson's live race, from a recorded trace."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline.lesson import served_lesson

INFO = {
    "model": "tiny",
    "drafters": [{"name": "ngram"}, {"name": "model"}],
    "verifiers": [{"name": "token", "exact": True}, {"name": "typical", "exact": False}],
    "limits": {"tokens": [8, 256], "temperature": [0, 2]},
}


@dataclass
class Script:
    """What the server does with a request for rounds.

    Args:
        lines: of the trace that it sends.
        pause_after: how many lines it sends before it waits for `go`; None for none.
        cut_after: how many lines it sends before it drops the connection; None for none.
    """

    lines: list[str]
    pause_after: int | None = None
    cut_after: int | None = None
    go: threading.Event = field(default_factory=threading.Event)
    asked: list[dict[str, Any]] = field(default_factory=list)
    sent: int = 0
    left_early: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(script: Script | None = None) -> Iterator[str]:
    """The address of the page; with a script, the page finds a server for live rounds."""
    assets, policy = served_lesson("/lesson")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, status: int, media_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", policy)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/lesson/info" and script is not None:
                self.answer(200, "application/json", json.dumps(INFO).encode())
            elif asset := assets.get(self.path):
                self.answer(200, asset.media_type, asset.content)
            else:
                self.answer(404, "text/plain", b"")

        def do_POST(self) -> None:
            assert script is not None
            length = int(self.headers["Content-Length"])
            script.asked.append(json.loads(self.rfile.read(length)))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                for number, line in enumerate(script.lines):
                    script.sent = number
                    if number == script.cut_after:
                        return
                    if number == script.pause_after:
                        script.go.wait(60)
                    self.wfile.write(f"data: {line}\n\n".encode())
                    self.wfile.flush()
                script.sent = len(script.lines)
            except OSError:
                script.left_early.set()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/lesson"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
