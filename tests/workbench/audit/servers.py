"""Small servers with OpenAI's interface, over tables: right ones, lossy ones and broken ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.events import Round
from paceline.core.sampling import SamplingParams
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import Request, decode
from paceline.sampling.noise import SeededNoise
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier
from paceline.workbench.audit.endpoint import Endpoint, EndpointSettings
from paceline.workbench.audit.scripts import Parts, Script, in_front_of

WORDS = (" red", " green", " blue", " gold")
PLAIN = Parts(NoDrafter(), TokenVerifier(), FixedController(0))

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


def table(scale: float = 1.0, seed: int = 0) -> Tensor:
    """A random law of the next word by the last one."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(4, 4, generator=generator, dtype=torch.float64)
    return logits.softmax(dim=-1)


def ok(value: Any) -> Answer:
    return 200, "application/json", json.dumps(value).encode()


@dataclass
class Server:
    """Answers as a server would.

    Args:
        parts: how it drafts and verifies.
        law: of the next word.
        draft: of its draft model.
        logprobs: whether it tells them: by OpenAI's forms, as zeros, or not at all.
        names: of the models that it lists.
        change: of a text before it is sent.
    """

    parts: Parts = PLAIN
    law: Tensor = field(default_factory=table)
    draft: Tensor = field(default_factory=lambda: table(seed=1))
    logprobs: str = "form"
    names: Sequence[str] = ("toy",)
    change: Callable[[str, Mapping[str, Any]], str] = lambda text, body: text
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def __call__(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        if path == "/v1/models":
            return ok({"data": [{"id": name} for name in self.names]})
        assert body is not None
        self.asked.append(body)
        chat = path == "/v1/chat/completions"
        if body["model"] not in self.names:
            error = {"error": {"message": f"The model `{body['model']}` does not exist."}}
            return 404, "application/json", json.dumps(error).encode()
        text = body["messages"][-1]["content"] if chat else body["prompt"]
        words, scores = self._words(text, body)
        answer = self.change("".join(words), body)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= (
            {"message": {"role": "assistant", "content": answer}} if chat else {"text": answer}
        )
        if body.get("logprobs") and self.logprobs != "none":
            choice["logprobs"] = _told(words, scores, chat=chat, zero=self.logprobs == "zero")
        return ok({"choices": [choice], "usage": {"completion_tokens": len(words)}})

    def _words(self, text: str, body: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
        prompt = [WORDS.index(f" {word}") for word in text.split() if f" {word}" in WORDS] or [0]
        target = TableTarget(self.law)
        staged = in_front_of(Script("", target, TableTarget(self.draft), ()), self.parts)
        request = Request(
            prompt=prompt,
            drafter=staged.drafter,
            controller=staged.controller,
            verifier=staged.verifier,
            noise=SeededNoise(int(body.get("seed", 0))),
            params=SamplingParams(temperature=body["temperature"]),
            max_tokens=body["max_tokens"],
            logprobs=4,
        )
        words, scores = [], []
        for event in decode(target, [request]):
            if isinstance(event, Round):
                words += [WORDS[token] for token in event.tokens]
                assert event.top_logprobs is not None
                scores += [[(WORDS[i], value) for i, value in row] for row in event.top_logprobs]
        return words, scores


def _told(
    words: Sequence[str], scores: Sequence[Sequence[Any]], *, chat: bool, zero: bool
) -> Mapping[str, Any]:
    rows = [{w: 0.0 if zero else v for w, v in row} for row in scores]
    if chat:
        return {
            "content": [
                {
                    "token": word,
                    "logprob": row[word],
                    "top_logprobs": [{"token": w, "logprob": v} for w, v in row.items()],
                }
                for word, row in zip(words, rows, strict=True)
            ]
        }
    return {
        "tokens": list(words),
        "token_logprobs": [row[word] for word, row in zip(words, rows, strict=True)],
        "top_logprobs": rows,
    }


def endpoint(server: Callable[..., Answer], **settings: Any) -> Endpoint:
    """An endpoint that reaches a server without a network."""

    def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        status, kind, content = server(request.method, request.url.path, body)
        return httpx.Response(status, headers={"content-type": kind}, content=content)

    settings = {"pause": 0.0, **settings}
    return Endpoint(
        "http://toy", EndpointSettings(**settings), transport=httpx.MockTransport(handle)
    )


@contextmanager
def running(server: Callable[..., Answer]) -> Iterator[str]:
    """The address of a server that runs on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, kind, content = server(self.command, self.path, body)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer  # noqa: N815 - the names that the library calls

        def log_message(self, *arguments: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
