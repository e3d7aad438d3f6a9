"""Calls are read from what models write, whole and as it comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.errors import InvalidInput
from paceline.server.tools import Function, NamedFunction, NamedTool, Tool, Tooling, ToolText

ADD = Tool(type="function", function=Function(name="add", parameters={"type": "object"}))
GET = Tool(type="function", function=Function(name="get_time"))
BOTH = Tooling((ADD, GET))

ANSWERS = [
    ("Hello.", "Hello.", []),
    ('{"not": "a call"}', '{"not": "a call"}', []),
    ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "", [("add", {"a": 1})]),
    ('Sure.\n<tool_call>{"name": "get_time"}</tool_call>', "Sure.", [("get_time", {})]),
    (
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n'
        '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
        "",
        [("add", {"a": 1}), ("get_time", {})],
    ),
    (
        '<tool_call>[{"name": "add", "arguments": {"a": "ü"}}]</tool_call>',
        "",
        [("add", {"a": "ü"})],
    ),
    ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 2}}]', "", [("add", {"a": 2})]),
    ('[{"name": "add", "arguments": {"a": 2}}]', "", [("add", {"a": 2})]),
    ('{"name": "add", "parameters": {"a": 3}}', "", [("add", {"a": 3})]),
    (
        '{"name": "add", "parameters": {}}; {"name": "get_time"}',
        "",
        [("add", {}), ("get_time", {})],
    ),
    ('{"name": "add", "arguments": "{\\"a\\": 4}"}', "", [("add", {"a": 4})]),
    ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None, []),
    ('<tool_call>{"name": "add", "argu', None, []),
    ("<tool_call>", None, []),
    ("[1, 2]", None, []),
    ("a < b and <tool", None, []),
    ("[" * 100_000, None, []),
]


@pytest.mark.parametrize(("text", "said", "calls"), ANSWERS, ids=lambda value: str(value)[:30])
def test_an_answer_is_taken_apart(text: str, said: str | None, calls: list[Any]) -> None:
    expected = text if said is None else said
    found, written = BOTH.read(text)
    assert found == expected
    assert [(call.name, json.loads(call.arguments)) for call in written] == calls
    assert len({call.id for call in written}) == len(calls)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize(("text", "said", "calls"), ANSWERS[:-1], ids=lambda v: str(v)[:30])
def test_a_stream_shows_what_the_whole_says(
    text: str, said: str | None, calls: list[Any], size: int
) -> None:
    held, shown = ToolText(BOTH), ""
    for start in range(0, len(text), size):
        shown += held.feed(text[start : start + size])
        assert "<tool_call>" not in shown
    rest, written = held.finish()
    assert shown + rest == (text if said is None else said)
    assert [(call.name, json.loads(call.arguments)) for call in written] == calls


def test_without_tools_nothing_is_held_back_or_read() -> None:
    held = ToolText(Tooling())
    text = '<tool_call>{"name": "add"}</tool_call> \n'
    assert held.feed(text) == text
    assert held.finish() == ("", [])


def test_one_call_alone_where_several_are_not_wanted() -> None:
    text = ANSWERS[4][0]
    assert [call.name for call in Tooling((ADD, GET), several=False).read(text)[1]] == ["add"]


def test_what_must_be_called_is_a_form() -> None:
    assert BOTH.form is None
    chosen = NamedTool(type="function", function=NamedFunction(name="add"))
    form = Tooling.of([ADD, GET], chosen, None).form
    assert form is not None
    assert form["json"]["properties"]["name"] == {"const": "add"}
    every = Tooling.of([ADD, GET], "required", None).form
    assert every is not None
    assert len(every["json"]["anyOf"]) == 2
    assert Tooling.of([ADD], "none", None) == Tooling()


def test_what_cannot_be_chosen_is_refused() -> None:
    other = NamedTool(type="function", function=NamedFunction(name="rm"))
    strict = Tool(type="function", function=Function(name="add", strict=True))
    for tools, choice in (([], "required"), ([ADD], other), ([ADD, ADD], None), ([strict], "auto")):
        with pytest.raises(InvalidInput):
            Tooling.of(tools, choice, None)  # type: ignore[arg-type]
    assert Tooling.of([strict], "required", None).must == (strict,)
