"""Every error as the body that clients of OpenAI read: {"error": {message, type, param, code}}.

No answer holds a traceback or a path of the machine; a fault of the server's own is logged, and the
client is told that there was one.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from paceline.errors import (
    ContextOverflow,
    EngineStopped,
    InvalidInput,
    PacelineError,
    QueueFull,
)

log = logging.getLogger("paceline.server")

RETRY_AFTER_S = 2
"""When a client that found the queue full may ask again."""


class ApiError(Exception):
    """An error as a client sees it.

    Args:
        status: of HTTP.
        message: what was expected, what came, what to do.
        param: the field at fault.
        code: a word for programs.
        kind: OpenAI's type of error.
        headers: further headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code, self.kind, self.headers = code, kind, headers

    @property
    def body(self) -> dict[str, Any]:
        """What the client gets."""
        told = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": told}

    def response(self) -> Response:
        """The same, with its status."""
        return PlainJson(self.body, self.status, headers=dict(self.headers or {}))


class PlainJson(JSONResponse):
    """JSON in ASCII, so that whatever a client sent can be told back to it."""

    def render(self, content: Any) -> bytes:
        """See `JSONResponse`."""
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def api_error(error: Exception, *, show: bool = False) -> ApiError:
    """What a client is told of an error.

    Args:
        error: any.
        show: log the message of a fault of the server's own, which may quote a prompt.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(
            429,
            str(error),
            code="rate_limit_exceeded",
            kind="rate_limit_error",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    if isinstance(error, EngineStopped):
        return ApiError(503, str(error), code="server_stopping", kind="server_error")
    if isinstance(error, InvalidInput):
        code = "context_length_exceeded" if isinstance(error, ContextOverflow) else "invalid_value"
        return ApiError(400, str(error), code=code)
    log_fault(error, show=show)
    what = "the model could not answer" if isinstance(error, PacelineError) else "a fault"
    return ApiError(
        500,
        f"{what}: the server has logged what happened; nothing is wrong with the request",
        code="internal_error",
        kind="server_error",
    )


def log_fault(error: BaseException, *, show: bool) -> None:
    """Log where a fault of the server's own happened; messages may quote a prompt."""
    places = "".join(traceback.format_tb(error.__traceback__))
    said = f": {error}" if show else " (its message is not logged; --log-prompts shows it)"
    log.error("%s%s\n%s", type(error).__name__, said, places.rstrip())


def install(app: FastAPI) -> None:
    """Let the application answer its errors so."""

    async def of_api(_: Request, error: Exception) -> Response:
        return api_error(error).response()

    async def of_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        codes = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
        wrong = ApiError(error.status_code, str(error.detail), code=codes.get(error.status_code))
        wrong.headers = error.headers
        return wrong.response()

    async def of_fields(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return wrong_field(error.errors()).response()

    app.add_exception_handler(ApiError, of_api)
    app.add_exception_handler(PacelineError, of_api)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_fields)


def wrong_field(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The error for one field at fault, of those that pydantic found."""
    # Of a field that may be of several kinds, the error within the one that came says most.
    first = max(errors, key=lambda error: len(error["loc"]))
    kind, said = first["type"], str(first["msg"]).removeprefix("Value error, ")
    param = ".".join(str(part) for part in first["loc"] if part != "body") or None
    if kind == "extra_forbidden":
        return ApiError(
            400,
            f"{param} is not a field that this server honours; leave it out",
            param=param,
            code="unknown_parameter",
        )
    if kind in ("json_invalid", "model_attributes_type", "model_type", "dict_type") and (
        param is None or kind == "json_invalid"
    ):
        return ApiError(400, "the body must be a JSON object", code="invalid_json")
    if kind == "missing":
        code, said = "missing_required_parameter", "it is required"
    else:
        code = "invalid_value"
    # What does not go together says itself what came.
    came = "" if kind in ("missing", "value_error") else f"; it is {_shown(first.get('input'))}"
    return ApiError(400, f"{param or 'the body'}: {said}{came}", param=param, code=code)


def _shown(value: Any) -> str:
    """A value that was refused, if it is short: the rest may be a prompt."""
    text = repr(value)
    return text if len(text) <= 60 else f"of type {type(value).__name__}"
