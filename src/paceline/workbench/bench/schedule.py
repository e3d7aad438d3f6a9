"""The order of the runs: all methods on each prompt in turn, so that noise affects all equally."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Step(NamedTuple):
    """One run: `method` 0 is plain decoding."""

    item: int
    method: int


def schedule(num_items: int, num_methods: int, repeats: int) -> Iterator[Step]:
    """Every run, in order.

    On each prompt, `repeats` times, every method runs once and plain decoding twice, half a cycle
    apart: the ratio of the two differs from 1 only by noise, which measures the noise. The cycle is
    rotated each time, so that no method always comes first or after the same other one.

    Example:
        >>> [step.method for step in schedule(2, 3, 1)]
        [0, 1, 0, 2, 1, 0, 2, 0]
    """
    others = list(range(1, num_methods))
    half = (len(others) + 1) // 2
    cycle = [0, *others[:half], 0, *others[half:]]
    for item in range(num_items):
        for repeat in range(repeats):
            shift = (item * repeats + repeat) % len(cycle)
            for method in cycle[shift:] + cycle[:shift]:
                yield Step(item, method)


def num_steps(num_items: int, num_methods: int, repeats: int) -> int:
    """The number of runs of `schedule`."""
    return num_items * repeats * (num_methods + 1)
