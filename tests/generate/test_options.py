"""Options of a call: what each takes, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput
from paceline.generate import options

TARGET = TargetInfo("toy", 10)


@pytest.mark.parametrize("value", [0, 1, "no", None])
def test_a_flag_is_true_or_false(value: Any) -> None:
    assert options.flag("ignore_eos", True) is True
    with pytest.raises(InvalidInput, match="ignore_eos must be True or False"):
        options.flag("ignore_eos", value)


@pytest.mark.parametrize("value", [5, None, [5], "text", len], ids=str)
def test_functions(value: Any) -> None:
    assert options.functions("processors", [len, abs]) == (len, abs)
    assert options.functions("processors", ()) == ()
    with pytest.raises(InvalidInput, match="processors must be a list of functions"):
        options.functions("processors", value)


def test_stop_strings() -> None:
    assert options.stop_strings(None) == options.stop_strings(()) == []
    assert options.stop_strings("ab") == options.stop_strings(["ab"]) == ["ab"]
    for value in (0, 5, False, b"ab", {"ab": 1}):
        with pytest.raises(InvalidInput, match="stop must be a text or a list of texts"):
            options.stop_strings(value)
    for value in ("", [""], [5], ["ab", None]):
        with pytest.raises(InvalidInput, match="a stop string must be a text"):
            options.stop_strings(value)


def test_stop_token_ids() -> None:
    assert options.stop_token_ids(None, TARGET) == frozenset()
    for value in ([3, 9], {3, 9}, torch.tensor([9, 3])):
        assert options.stop_token_ids(value, TARGET) == {3, 9}
    for value in (0, 5, "a", ["a"], [1.5]):
        with pytest.raises(InvalidInput, match="stop_token_ids must be token ids"):
            options.stop_token_ids(value, TARGET)
    for value in ([10], [-1]):
        with pytest.raises(InvalidInput, match="stop_token_ids take ids from 0 to 9"):
            options.stop_token_ids(value, TARGET)
