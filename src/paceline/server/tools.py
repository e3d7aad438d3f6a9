"""Tools that a model may call: shown to it by its own chat template, its calls read from its text.

Models write calls in a few ways. Which is a model's own follows from its template:

- between `<tool_call>` and `</tool_call>`, an object or a list of objects with `name` and
  `arguments` (Hermes, Qwen, SmolLM2);
- after `[TOOL_CALLS]`, a list of such objects (Mistral);
- as the whole answer, such an object, or several separated by semicolons, with `arguments` or
  `parameters` (Llama).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from paceline.errors import InvalidInput
from paceline.server.fields import Fields

BEGIN, END = "<tool_call>", "</tool_call>"
_LIST = "[TOOL_CALLS]"


class Function(Fields):
    """A function that a model may call."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        told = {"name": self.function.name, "description": self.function.description or ""}
        parameters = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": {**told, "parameters": parameters}}


class NamedFunction(Fields):
    """The name of a function."""

    name: str


class NamedTool(Fields):
    """A tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model wrote.

    Args:
        name: of the function.
        arguments: in JSON.
        id: by which the result will name it.
    """

    name: str
    arguments: str
    id: str


@dataclass(frozen=True, slots=True)
class Tooling:
    """The tools of one request.

    Args:
        tools: those that the model is shown; none for requests without.
        must: the tools of which one must be called; none where the model may say something else.
        several: whether one answer may call several.
    """

    tools: tuple[Tool, ...] = ()
    must: tuple[Tool, ...] = ()
    several: bool = True

    @classmethod
    def of(
        cls, tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool | None
    ) -> Tooling:
        """The tools of a request.

        Raises:
            InvalidInput: the choice needs tools that there are not, or a schema cannot be kept.
        """
        given = tuple(tools or ())
        names = [tool.function.name for tool in given]
        if len(set(names)) < len(names):
            raise InvalidInput("tools must have different names")
        if not given and choice not in (None, "none", "auto"):
            raise InvalidInput("tool_choice asks for a call, and there are no tools")
        if choice == "none":
            return cls()
        must = given if choice == "required" else ()
        if isinstance(choice, NamedTool):
            must = tuple(tool for tool in given if tool.function.name == choice.function.name)
            if not must:
                raise InvalidInput(
                    f"tool_choice names {choice.function.name!r}, which is none of the tools"
                )
        if not must and any(tool.function.strict for tool in given):
            raise InvalidInput(
                "strict holds the arguments to their schema where a call is required; set "
                "tool_choice, or leave strict out"
            )
        return cls(given, must, parallel is not False)

    @property
    def form(self) -> dict[str, Any] | None:
        """The form of an answer that must call a tool, as `generate` takes it."""
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    "arguments": tool.function.parameters or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in self.must
        ]
        if not calls:
            return None
        return {"json": calls[0] if len(calls) == 1 else {"anyOf": calls}}

    def read(self, text: str) -> tuple[str, list[Call]]:
        """An answer taken apart: what it says, and what it calls.

        A call of a tool that there is not, or in no form that is known, stays text.

        >>> tool = Tool(type="function", function=Function(name="add"))
        >>> said, calls = Tooling((tool,)).read('Yes. <tool_call>{"name": "add"}</tool_call>')
        >>> said, [(call.name, call.arguments) for call in calls]
        ('Yes.', [('add', '{}')])
        """
        if not self.tools:
            return text, []
        said, written = _parted(text)
        found = [call for part in written for call in _calls(part)]
        names = {tool.function.name for tool in self.tools}
        if not found or not all(call is not None and call.name in names for call in found):
            return text, []
        calls = [call for call in found if call is not None]
        return said, calls if self.several else calls[:1]

    def may_call(self, text: str) -> int | None:
        """Where in a text that is not finished a call may begin; None if nowhere.

        >>> tool = Tool(type="function", function=Function(name="add"))
        >>> Tooling((tool,)).may_call("Yes. <tool_"), Tooling((tool,)).may_call("Yes. No")
        (5, None)
        """
        if not self.tools:
            return None
        start = len(text) - len(text.lstrip())
        if text[start : start + 1] in ("", "{", "[", "<"):
            return 0
        for mark in (BEGIN, _LIST):
            if (place := text.find(mark)) >= 0:
                return place
            for length in range(min(len(mark) - 1, len(text)), 0, -1):
                if text.endswith(mark[:length]):
                    return len(text) - length
        return None


def _parted(text: str) -> tuple[str, list[str]]:
    """What is said before the calls, and the text of each call."""
    if BEGIN in text:
        said, *parts = text.split(BEGIN)
        return said.strip(), [part.partition(END)[0] for part in parts]
    if _LIST in text:
        said, _, rest = text.partition(_LIST)
        return said.strip(), [rest]
    return "", [text.strip().removeprefix("<|python_tag|>")]


def _calls(written: str) -> list[Call | None]:
    """The calls in a text; None for one that cannot be read."""
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        try:
            value = [json.loads(part) for part in written.split(";")]
        except (ValueError, RecursionError):
            return [None]
    return [_call(item) for item in (value if isinstance(value, list) else [value])]


def _call(value: Any) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    written = json.dumps(arguments, ensure_ascii=False)
    if isinstance(arguments, str):  # some models write the arguments as JSON within JSON
        written = arguments
    return Call(value["name"], written, f"call_{secrets.token_hex(12)}")


class ToolText:
    """The text of an answer as it comes, held back from where a call may begin.

    Args:
        tooling: the tools of the request.
    """

    def __init__(self, tooling: Tooling) -> None:
        self._tooling = tooling
        self._text = ""
        self._shown = 0

    def feed(self, piece: str) -> str:
        """Take in text; returns what is safe to show."""
        self._text += piece
        place = self._tooling.may_call(self._text)
        # What stands before a call loses the space at its end, so that is held back too.
        end = len(self._text) if place is None else place
        if self._tooling.tools:
            end = min(end, len(self._text[:end].rstrip()))
        ready, self._shown = self._text[self._shown : end], max(self._shown, end)
        return ready

    def finish(self) -> tuple[str, list[Call]]:
        """What is left to show, and the calls."""
        said, calls = self._tooling.read(self._text)
        return ("" if calls else said[self._shown :]), calls
