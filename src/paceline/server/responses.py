"""`POST /v1/responses`, without memory: each request holds the whole conversation."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field, ValidationError
from starlette.responses import JSONResponse, Response

from paceline.errors import InvalidInput
from paceline.generate.async_engine import Answers
from paceline.generate.results import Chunk, Generation
from paceline.server.answering import Items, Payload, data_event, streamed, whole
from paceline.server.fields import INT64, Fields, Sampled, Speculative
from paceline.server.forms import (
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    TextFormat,
    form_of,
)
from paceline.server.messages import FunctionCall, Message, Part, ToolCall, text_of_parts
from paceline.server.results import usage
from paceline.server.service import Service, new_id
from paceline.server.tools import Call, Function, NamedFunction, NamedTool, Tool, Tooling, ToolText
from paceline.text import ChatOptions


class FlatSchemaFormat(Fields):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextField(Fields):
    """The form of the text."""

    format: TextFormat | JsonObjectFormat | FlatSchemaFormat | None = Field(
        None, discriminator="type"
    )
    verbosity: Literal["medium"] | None = None


class Reasoning(Fields):
    """How much a model should think; these models think as their template says."""

    effort: Literal["none"] | None = None
    summary: Literal["auto"] | None = None


class ResponsesRequest(Fields):
    """The fields of a request for a response."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    model: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stream: bool | None = None
    text: TextField | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    store: Literal[False] | None = None
    previous_response_id: None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    top_logprobs: Literal[0] | None = None
    speculative: bool | Speculative | None = None
    # Labels for whoever runs a server; nothing is kept of them here.
    metadata: dict[str, str] | None = None
    client_metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def messages(self) -> list[dict[str, Any]]:
        """The conversation, as chat templates read it.

        Raises:
            InvalidInput: an item cannot be read.
        """
        found = [] if self.instructions is None else [_message("system", self.instructions)]
        if isinstance(self.input, str):
            return [*found, _message("user", self.input)]
        for number, item in enumerate(self.input):
            _append(found, item, f"input.{number}")
        if not found:
            raise InvalidInput("input is empty; give at least one message")
        return found

    @property
    def tooling(self) -> Tooling:
        """The tools that may be called; kinds other than functions, which run elsewhere, are left.

        Raises:
            InvalidInput: a function cannot be read.
        """
        flat = [tool for tool in self.tools or () if tool.get("type") == "function"]
        functions = [
            _read(Function, {k: v for k, v in tool.items() if k != "type"}, "tools")
            for tool in flat
        ]
        # Clients set strict without being asked; here it holds where a call is required.
        tools = [
            Tool(type="function", function=function.model_copy(update={"strict": None}))
            for function in functions
        ]
        choice: Any = self.tool_choice
        if isinstance(choice, dict):
            name = NamedFunction(name=str(choice.get("name")))
            choice = NamedTool(type="function", function=name)
        return Tooling.of(tools, choice, self.parallel_tool_calls)

    def options(self, service: Service) -> dict[str, Any]:
        """The options of `generate`."""
        shared = ("temperature", "top_p", "seed", "speculative")
        sampled = Sampled.model_validate({name: getattr(self, name) for name in shared})
        given: Any = None if self.text is None else self.text.format
        if isinstance(given, FlatSchemaFormat):
            schema = JsonSchema(name=given.name, schema=given.schema_, strict=given.strict)
            given = JsonSchemaFormat(type="json_schema", json_schema=schema)
        form, called = form_of(given, None), self.tooling.form
        if form is not None and called is not None:
            raise InvalidInput("tool_choice asks for a call, and text.format for another form")
        return {
            **sampled.drafting(service.settings.options),
            **sampled.sampling(),
            "max_tokens": service.max_tokens(self.max_output_tokens),
            "structured_outputs": called or form,
        }


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _append(messages: list[dict[str, Any]], item: dict[str, Any], place: str) -> None:
    """Add an item of the input to the messages; calls of one turn are one message."""
    kind = item.get("type", "message")
    if kind == "message":
        role, content = item.get("role"), item.get("content")
        if isinstance(content, list):
            content = [_text_part(part, place) for part in content]
        message = _read(Message, {"role": role, "content": content}, place)
        messages.append(message.for_template())
    elif kind == "function_call":
        function = FunctionCall(name=str(item.get("name")), arguments=str(item.get("arguments")))
        call = ToolCall(id=str(item.get("call_id")), function=function).for_template()
        if messages and messages[-1].get("tool_calls"):
            messages[-1]["tool_calls"].append(call)
        else:
            messages.append({**_message("assistant", ""), "tool_calls": [call]})
    elif kind == "function_call_output":
        output = item.get("output")
        if isinstance(output, list):
            output = text_of_parts([_text_part(part, place) for part in output])
        given = {"role": "tool", "content": output, "tool_call_id": str(item.get("call_id"))}
        messages.append(_read(Message, given, place).for_template())
    elif kind != "reasoning":  # what a model thought is not shown to it again
        raise InvalidInput(
            f"{place} is of type {kind!r:.40}; it may be message, function_call, "
            "function_call_output or reasoning"
        )


def _text_part(part: Any, place: str) -> Part:
    if not isinstance(part, dict) or part.get("type") not in ("input_text", "output_text", "text"):
        raise InvalidInput(f"{place}: only parts of text can be read; one is {part!r:.60}")
    found: Part = _read(Part, {"type": "text", "text": part.get("text")}, place)
    return found


def _read(kind: Any, value: dict[str, Any], place: str) -> Any:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"{place}: {where or kind.__name__}: {first['msg']}") from error


class _Response:
    """One request on its way."""

    def __init__(self, service: Service, fields: ResponsesRequest, answers: Answers) -> None:
        self.fields, self.tooling = fields, fields.tooling
        (self.member,) = answers.members
        self.prompt_tokens = len(self.member.job.request.prompt)
        self.message_id = new_id("msg")
        self.head: Payload = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": service.settings.name,
            "error": None,
            "incomplete_details": None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": fields.metadata or {},
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if fields.temperature is None else fields.temperature,
            "top_p": 1.0 if fields.top_p is None else fields.top_p,
            "tool_choice": fields.tool_choice or "auto",
            "tools": fields.tools or [],
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
        }
        if fields.text is not None and fields.text.format is not None:
            self.head["text"] = {"format": fields.text.format.model_dump(by_alias=True)}

    def begun(self) -> Payload:
        """The response before there is anything in it."""
        return {**self.head, "status": "in_progress", "output": [], "usage": None}

    def whole(self, generation: Generation) -> Payload:
        """The response."""
        said, calls = self.tooling.read(generation.text)
        items = [self._said(said)] if said or not calls else []
        return self.ended(generation, [*items, *map(_called, calls)])

    def ended(self, generation: Generation, items: list[Payload]) -> Payload:
        """The response with what is in it."""
        cached = self.member.num_cached_tokens
        counts = usage(self.prompt_tokens, [generation], cached=cached)
        told = {
            **self.head,
            "status": "completed",
            "output": items,
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
        }
        if generation.finish_reason != "stop":
            why = {"reason": "max_output_tokens"}
            told |= {"status": "incomplete", "incomplete_details": why}
        return told

    def _said(self, text: str | None, status: str = "completed") -> Payload:
        content = [] if text is None else [_part(text)]
        told = {"id": self.message_id, "type": "message", "role": "assistant"}
        return {**told, "status": status, "content": content}

    async def events(self, items: Items) -> AsyncIterator[Payload]:
        """The events of a stream."""
        count = 0

        def event(kind: str, **more: Any) -> Payload:
            nonlocal count
            count += 1
            return {"type": kind, "sequence_number": count - 1, **more}

        yield event("response.created", response=self.begun())
        yield event("response.in_progress", response=self.begun())
        held, said = ToolText(self.tooling), ""
        at = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        done: list[Payload] = []
        async for _, item in items:
            calls: list[Call] = []
            if isinstance(item, Chunk):
                text, ends = held.feed(item.text), False
            else:
                (text, calls), ends = held.finish(), True
            if not said and (text or (ends and not calls)):
                opened = self._said(None, "in_progress")
                yield event("response.output_item.added", output_index=0, item=opened)
                yield event("response.content_part.added", **at, part=_part(""))
            if text:
                said += text
                yield event("response.output_text.delta", **at, delta=text, logprobs=[])
            if not isinstance(item, Generation):
                continue
            if said or not calls:
                done.append(self._said(said))
                yield event("response.output_text.done", **at, text=said, logprobs=[])
                yield event("response.content_part.done", **at, part=_part(said))
                yield event("response.output_item.done", output_index=0, item=done[0])
            for call in map(_called, calls):
                place = {"output_index": len(done)}
                arguments, name = call["arguments"], call["name"]
                empty = {**call, "status": "in_progress", "arguments": ""}
                yield event("response.output_item.added", **place, item=empty)
                of = {**place, "item_id": call["id"]}
                yield event("response.function_call_arguments.delta", **of, delta=arguments)
                yield event(
                    "response.function_call_arguments.done", **of, arguments=arguments, name=name
                )
                yield event("response.output_item.done", **place, item=call)
                done.append(call)
            response = self.ended(item, done)
            yield event(f"response.{response['status']}", response=response)


def _part(text: str) -> Payload:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _called(call: Call) -> Payload:
    return {
        "id": new_id("fc"),
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def _event(payload: Payload) -> bytes:
    """A server-sent event with its type as its name."""
    kind = payload.get("type", "error")
    return f"event: {kind}\n".encode() + data_event(payload)


def routes(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/responses", response_model=None)
    async def respond(fields: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation."""
        service.check_model(fields.model)
        try:
            options, messages = fields.options(service), fields.messages()
            tools = [tool.for_template() for tool in fields.tooling.tools] or None
        except InvalidInput as error:
            raise service.plain(error) from error
        answers = await service.submit([messages], 1, options, ChatOptions(tools))
        response = _Response(service, fields, answers)
        if fields.stream:
            return await streamed(service, request, answers, response.events, event=_event, end=b"")
        return JSONResponse(response.whole((await whole(service, request, answers))[0]))

    return router
