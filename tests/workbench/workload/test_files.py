"""Every format is read as documented; every malformed line is named."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidInput
from paceline.workbench.workload import (
    Item,
    read_items,
    read_records,
    read_texts,
    records,
    select,
    to_json,
)

USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi"}


def lines(folder: Path, *values: Any, name: str = "prompts.jsonl") -> Path:
    path = folder / name
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_the_three_forms_of_a_prompt(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["One", "Two"], "reference": ["x"]},
        "",
        {"id": "b", "prompt": "Three", "answer": "Four"},
        {"messages": [USER, ANSWER]},
    )
    first, second, third = read_items(path)
    assert (first.id, first.prompt, first.category) == ("81", "One", "writing")
    assert first.later_turns == ("Two",)
    assert (second.id, second.prompt, second.answer) == ("b", "Three", "Four")
    assert second.category == "all"
    assert (third.id, third.prompt, third.answer) == ("4", (USER,), "Hi")
    assert third.source == f"{path}, line 4"


def test_a_prompt_may_bring_what_drafters_take(tmp_path: Path) -> None:
    given = {"prediction": "old", "references": ["x", "y"]}
    openai = {"prediction": {"type": "content", "content": [{"type": "text", "text": "old"}]}}
    path = lines(tmp_path, {"prompt": "a", **given}, {"prompt": "b", **openai}, {"prompt": "c"})
    first, second, third = read_items(path)
    assert first.drafting == given
    assert second.drafting == {"prediction": "old"}
    assert third.drafting == {}
    assert to_json(first) == {"id": "1", "category": "all", "prompt": "a", **given}


def test_plain_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"{not json\r\n\n  two \n")
    assert [(item.id, item.prompt) for item in read_items(path)] == [
        ("1", "{not json"),
        ("3", "  two "),
    ]


@pytest.mark.parametrize(
    ("text", "prompts"), [('{"prompt": "a"}\n{"prompt": "b"}', ["a", "b"]), ("a\nb\n", ["a", "b"])]
)
def test_standard_input_is_told_apart_by_its_first_character(
    text: str, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert [item.prompt for item in read_items("-")] == prompts


def test_parts_of_a_message_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (item,) = read_items(lines(tmp_path, {"messages": [{"role": "user", "content": parts}]}))
    assert item.prompt == ({"role": "user", "content": "ab"},)


def test_line_separators_within_a_text_end_no_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\u2028b"}', encoding="utf-8")
    assert [item.prompt for item in read_items(path)] == ["a\u2028b"]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "expected one JSON object per line"),
        ("[1]", "expected a JSON object"),
        ("[" * 100_000, "expected one JSON object per line"),
        ({"prompt": "a", "prediction": 3}, "prediction must be a text"),
        ({"prompt": "a", "references": "b"}, "references must be a list"),
        ({"prompt": "a", "references": [1]}, "references must be a list of texts"),
        ({"question": "x"}, "exactly one of turns, prompt or messages in the object; it has only"),
        ({"prompt": "x", "turns": ["x"]}, "it has turns and prompt"),
        ({"prompt": 3}, "prompt must be a text; it is 3"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"turns": []}, "turns must be a list with at least one entry"),
        ({"turns": [1]}, "turns must be a list of texts"),
        ({"turns": [""]}, "the prompt is empty"),
        ({"messages": "x"}, "messages must be a list"),
        ({"messages": [{"role": "user"}]}, "every message needs a role and a content"),
        ({"messages": ["x"]}, "every message needs a role and a content"),
        ({"messages": [ANSWER]}, "messages need a prompt before"),
        ({"messages": [USER, ANSWER], "answer": "x"}, "the answer is given twice"),
        ({"prompt": "x", "category": 3}, "category must be a text"),
        ({"prompt": "x", "answer_token_ids": [1, -2]}, "answer_token_ids must be a list"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens must be a whole number above 0"),
        ({"prompt": "x", "answer": []}, "answer must be a text"),
        ({"prompt": "x", "id": "first"}, "the id 'first' is already used on line 1"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: Any, part: str) -> None:
    path = lines(tmp_path, {"prompt": "fine", "id": "first"}, line)
    with pytest.raises(InvalidInput) as caught:
        read_items(path)
    assert f"{path}, line 2: " in str(caught.value)
    assert part in str(caught.value)


def test_files_without_prompts_and_files_that_are_none(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.txt", "c"):
        (tmp_path / name).write_text("\n \n")
        with pytest.raises(InvalidInput, match="has no prompt"):
            read_items(tmp_path / name)
    with pytest.raises(InvalidInput, match=r"cannot read .*: No such file"):
        read_items(tmp_path / "none.jsonl")
    with pytest.raises(InvalidInput, match=r"cannot read .*directory"):
        read_items(tmp_path)
    (tmp_path / "d.jsonl").write_bytes(b'{"prompt": "x"}\n\xff')
    with pytest.raises(InvalidInput, match="line 2: this is not text in UTF-8"):
        read_items(tmp_path / "d.jsonl")


def test_each_answer_of_a_chat_is_a_record(tmp_path: Path) -> None:
    again = {"role": "user", "content": "Again"}
    path = lines(
        tmp_path,
        {"id": "chat", "messages": [USER, ANSWER, again, ANSWER, again]},
        {"id": "pair", "prompt": "a", "answer": "b"},
        {"id": "open", "prompt": "a"},
    )
    found = read_records(path)
    assert [item.id for item in found] == ["chat.1", "chat.2", "pair"]
    assert found[0].prompt == (USER,)
    assert found[1].prompt == (USER, ANSWER, again)
    assert [item.answer for item in found] == ["Hi", "Hi", "b"]


def test_a_file_without_answers_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no recorded answer"):
        read_records(lines(tmp_path, {"prompt": "a"}))


def test_the_texts_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a.py").write_text("x = 1\n")
    (tmp_path / "b.txt").write_text("text")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "empty").write_text("\n")
    found = read_records(tmp_path)
    assert [(item.id, item.category, item.answer) for item in found] == [
        ("b.txt", "all", "text"),
        ("code/a.py", "code", "x = 1\n"),
    ]
    with pytest.raises(InvalidInput, match="has no text"):
        read_texts(tmp_path / "none")


def test_a_selection_takes_the_categories_in_turn() -> None:
    items = [Item(str(n), "x", name) for n, name in enumerate("aabcba")]
    assert [item.id for item in select(items)] == ["0", "2", "3", "1", "4", "5"]
    assert [item.id for item in select(items, per_category=1)] == ["0", "2", "3"]
    assert [item.id for item in select(items, categories=["c", "a"], limit=2)] == ["0", "3"]
    with pytest.raises(InvalidInput, match="no prompt has the category 'd'; there are a, b, c"):
        select(items, categories=["d"])


def test_a_text_prompt_becomes_a_message_where_there_is_a_template() -> None:
    item = Item("1", "Hello")
    assert item.as_prompt(chat=True) == [USER]
    assert item.as_prompt(chat=False) == "Hello"
    assert Item("1", (USER,)).as_prompt(chat=False) == [USER]
    assert list(records([item])) == []


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    items = [
        Item("a", "Hello", "x", answer="Hi", answer_tokens=(1, 2), max_tokens=8),
        Item("b", (USER,), answer="Hi"),
    ]
    found = read_records(lines(tmp_path, *map(to_json, items)))
    assert list(map(to_json, found)) == list(map(to_json, items))
