"""A line from point to point."""

import pytest

from paceline.economics.curve import interpolated


@pytest.mark.parametrize(
    ("place", "value"), [(0, 1.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 3.0), (7, 3.0), (9, 4.0)]
)
def test_between_its_neighbours_flat_before_and_sloping_behind(place, value):
    assert interpolated([1, 3, 7], [1.0, 3.0, 3.0], place, slope=0.5) == value


def test_one_point():
    assert [interpolated([2], [5.0], place, 1.0) for place in (1, 2, 4)] == [5.0, 5.0, 7.0]
