"""Records of arguments: named on both sides, laid out once."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest

from paceline.kernels.llvm.records import Float, Integer, Kind, Pointer, kinds, layout


class Mixed(NamedTuple):
    place: Pointer
    count: Integer
    scale: Float
    rest: Integer


class Wrong(NamedTuple):
    place: Pointer
    count: int


def test_fields_lie_eight_bytes_apart_in_their_order() -> None:
    assert list(kinds(Mixed).items()) == [
        ("place", Kind.POINTER),
        ("count", Kind.INTEGER),
        ("scale", Kind.FLOAT),
        ("rest", Kind.INTEGER),
    ]
    packed = layout(Mixed).pack(*Mixed(rest=-7, scale=0.1, count=-(2**62), place=2**63 + 5))
    assert len(packed) == 32
    assert struct.unpack("<Q", packed[:8]) == (2**63 + 5,)
    assert struct.unpack("<q", packed[8:16]) == (-(2**62),)
    assert struct.unpack("<f", packed[16:20]) == pytest.approx((0.1,))
    assert packed[20:24] == bytes(4)
    assert struct.unpack("<q", packed[24:]) == (-7,)


@pytest.mark.parametrize("wrong", [Mixed(place=1, count=2.5, scale=1.0, rest=0), (1, 2, 3.0)])
def test_what_does_not_fit_is_not_packed(wrong: tuple[object, ...]) -> None:
    with pytest.raises(struct.error):
        layout(Mixed).pack(*wrong)


def test_every_field_says_how_it_lies() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.count must be a Pointer, an Integer or a Float"):
        kinds(Wrong)
