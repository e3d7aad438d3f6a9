"""The messages of a chat: as clients send them, and as a chat template reads them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Literal

from pydantic import Field, model_validator

from paceline.server.fields import Fields


class Part(Fields):
    """A part of a content: text, since the models are models of text."""

    type: Literal["text"]
    text: str


class FunctionCall(Fields):
    """The function that a model called, and its arguments in JSON."""

    name: str
    arguments: str


class ToolCall(Fields):
    """A call that the assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None

    def for_template(self) -> dict[str, Any]:
        """As templates read it: most write the arguments as JSON themselves."""
        arguments: Any = self.function.arguments
        with suppress(ValueError, RecursionError):  # what a model wrote need not be JSON
            arguments = json.loads(arguments)
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


class Message(Fields):
    """A message. Fields that only other kinds of models fill must be null."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=128)
    tool_call_id: str | None = None
    refusal: None = None
    annotations: list[Any] | None = Field(None, max_length=0)
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"a message of role {self.role!r} needs content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are of the assistant; the role is {self.role!r}")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("tool_call_id names the call that a message of role 'tool' answers")
        return self

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        role = "system" if self.role == "developer" else self.role
        found: dict[str, Any] = {"role": role, "content": self.content}
        if isinstance(self.content, list):
            found["content"] = text_of_parts(self.content)
        if self.tool_calls:
            found["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            found["name"] = self.name
        return found


def text_of_parts(content: str | list[Part]) -> str:
    r"""The text of a content.

    >>> text_of_parts([Part(type="text", text="one"), Part(type="text", text="two")])
    'one\ntwo'
    """
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
