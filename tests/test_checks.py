"""What callers give is taken as it is or refused in one line that names it."""

import math
from dataclasses import dataclass

import pytest

from paceline.checks import require_finite, require_int, token_id_set
from paceline.errors import InvalidInput


@dataclass(frozen=True)
class Owner:
    share: object = None


@pytest.mark.parametrize("value", [0, 3, 7])
def test_a_whole_number_in_its_range_is_returned(value):
    assert require_int("k", value, low=0, high=7) == value


@pytest.mark.parametrize("value", [-1, 8, True, 1.0, "3", None, math.nan])
def test_any_other_count_is_refused_by_name(value):
    with pytest.raises(InvalidInput, match=r"^k must be .*at least 0 and at most 7; it is"):
        require_int("k", value, low=0, high=7)


@pytest.mark.parametrize("value", [0, 1, 0.25])
def test_a_number_in_its_range_is_stored_as_a_float(value):
    owner = Owner()
    require_finite(owner, "share", value, low=0.0, high=1.0)
    assert type(owner.share) is float
    assert owner.share == value


@pytest.mark.parametrize(
    "value", [-0.1, 1.1, math.nan, math.inf, 10**400, True, "0.5", b"1", None, [0.5]]
)
def test_any_other_number_is_refused_by_name(value):
    owner = Owner()
    with pytest.raises(InvalidInput, match=r"^share must be "):
        require_finite(owner, "share", value, low=0.0, high=1.0)
    assert owner.share is None


def test_token_ids_become_a_set_of_plain_integers():
    assert token_id_set("banned", [3, 1, 3]) == {1, 3}
    with pytest.raises(InvalidInput, match=r"^banned must be token ids; it is "):
        token_id_set("banned", ["a"])
