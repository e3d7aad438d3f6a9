"""Routes about the server and its model: health, version, models, load, tokens."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from paceline.errors import PacelineError
from paceline.server.errors import ApiError
from paceline.server.fields import Fields, TokenId
from paceline.server.messages import Message
from paceline.server.service import VERSION, Service
from paceline.text import ChatOptions, encode_plain, encode_prompt


class TokenizeRequest(Fields):
    """A text, or messages, to be turned into token ids."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=32)
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Fields):
    """Token ids to be turned into text."""

    model: str | None = None
    tokens: list[TokenId]


def routes(service: Service) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["Server"])
    model, info = service.model, service.model.target.info

    @router.get("/health", response_model=None)
    @router.get("/ping", response_model=None)
    async def health() -> Response:
        """Status 200 while the server takes requests and decodes them, else 503."""
        if service.engine.is_healthy:
            return JSONResponse({"status": "ok"})
        raise ApiError(
            503, "the server is being stopped", code="server_stopping", kind="server_error"
        )

    @router.get("/version")
    async def version() -> dict[str, str]:
        """The version of Paceline."""
        return {"version": VERSION}

    @router.get("/v1/models", tags=["OpenAI"])
    async def models() -> dict[str, Any]:
        """The model that is served."""
        return {"object": "list", "data": [_card(service)]}

    @router.get("/v1/models/{name:path}", tags=["OpenAI"])
    async def one(name: str) -> dict[str, Any]:
        """The model that is served, by its name."""
        service.check_model(name)
        return _card(service)

    @router.post("/tokenize")
    async def tokenize(fields: TokenizeRequest) -> dict[str, Any]:
        """Token ids of a text or of messages, as a request with them would use."""
        service.check_model(fields.model)
        try:
            ids = await asyncio.to_thread(_encode, service, fields)
        except PacelineError as error:
            raise service.plain(error) from error
        told: dict[str, Any] = {"count": len(ids), "max_model_len": info.max_length, "tokens": ids}
        if fields.return_token_strs:
            told["token_strs"] = [service.tokens.text_of(token) for token in ids]
        return told

    @router.post("/detokenize")
    async def detokenize(fields: DetokenizeRequest) -> dict[str, str]:
        """The text of token ids, special tokens included."""
        service.check_model(fields.model)
        if outside := [token for token in fields.tokens if token >= info.vocab_size]:
            raise ApiError(
                400,
                f"token ids go from 0 to {info.vocab_size - 1}; one is {outside[0]}",
                param="tokens",
                code="invalid_value",
            )
        return {"prompt": str(model.tokenizer.decode(fields.tokens, skip_special_tokens=False))}

    return router


def _card(service: Service) -> dict[str, Any]:
    """The model as `/v1/models` lists it."""
    name = service.settings.name
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "paceline",
        "root": name,
        "max_model_len": service.model.target.info.max_length,
    }


def _encode(service: Service, fields: TokenizeRequest) -> list[int]:
    tokenizer = service.model.tokenizer
    if fields.prompt is not None:
        if fields.add_special_tokens is False:
            return encode_plain(tokenizer, fields.prompt)
        return service.model.encode(fields.prompt)
    assert fields.messages is not None
    messages = [message.for_template() for message in fields.messages]
    values = fields.chat_template_kwargs or {}
    if "chat_template" in values:
        raise ApiError(400, "chat_template_kwargs take values for the template, not a template")
    chat = ChatOptions(None, values, bool(fields.continue_final_message))
    add = fields.add_generation_prompt is not False
    return encode_prompt(tokenizer, messages, add_generation_prompt=add, chat=chat)
