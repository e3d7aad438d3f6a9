"""Successive elimination: all methods answer the same prompts, and the slower ones are dropped.

In each block all remaining methods answer one prompt, so that neither an easy prompt nor a slow
moment of the machine favours one. After a block, methods are dropped that are slower than the
leader by more than noise and differences between prompts explain. The time is split into phases,
and at the end of each phase the slower half is dropped, whatever the noise: with a fixed budget,
this finds the best of n with the fewest errors (sequential halving; Karnin, Koren and Somekh 2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
"""The error rate of all eliminations after one block together, without the forced ones."""

FIRST_BLOCKS = 2
"""The number of prompts that all methods answer before any is dropped."""


@dataclass
class Race:
    """The state of the race.

    Args:
        scores: for each method, the logarithm of its speed in each block that it ran in.
        active: the remaining methods.
        left_after: the number of blocks after which each of the others was dropped.
    """

    scores: dict[int, list[float]]
    active: list[int]
    left_after: dict[int, int] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        """The number of blocks that every remaining method ran in."""
        return min(len(self.scores[arm]) for arm in self.active)

    @property
    def ranked(self) -> list[int]:
        """The remaining methods, the fastest first."""
        return sorted(self.active, key=lambda arm: -self._mean(arm, self.num_blocks))

    @property
    def leader(self) -> int:
        """The fastest method so far."""
        return self.ranked[0]

    def deficit(self, arm: int) -> float:
        """How much slower a method is than the leader, in logarithms, on the prompts of both."""
        blocks = min(len(self.scores[arm]), len(self.scores[self.leader]))
        return self._mean(self.leader, blocks) - self._mean(arm, blocks)

    def margin(self) -> float:
        """How much slower than the leader a method has to be for chance not to explain it.

        It follows from the residuals of the scores after each method's mean and each block's mean
        are subtracted: the noise, and how differently prompts suit the methods. It holds for all
        pairs together (Bonferroni), because the leader is the best of many.
        """
        count, blocks = len(self.active), self.num_blocks
        if count < 2 or blocks < 2:
            return math.inf
        table = np.array([self.scores[arm][:blocks] for arm in self.active])
        rest = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
        freedom = (count - 1) * (blocks - 1)
        deviation = math.sqrt(float((rest**2).sum()) / freedom)
        edge = 1 - (1 - CONFIDENCE) / (count * (count - 1))
        return float(stats.t.ppf(edge, freedom)) * deviation * math.sqrt(2 / blocks)

    def drop_slow(self) -> None:
        """Drop the methods that are slower than the leader beyond chance."""
        if self.num_blocks >= FIRST_BLOCKS:
            margin = self.margin()
            self._keep([arm for arm in self.active if self.deficit(arm) <= margin])

    def halve(self, most: int) -> None:
        """Keep only the fastest `most`."""
        self._keep(self.ranked[:most])

    def _keep(self, kept: Sequence[int]) -> None:
        for arm in self.active:
            if arm not in kept:
                self.left_after[arm] = len(self.scores[arm])
        self.active = [arm for arm in self.active if arm in kept]

    def _mean(self, arm: int, blocks: int) -> float:
        return math.fsum(self.scores[arm][:blocks]) / blocks if blocks else -math.inf


def race(
    num_arms: int,
    run_block: Callable[[Sequence[int], int, int], Sequence[float] | None],
    clock: Callable[[], float],
    deadline: float,
) -> Race:
    """Race until one method is left or the time is up.

    Args:
        num_arms: the number of methods.
        run_block: lets the given methods answer one prompt; it is called with them, the number of
            the block and that of the phase, both from 0. Returns the logarithm of the speed of
            each, or None if it was interrupted before all had run.
        clock: gives the time in seconds.
        deadline: in the time of `clock`. Every method runs at least once.
    """
    found = Race({arm: [] for arm in range(num_arms)}, list(range(num_arms)))
    sizes = _sizes(num_arms)
    block, seconds_each = 0, 0.0
    for phase, most in enumerate(sizes):
        end = clock() + (deadline - clock()) / (len(sizes) - phase)
        while len(found.active) > most:
            start = clock()
            seen = found.num_blocks >= FIRST_BLOCKS or (block and start >= deadline)
            # Do not start a block if more than half of it would be after the end of its phase.
            if seen and start + seconds_each * len(found.active) / 2 > end:
                break
            scores = run_block(tuple(found.active), block, phase)
            if scores is None:
                return found
            block, seconds_each = block + 1, (clock() - start) / len(found.active)
            for arm, score in zip(found.active, scores, strict=True):
                found.scores[arm].append(score)
            found.drop_slow()
        found.halve(most)
    return found


def _sizes(num_arms: int) -> list[int]:
    """The number of methods to keep after each phase.

    >>> _sizes(19)
    [10, 5, 3, 2, 1]
    """
    sizes = []
    while num_arms > 1:
        num_arms = (num_arms + 1) // 2
        sizes.append(num_arms)
    return sizes
