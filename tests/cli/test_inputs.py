import io
import json

import pytest

from paceline.cli import inputs
from paceline.errors import InvalidInput


class Keyboard(io.StringIO):
    """Standard input that nobody has typed into."""

    def isatty(self):
        return True


@pytest.fixture
def standard_input(monkeypatch):
    def give(text):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    return give


@pytest.mark.parametrize(
    ("text", "prompt"),
    [("one\n", "one"), ("one\n\n", "one\n"), ("one\r\n", "one"), ("\n one", "\n one")],
)
def test_one_newline_at_the_end_of_standard_input_is_dropped(standard_input, text, prompt):
    standard_input(text)
    assert inputs.read_prompt(None, None, raw=True) == prompt


@pytest.mark.parametrize("text", ["", "\n"])
def test_empty_standard_input_is_an_empty_prompt(standard_input, text):
    standard_input(text)
    with pytest.raises(InvalidInput, match="the prompt is empty"):
        inputs.read_prompt(None, None, raw=False)


def test_nobody_waits_for_a_keyboard(monkeypatch):
    monkeypatch.setattr("sys.stdin", Keyboard())
    with pytest.raises(InvalidInput, match="there is no prompt; give --prompt"):
        inputs.read_prompt(None, None, raw=False)


def test_a_prompt_on_the_command_line_leaves_standard_input_alone(standard_input):
    standard_input("other")
    assert inputs.read_prompt(" one\n", None, raw=False) == " one\n"


MESSAGES = [{"role": "user", "content": "é"}]


@pytest.mark.parametrize("value", [MESSAGES, {"messages": MESSAGES, "model": "x"}])
def test_messages_come_from_a_file(tmp_path, value):
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    assert inputs.read_prompt(None, file, raw=False) == MESSAGES


@pytest.mark.parametrize("content", ["[1]", '"text"', "{}", "null", '{"messages": 1}'])
def test_json_that_is_no_messages_is_refused(tmp_path, content):
    file = tmp_path / "messages.json"
    file.write_text(content)
    with pytest.raises(InvalidInput, match="must hold a list of objects with role and content"):
        inputs.read_messages(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[{]", "is not JSON"), (b"\xff\xfe", "not text in UTF-8"), (None, "No such file")],
)
def test_a_file_of_messages_that_cannot_be_read_is_refused(tmp_path, content, message):
    file = tmp_path / "messages.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInput, match=f"^--messages: .*{message}"):
        inputs.read_messages(file)


def test_messages_need_the_template_that_raw_leaves_out(tmp_path):
    with pytest.raises(InvalidInput, match="--raw skips the chat template"):
        inputs.read_prompt(None, tmp_path / "messages.json", raw=True)


def test_a_folder_is_no_text(tmp_path):
    with pytest.raises(InvalidInput, match="--reference: cannot read"):
        inputs.read_text("--reference", tmp_path)


def test_settings_of_a_drafter(tmp_path):
    file = tmp_path / "reference.txt"
    file.write_text("die Straße\n", encoding="utf-8")
    found = inputs.drafter_settings([file], {"max_ngram": 4, "min_ngram": None}, file)
    assert found == {
        "max_ngram": 4,
        "references": ["die Straße\n"],
        "prediction": "die Straße\n",
    }


def test_settings_by_name():
    given = ["rate=0.5", "name=two words=2", "on=true", "list=[1]", "empty="]
    assert inputs.named_values("--drafter-option", given) == {
        "rate": 0.5,
        "name": "two words=2",
        "on": True,
        "list": [1],
        "empty": "",
    }


@pytest.mark.parametrize("item", ["name", "=1", ""])
def test_a_setting_needs_a_name_and_a_value(item):
    with pytest.raises(InvalidInput, match="takes NAME=VALUE"):
        inputs.named_values("--drafter-option", [item])
