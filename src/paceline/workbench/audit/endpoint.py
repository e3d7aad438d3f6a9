"""A client of OpenAI-compatible servers, completions and chat, with clear errors.

httpx is imported when a client is made, because it is in the extra `workbench`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

from paceline.checks import require_finite, require_int
from paceline.errors import EndpointError, InvalidInput, MissingExtra

Api = Literal["completions", "chat"]

TOP = 5
"""The number of top log-probabilities to ask for; OpenAI's completions give no more."""

_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """How to talk to a server.

    Args:
        model: the name under which it serves the model; None takes the one that it lists.
        api: `completions` sends a text as it is, `chat` sends messages.
        timeout: seconds for one answer.
        retries: how often a request is sent again after a transient error.
        pause: seconds before the first retry; doubled before each further one.
        headers: sent with each request, for example `Authorization`.
    """

    model: str | None = None
    api: Api = "completions"
    timeout: float = 120.0
    retries: int = 3
    pause: float = 0.5
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.api not in ("completions", "chat"):
            raise InvalidInput(f"api must be completions or chat; it is {self.api!r}")
        require_int("retries", self.retries, low=0)
        require_finite(self, "timeout", self.timeout, low=0.001)
        require_finite(self, "pause", self.pause, low=0.0)


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token of an answer, as the server reports it.

    Args:
        text: of the token.
        logprob: its log-probability.
        top: the most probable tokens there with their log-probabilities, the best first.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Args:
        text: of the answer.
        finish_reason: as the server gives it.
        num_tokens: of the answer; None if the server does not count.
        scores: token by token; None if the server gives none.
    """

    text: str
    finish_reason: str | None = None
    num_tokens: int | None = None
    scores: tuple[TokenScore, ...] | None = None


class Endpoint:
    """One server. Threads may share it. Use it as a context manager, or close it.

    Args:
        url: of the server, with or without `/v1` at the end.
        settings: None means the defaults.
        transport: of httpx, for tests.

    Raises:
        InvalidInput: the address is not http or https.
        MissingExtra: httpx is not installed.
    """

    def __init__(
        self, url: str, settings: EndpointSettings | None = None, *, transport: Any = None
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra.needed("workbench", "requests over HTTP") from error
        self.settings = settings or EndpointSettings()
        self.url = base_url(url)
        self.model = self.settings.model
        self._httpx = httpx
        self._client = httpx.Client(
            timeout=self.settings.timeout, headers=dict(self.settings.headers), transport=transport
        )

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def identify(self) -> str:
        """The name of the model to ask for: that in the settings, else the only one that it lists.

        Raises:
            EndpointError: it cannot be reached, or does not list exactly one.
        """
        if self.model is not None:
            return self.model
        found = self._send("GET", "models", None)
        listed = found.get("data")
        names = [
            str(item["id"])
            for item in (listed if isinstance(listed, list) else ())
            if isinstance(item, Mapping) and "id" in item
        ]
        if len(names) != 1:
            what = f"it lists {', '.join(names)}" if names else "it lists none"
            raise EndpointError(
                f"{self.url} must say which model it serves; {what}. Give --model NAME"
            )
        self.model = names[0]
        return self.model

    def ask(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        options: Mapping[str, Any],
        logprobs: bool = False,
    ) -> Reply:
        """One answer.

        Args:
            prompt: a text for completions, messages for chat.
            max_tokens: the longest answer.
            options: sent unchanged: `temperature`, `seed`, ...
            logprobs: whether to ask for log-probabilities.

        Raises:
            EndpointError: it cannot be reached, refuses, or answers with something else.
        """
        body: dict[str, Any] = {"model": self.identify(), "max_tokens": max_tokens, **options}
        if self.settings.api == "chat":
            body["messages"] = list(prompt)
            if logprobs:
                body |= {"logprobs": True, "top_logprobs": TOP}
            return self._reply(self._send("POST", "chat/completions", body))
        body["prompt"] = prompt
        if logprobs:
            body["logprobs"] = TOP
        return self._reply(self._send("POST", "completions", body))

    def _send(self, method: str, path: str, body: Any) -> Mapping[str, Any]:
        """Send a request, with retries after transient errors, and return the object received."""
        where = f"{self.url}/{path}"
        for attempt in range(self.settings.retries + 1):
            last = attempt == self.settings.retries
            try:
                response = self._client.request(method, where, json=body)
            except self._httpx.TimeoutException:
                if last:
                    raise EndpointError(
                        f"{where} did not answer within {self.settings.timeout:g} s; give a longer "
                        "--timeout, or fewer tokens"
                    ) from None
            except self._httpx.HTTPError as error:
                if last:
                    raise EndpointError(
                        f"cannot reach {where}: {str(error) or type(error).__name__}; is a server "
                        "running there?"
                    ) from None
            else:
                if response.status_code not in _RETRIED or last:
                    return _object(where, response)
            time.sleep(self.settings.pause * 2**attempt)
        raise AssertionError("unreachable")  # the last attempt returns or raises

    def _reply(self, found: Mapping[str, Any]) -> Reply:
        choices = found.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(first, Mapping):
            raise EndpointError(f"{self.url} answered without choices: {_short(found)}")
        text: Any = first.get("text")
        if self.settings.api == "chat":
            message = first.get("message")
            text = message.get("content") if isinstance(message, Mapping) else None
            text = "" if text is None and isinstance(message, Mapping) else text
        if not isinstance(text, str):
            raise EndpointError(f"{self.url} answered without a text: {_short(first)}")
        usage = found.get("usage")
        count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        return Reply(
            text,
            first.get("finish_reason"),
            count if isinstance(count, int) else None,
            _scores(first.get("logprobs")),
        )


def base_url(url: str) -> str:
    """The address that paths are added to.

    >>> base_url("http://localhost:8000/"), base_url("https://host/api/v1/chat/completions")
    ('http://localhost:8000/v1', 'https://host/api/v1')
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidInput(
            f"expected the address of a server, such as http://localhost:8000; it is {url!r}"
        )
    bare = url.rstrip("/")
    for end in ("/chat/completions", "/completions"):
        bare = bare.removesuffix(end)
    return bare if urlsplit(bare).path else f"{bare}/v1"


def _object(where: str, response: Any) -> Mapping[str, Any]:
    """The JSON object of a response; raises with the server's message if it refused."""
    try:
        found = response.json()
    except ValueError:
        found = None
    if response.status_code >= 400:
        said = _message(found) or _one_line(response.text)
        raise EndpointError(f"{where} answered {response.status_code}: {said or 'no reason given'}")
    if not isinstance(found, Mapping):
        kind = response.headers.get("content-type", "no content type")
        raise EndpointError(
            f"{where} must answer with a JSON object; it answered with {kind}: "
            f"{_one_line(response.text)!r}. Is it an OpenAI-compatible endpoint?"
        )
    if "error" in found and "choices" not in found and "data" not in found:
        raise EndpointError(f"{where} answered with an error: {_message(found) or _short(found)}")
    return found


def _message(found: Any) -> str | None:
    """The message of an error, in any of the forms that servers use."""
    if not isinstance(found, Mapping):
        return None
    error = found.get("error", found)
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("detail")
    return None if error is None else _one_line(str(error))


def _scores(found: Any) -> tuple[TokenScore, ...] | None:
    """Log-probabilities in OpenAI's format for completions or for chat.

    Some servers use the format for chat in completions, so both are accepted for both.
    """
    if not isinstance(found, Mapping):
        return None
    try:
        if isinstance(found.get("content"), list):
            return tuple(
                TokenScore(
                    str(item["token"]),
                    float(item["logprob"]),
                    _best_first((t["token"], t["logprob"]) for t in item.get("top_logprobs") or ()),
                )
                for item in found["content"]
            )
        if isinstance(found.get("tokens"), list):
            tops = found.get("top_logprobs") or [None] * len(found["tokens"])
            return tuple(
                TokenScore(str(token), float(value), _best_first((top or {}).items()))
                for token, value, top in zip(
                    found["tokens"], found["token_logprobs"], tops, strict=True
                )
            )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return None


def _best_first(pairs: Any) -> tuple[tuple[str, float], ...]:
    found = [(str(token), float(value)) for token, value in pairs if value is not None]
    return tuple(sorted(found, key=lambda pair: -pair[1]))


def _short(value: Any) -> str:
    return _one_line(repr(value))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
