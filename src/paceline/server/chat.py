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
from paceline.server.forms import ResponseFormat, StructuredOutputs, form_of
from paceline.server.messages import Message, Part, text_of_parts
from paceline.server.results import (
    finish_reason,
    request_metrics,
    shown_tokens,
    usage,
    usage_so_far,
)
from paceline.server.service import FINGERPRINT, Service, new_id
from paceline.server.tools import Call, Tool, ToolChoice, Tooling, ToolText
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
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
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
        form = form_of(self.response_format, self.structured_outputs)
        called = self.tooling.form
        if form is not None and called is not None:
            raise InvalidInput(
                "tool_choice asks for a call, and the answer shall have another form; leave one of "
                "them out"
            )
        return {
            **self.drafting(service.settings.options, prediction),
            **self.sampling(),
            "max_tokens": service.max_tokens(self.limit),
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
            "structured_outputs": called or form,
        }

    @property
    def tooling(self) -> Tooling:
        """The tools that may be called.

        Raises:
            InvalidInput: tools and tool_choice do not go together.
        """
        return Tooling.of(self.tools, self.tool_choice, self.parallel_tool_calls)

    def for_template(self) -> ChatOptions:
        """What the chat template reads in addition to the messages.

        Raises:
            InvalidInput: a value is not for a template.
        """
        values = self.chat_template_kwargs or {}
        if "chat_template" in values:
            raise InvalidInput("chat_template_kwargs take values for the template, not a template")
        tools = [tool.for_template() for tool in self.tooling.tools] or None
        return ChatOptions(tools, values, bool(self.continue_final_message))


class _ChatCompletion:
    """One request on its way: what its answers have in common."""

    def __init__(self, service: Service, fields: ChatRequest, answers: Answers) -> None:
        self.service, self.fields, self.answers = service, fields, answers
        first = answers.members[0].job.request
        self.ends, self.prompt_tokens = first.stop_token_ids, len(first.prompt)
        self.tokens, self.tooling = service.tokens, fields.tooling
        self.head = {
            "id": new_id("chatcmpl"),
            "created": int(time.time()),
            "model": service.settings.name,
            "system_fingerprint": FINGERPRINT,
        }

    def _usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        predicted = self.fields.prediction is not None
        cached = self.answers.members[0].num_cached_tokens
        return usage(self.prompt_tokens, generations, cached=cached, predicted=predicted)

    def whole(self, generations: Sequence[Generation]) -> Payload:
        """The response with all answers."""
        choices = [self._choice(*pair) for pair in enumerate(generations)]
        told = {
            **self.head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self._usage(generations),
        }
        return told | request_metrics(self.service, self.answers.members)

    def _choice(self, index: int, generation: Generation) -> Payload:
        said, calls = self.tooling.read(generation.text)
        message: Payload = {"role": "assistant", "content": said, "refusal": None}
        if calls:
            message |= {"content": said or None, "tool_calls": [_told(call) for call in calls]}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(generation, generation.token_ids),
            "finish_reason": "tool_calls" if calls else finish_reason(generation),
        }

    def _logprobs(
        self, source: Generation | Chunk, tokens: tuple[int, ...]
    ) -> dict[str, Any] | None:
        if not self.fields.logprobs:
            return None
        content = self.tokens.chat_logprobs(
            shown_tokens(tokens, self.ends), source.logprobs or (), source.top_logprobs or ()
        )
        return {"content": content, "refusal": None}

    async def parts(self, items: Items) -> AsyncIterator[Payload]:
        """The objects of a stream."""
        done: list[Generation] = []
        answered = 0
        texts = [ToolText(self.tooling) for _ in self.answers.members]
        for index in range(len(texts)):
            yield self._part(index, {"role": "assistant", "content": ""}, answered)
        async for index, item in items:
            if isinstance(item, Chunk):
                answered += len(item.tokens)
                text = texts[index].feed(item.text)
                if text or (self.fields.logprobs and shown_tokens(item.tokens, self.ends)):
                    logprobs = self._logprobs(item, item.tokens)
                    yield self._part(index, {"content": text}, answered, logprobs)
                continue
            done.append(item)
            rest, calls = texts[index].finish()
            if rest:
                yield self._part(index, {"content": rest}, answered)
            for number, call in enumerate(calls):
                delta = {"tool_calls": [{"index": number, **_told(call)}]}
                yield self._part(index, delta, answered)
            reason = "tool_calls" if calls else finish_reason(item)
            last = self._part(index, {}, answered, reason=reason)
            yield last | request_metrics(self.service, [self.answers.members[index]])
        if self.fields.with_usage:
            yield {**self._chunk_head, "choices": [], "usage": self._usage(done)}

    @property
    def _chunk_head(self) -> Payload:
        return {**self.head, "object": "chat.completion.chunk"}

    def _part(
        self,
        index: int,
        delta: Payload,
        answered: int,
        logprobs: Payload | None = None,
        reason: str | None = None,
    ) -> Payload:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        told: Payload = {**self._chunk_head, "choices": [choice]}
        if self.fields.with_usage:
            so_far = usage_so_far(self.prompt_tokens, answered)
            told["usage"] = so_far if self.fields.usage_always else None
        return told


def _told(call: Call) -> Payload:
    """A call as clients read it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


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
