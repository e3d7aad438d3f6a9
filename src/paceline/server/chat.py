"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from paceline.errors import InvalidInput
from paceline.generate.async_engine import Answers
from paceline.generate.results import Chunk, Generation
from paceline.server.answering import Items, Payload, streamed, whole
from paceline.server.fields import TOKEN_LOGPROBS, Fields, Sampled
from paceline.server.messages import Message, Part, text_of_parts
from paceline.server.results import finish_reason, shown_tokens, usage, usage_so_far
from paceline.server.service import FINGERPRINT, Service, new_id
from paceline.text import ChatOptions


class Prediction(Fields):
    """The answer that the client expects, up to edits."""

    type: Literal["content"]
    content: str | list[Part]

    @property
    def text(self) -> str:
        """Its text."""
        return text_of_parts(self.content)


class ChatRequest(Sampled):
    """The fields of a request for chat completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0, lt=2**31)
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=TOKEN_LOGPROBS)
    prediction: Prediction | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=32)
    add_generation_prompt: Literal[True] | None = None
    continue_final_message: bool | None = None
    modalities: list[Literal["text"]] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    # Labels for whoever runs a server; nothing is kept of them here.
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs are of logprobs; set logprobs too, or leave them out")
        if self.max_tokens is not None and self.max_completion_tokens not in (
            None,
            self.max_tokens,
        ):
            raise ValueError(
                "max_tokens and max_completion_tokens are one limit under two names; give one"
            )
        return self

    @property
    def limit(self) -> int | None:
        """The longest answer that was asked for."""
        asked = self.max_completion_tokens
        return self.max_tokens if asked is None else asked

    def options(self, service: Service) -> dict[str, Any]:
        """The options of `generate`.

        Raises:
            InvalidInput: fields do not go together, or ask for more than the server gives.
        """
        prediction = None if self.prediction is None else self.prediction.text
        return {
            **self.drafting(service.settings.options, prediction),
            **self.sampling(),
            "max_tokens": service.max_tokens(self.limit),
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
        }

    def for_template(self) -> ChatOptions:
        """What the chat template reads in addition to the messages.

        Raises:
            InvalidInput: a value is not for a template.
        """
        values = self.chat_template_kwargs or {}
        if "chat_template" in values:
            raise InvalidInput("chat_template_kwargs take values for the template, not a template")
        return ChatOptions(None, values, bool(self.continue_final_message))


class _ChatCompletion:
    """One request on its way: what its answers have in common."""

    def __init__(self, service: Service, fields: ChatRequest, answers: Answers) -> None:
        self.service, self.fields, self.answers = service, fields, answers
        first = answers.members[0].job.request
        self.ends, self.prompt_tokens = first.stop_token_ids, len(first.prompt)
        self.tokens = service.tokens
        self.head = {
            "id": new_id("chatcmpl"),
            "created": int(time.time()),
            "model": service.settings.name,
            "system_fingerprint": FINGERPRINT,
        }

    def _usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        predicted = self.fields.prediction is not None
        return usage(self.prompt_tokens, generations, predicted=predicted)

    def whole(self, generations: Sequence[Generation]) -> Payload:
        """The response with all answers."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": generation.text, "refusal": None},
                "logprobs": self._logprobs(
                    generation, shown_tokens(generation.token_ids, self.ends)
                ),
                "finish_reason": finish_reason(generation),
            }
            for index, generation in enumerate(generations)
        ]
        return {
            **self.head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self._usage(generations),
        }

    def _logprobs(self, source: Generation | Chunk, tokens: Sequence[int]) -> dict[str, Any] | None:
        if not self.fields.logprobs:
            return None
        content = self.tokens.chat_logprobs(
            tokens, source.logprobs or (), source.top_logprobs or ()
        )
        return {"content": content, "refusal": None}

    async def parts(self, items: Items) -> AsyncIterator[Payload]:
        """The objects of a stream."""
        done: list[Generation] = []
        answered = 0
        for index in range(len(self.answers.members)):
            yield self._part(index, {"role": "assistant", "content": ""}, None, None, 0)
        async for index, item in items:
            if isinstance(item, Generation):
                done.append(item)
                yield self._part(index, {}, None, finish_reason(item), answered)
                continue
            answered += len(item.tokens)
            if item.text or (self.fields.logprobs and shown_tokens(item.tokens, self.ends)):
                logprobs = self._logprobs(item, item.tokens)
                yield self._part(index, {"content": item.text}, logprobs, None, answered)
        if self.fields.with_usage:
            yield {**self._chunk_head, "choices": [], "usage": self._usage(done)}

    @property
    def _chunk_head(self) -> Payload:
        return {**self.head, "object": "chat.completion.chunk"}

    def _part(
        self, index: int, delta: Payload, logprobs: Any, reason: str | None, answered: int
    ) -> Payload:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        told: Payload = {**self._chunk_head, "choices": [choice]}
        if self.fields.with_usage:
            so_far = usage_so_far(self.prompt_tokens, answered)
            told["usage"] = so_far if self.fields.usage_always else None
        return told


def routes(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions", response_model=None)
    async def chat(fields: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        service.check_model(fields.model)
        service.check_answers(1, fields)
        try:
            options = fields.options(service)
            chat = fields.for_template()
        except InvalidInput as error:
            raise service.plain(error) from error
        messages = [message.for_template() for message in fields.messages]
        answers = await service.submit([messages], fields.num_answers, options, chat)
        completion = _ChatCompletion(service, fields, answers)
        if fields.stream:
            return await streamed(service, request, answers, completion.parts)
        return JSONResponse(completion.whole(await whole(service, request, answers)))

    return router
