"""Successive elimination: every contender answers the same prompts, and the slower ones leave.

In each block all contenders answer one prompt, in turns, so that neither an easy prompt nor a slow
moment of the machine favours one. After a block those leave that are slower than the leader beyond
what differences between prompts and noise explain. Time is cut into phases, and at the end of each
the slower half leaves, whatever the noise: with a fixed budget that finds the best of n with the
fewest errors (sequential halving; Karnin, Koren and Somekh 2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
"""Of all eliminations after one block together, before the forced ones."""

FIRST_BLOCKS = 2
"""Prompts that everybody answers before anybody leaves."""


@dataclass
class Race:
    """What the race has found so far.

    Args:
        scores: by contender, the logarithm of its speed in each block that it ran in.
        active: the contenders that are left.
        left_after: the number of blocks after which each of the others left.
    """

    scores: dict[int, list[float]]
    active: list[int]
    left_after: dict[int, int] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        """Blocks that every active contender ran in."""
        return min(len(self.scores[arm]) for arm in self.active)

    @property
    def ranked(self) -> list[int]:
        """Active contenders, the fastest first."""
        return sorted(self.active, key=lambda arm: -self._mean(arm, self.num_blocks))

    @property
    def leader(self) -> int:
        """The fastest so far."""
        return self.ranked[0]

    def behind(self, arm: int) -> float:
        """How far a contender is slower than the leader, in logarithms, on the prompts of both."""
        blocks = min(len(self.scores[arm]), len(self.scores[self.leader]))
        return self._mean(self.leader, blocks) - self._mean(arm, blocks)

    def margin(self) -> float:
        """How far a contender has to be behind the leader for chance not to explain it.

        From what is left of the scores once each contender's mean and each block's mean are taken
        off: the noise, and how differently prompts suit the contenders. For all pairs together
        (Bonferroni), since the leader is the best of many figures.
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
        """Those leave that are slower than the leader beyond chance."""
        if self.num_blocks >= FIRST_BLOCKS:
            margin = self.margin()
            self._keep([arm for arm in self.active if self.behind(arm) <= margin])

    def halve(self, most: int) -> None:
        """Only the fastest `most` stay."""
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
    """Race until one is left or the time is up.

    Args:
        num_arms: contenders.
        run_block: has the contenders that are named answer one prompt; given the number of the
            block and that of the phase, both from 0. Returns the logarithm of the speed of each,
            or None where it was stopped before all had run.
        clock: seconds.
        deadline: by the clock. Everybody runs at least once.
    """
    found = Race({arm: [] for arm in range(num_arms)}, list(range(num_arms)))
    sizes = _sizes(num_arms)
    block, seconds_each = 0, 0.0
    for phase, most in enumerate(sizes):
        end = clock() + (deadline - clock()) / (len(sizes) - phase)
        while len(found.active) > most:
            start = clock()
            seen = found.num_blocks >= FIRST_BLOCKS or (block and start >= deadline)
            # A block that would end beyond its time by more than half of it is not begun.
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
    """How many may stay after each phase.

    >>> _sizes(19)
    [10, 5, 3, 2, 1]
    """
    sizes = []
    while num_arms > 1:
        num_arms = (num_arms + 1) // 2
        sizes.append(num_arms)
    return sizes
