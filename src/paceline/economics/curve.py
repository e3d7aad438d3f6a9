"""Piecewise linear interpolation between a few measurements."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def interpolated(
    places: Sequence[float], values: Sequence[float], place: float, slope: float = 0.0
) -> float:
    """The value at `place`, by linear interpolation; before the first place, the first value.

    Args:
        places: ascending, at least one.
        values: the value at each place.
        place: the place at which to interpolate.
        slope: the slope of the line after the last place.

    Example:
        >>> [interpolated([1, 3], [10.0, 20.0], at, 2.0) for at in (0, 2, 3, 4)]
        [10.0, 15.0, 20.0, 22.0]
    """
    right = bisect_right(places, place)
    if right == 0:
        return values[0]
    if right == len(places):
        return values[-1] + slope * (place - places[-1])
    left = right - 1
    share = (place - places[left]) / (places[right] - places[left])
    return values[left] + share * (values[right] - values[left])
