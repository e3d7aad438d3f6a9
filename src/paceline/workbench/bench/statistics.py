"""What runs say: speed-up with its interval, acceptance, time, and how large the noise is.

The noise of this machine is measured, not assumed. Plain decoding runs twice in every cycle; the
ratio of the two is 1 but for noise, so the root mean square of its logarithm, over sqrt 2, is the
standard deviation of the logarithm of one run's speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from paceline.workbench.bench.runs import Run

CONFIDENCE = 0.95
RESAMPLES = 9999


@dataclass(frozen=True)
class Noise:
    """How much the speed of one run scatters, by plain decoding against itself.

    Args:
        deviation: the standard deviation of the logarithm of one run's tokens a second, about its
            relative scatter; None where plain decoding ran once only.
        num_pairs: how many pairs of plain runs it comes from.
        ratio: the geometric mean of second over first plain run, 1 where nothing drifts.
    """

    deviation: float | None
    num_pairs: int
    ratio: float | None

    def interval(self, num_runs: int, num_plain: int) -> float | None:
        """How many times a ratio of means can be off by noise alone, at `CONFIDENCE`.

        Example:
            >>> round(Noise(0.05, 60, 1.0).interval(1, 2), 3)
            1.13
        """
        if self.deviation is None or not num_runs or not num_plain:
            return None
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.num_pairs))
        return math.exp(t * self.deviation * math.sqrt(1 / num_runs + 1 / num_plain))


@dataclass(frozen=True)
class Ratio:
    """A speed-up over plain decoding, and its interval.

    Args:
        value: the geometric mean over prompts.
        low, high: of the bootstrap over prompts; None with fewer than two.
        num_prompts: how many.
    """

    value: float
    low: float | None
    high: float | None
    num_prompts: int


@dataclass(frozen=True)
class PromptRatio:
    """A speed-up on one prompt.

    Args:
        item: the place of the prompt.
        value: over plain decoding.
        low, high: how far noise alone may have moved it; None where the noise is not known.
    """

    item: int
    value: float
    low: float | None
    high: float | None

    @property
    def is_slower(self) -> bool:
        """Whether it is below plain by more than noise."""
        return self.high is not None and self.high < 1


def by_prompt(runs: Sequence[Run]) -> dict[tuple[int, int], list[Run]]:
    """The runs of each (prompt, method), in order."""
    found: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        found.setdefault((run.item, run.method), []).append(run)
    return found


def noise_of(runs: Sequence[Run]) -> Noise:
    """The noise, from neighbouring plain runs on the same prompt."""
    logs: list[float] = []
    for (_, method), found in by_prompt(runs).items():
        if method == 0:
            speeds = [speed for run in found if (speed := run.tokens_per_second) is not None]
            # Non-overlapping pairs, so that each is a trial of its own.
            logs += [math.log(b / a) for a, b in list(pairwise(speeds))[::2]]
    if not logs:
        return Noise(None, 0, None)
    square = math.fsum(x * x for x in logs) / len(logs)
    return Noise(math.sqrt(square / 2), len(logs), math.exp(math.fsum(logs) / len(logs)))


def log_speed(runs: Sequence[Run], *, with_prefill: bool = False) -> float | None:
    """The mean logarithm of tokens a second; None where no run made a token."""
    logs = [
        math.log(len(run.tokens) / (run.total_s if with_prefill else run.decode_s))
        for run in runs
        if run.tokens
    ]
    return math.fsum(logs) / len(logs) if logs else None


def prompt_ratios(runs: Sequence[Run], method: int, noise: Noise) -> list[PromptRatio]:
    """The speed-up of a method on every prompt on which both it and plain decoding ran."""
    groups = by_prompt(runs)
    found = []
    for item in dict.fromkeys(run.item for run in runs):
        ours, plain = groups.get((item, method), []), groups.get((item, 0), [])
        speed, base = log_speed(ours), log_speed(plain)
        if speed is None or base is None:
            continue
        value = math.exp(speed - base)
        off = noise.interval(len(ours), len(plain))
        found.append(
            PromptRatio(item, value, off and value / off, off and value * off)
            if method
            else PromptRatio(item, 1.0, None, None)
        )
    return found


def speedup(
    runs: Sequence[Run], method: int, *, with_prefill: bool = False, seed: int = 0
) -> Ratio | None:
    """The geometric mean of the speed-up over prompts, by paired bootstrap over prompts.

    Prompts are resampled, not runs: what is asked is how other prompts of this kind would fare.
    Method and plain decoding on one prompt stay together. (scipy's percentile bootstrap.)
    """
    groups = by_prompt(runs)
    pairs = [
        (speed, base)
        for item in dict.fromkeys(run.item for run in runs)
        if (speed := log_speed(groups.get((item, method), []), with_prefill=with_prefill))
        is not None
        and (base := log_speed(groups.get((item, 0), []), with_prefill=with_prefill)) is not None
    ]
    if not pairs:
        return None
    ours, plain = (np.array(values) for values in zip(*pairs, strict=True))
    value = math.exp(float((ours - plain).mean()))
    if len(pairs) < 2:
        return Ratio(value, None, None, len(pairs))

    def mean_difference(
        a: NDArray[np.float64], b: NDArray[np.float64], axis: int = -1
    ) -> NDArray[np.float64]:
        difference: NDArray[np.float64] = (a - b).mean(axis=axis)
        return difference

    interval = stats.bootstrap(
        (ours, plain),
        mean_difference,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Ratio(value, math.exp(interval.low), math.exp(interval.high), len(pairs))


def share_of_time(runs: Sequence[Run]) -> Mapping[str, float]:
    """Where the time of these runs went, in seconds, all together."""
    total: dict[str, float] = {}
    for run in runs:
        for part, seconds in run.parts_s.items():
            total[part] = total.get(part, 0.0) + seconds
    return total
