"""Measures which of two kernels is faster on this machine."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

CLEARLY = 0.9
"""A kernel is clearly faster if it takes less than this share of the other's time."""

_ROUNDS = 15
"""On a busy machine a loop in several threads waits for a core in most rounds, a hundred times as
long as it takes, and the shortest of five rounds said anything."""


def clearly_faster(
    candidate: Callable[[], object], other: Callable[[], object], *, rounds: int = _ROUNDS
) -> bool:
    """Whether `candidate` takes less than `CLEARLY` of the time of `other`.

    The two run alternately, after one run of each to warm up, so that noise affects both; the
    shortest times are compared. The margin keeps noise from deciding between equals.
    """
    times = [(_seconds(candidate), _seconds(other)) for _ in range(rounds + 1)][1:]
    return min(own for own, _ in times) < CLEARLY * min(others for _, others in times)


def _seconds(run: Callable[[], object]) -> float:
    with torch.inference_mode():
        start = perf_counter()
        run()
        return perf_counter() - start
