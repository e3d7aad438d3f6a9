"""Options of a call: the table, what each takes, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.core.sampling import SamplingParams
from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput, UnknownName
from paceline.generate.option_table import TABLE
from paceline.generate.options import Options, checked, stop_token_ids

TARGET = TargetInfo("toy", 10)


def test_the_table_and_the_static_types_name_the_same_options() -> None:
    python = {name for name, option in TABLE.items() if "python" in option.doors}
    assert python == Options.__annotations__.keys()
    assert checked({}).keys() == python


def test_the_defaults_of_sampling_are_those_of_its_values() -> None:
    names = SamplingParams.__dataclass_fields__.keys()
    assert SamplingParams(**{name: TABLE[name].default for name in names}) == SamplingParams()


def test_the_command_line_spells_what_it_takes() -> None:
    for name, option in TABLE.items():
        assert ("command line" in option.doors) == bool(option.flags), name
        assert option.about.endswith("."), name


def test_an_unknown_option() -> None:
    with pytest.raises(UnknownName, match="unknown option 'max_token'; did you mean 'max_tokens'"):
        checked({"max_token": 3})


@pytest.mark.parametrize("value", [0, 1, "no", None])
@pytest.mark.parametrize("name", ["ignore_eos", "continue_final_message"])
def test_a_flag_is_true_or_false(name: str, value: Any) -> None:
    assert checked({name: True})[name] is True
    with pytest.raises(InvalidInput, match=f"{name} must be True or False"):
        checked({name: value})


@pytest.mark.parametrize("value", [5, None, [5], "text", len], ids=str)
def test_functions(value: Any) -> None:
    assert checked({"processors": [len, abs]})["processors"] == (len, abs)
    assert checked({})["processors"] == ()
    with pytest.raises(InvalidInput, match="processors must be a list of functions"):
        checked({"processors": value})


def test_whole_numbers_have_their_range() -> None:
    assert checked({"max_tokens": None})["max_tokens"] is None
    assert checked({})["max_tokens"] == 256
    for name in ("max_tokens", "min_tokens", "logprobs"):
        for value in (-1, 2.5, "3", True):
            with pytest.raises(InvalidInput, match=f"{name} must be"):
                checked({name: value})
    with pytest.raises(InvalidInput, match="min_tokens must be a whole number"):
        checked({"min_tokens": None})


def test_values_for_a_template_map_names_to_values() -> None:
    assert checked({"chat_template_kwargs": {"a": 1}})["chat_template_kwargs"] == {"a": 1}
    for value in (3, "a=1", {3: 4}):
        with pytest.raises(InvalidInput, match="chat_template_kwargs must map names to values"):
            checked({"chat_template_kwargs": value})


def test_stop_strings() -> None:
    for nothing in (None, ()):
        assert checked({"stop": nothing})["stop"] == []
    for one in ("ab", ["ab"]):
        assert checked({"stop": one})["stop"] == ["ab"]
    for value in (0, 5, False, b"ab", {"ab": 1}):
        with pytest.raises(InvalidInput, match="stop must be a text or a list of texts"):
            checked({"stop": value})
    for value in ("", [""], [5], ["ab", None]):
        with pytest.raises(InvalidInput, match="a stop string must be a text"):
            checked({"stop": value})


def test_stop_token_ids() -> None:
    assert stop_token_ids(None, TARGET) == frozenset()
    for value in ([3, 9], {3, 9}, torch.tensor([9, 3])):
        assert stop_token_ids(value, TARGET) == {3, 9}
    for value in (0, 5, "a", ["a"], [1.5]):
        with pytest.raises(InvalidInput, match="stop_token_ids must be token ids"):
            stop_token_ids(value, TARGET)
    for value in ([10], [-1]):
        with pytest.raises(InvalidInput, match="stop_token_ids take ids from 0 to 9"):
            stop_token_ids(value, TARGET)
