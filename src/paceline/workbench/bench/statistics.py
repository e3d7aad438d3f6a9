"""Statistics of runs: speed-up with its interval, acceptance, time, and the size of the noise.

The noise of this machine is measured, not assumed. Plain decoding runs twice in every cycle. The
ratio of the two differs from 1 only by noise, so the root mean square of its logarithm, divided by
sqrt 2, is the standard deviation of the logarithm of one run's speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from paceline.workbench.bench.runs import Run

CONFIDENCE = 0.95

FEWEST_PROMPTS = 3
"""Fewer prompts do not show how much prompts differ, so there is no interval."""

CHEAPER_PASSES = 1.15
"""How far a speed-up may exceed the tokens per round before it is called noise. On some machines a
pass over a few rows takes a little less time than one over a single row."""


@dataclass(frozen=True)
class Noise:
    """How much the speed of one run varies, from plain decoding against itself.

    Args:
        deviation: the standard deviation of the logarithm of one run's tokens per second, about its
            relative standard deviation; None if plain decoding ran only once.
        num_pairs: the number of pairs of plain runs that it comes from.
        ratio: the geometric mean of second over first plain run, 1 without drift.
    """

    deviation: float | None
    num_pairs: int
    ratio: float | None

    def interval(self, num_runs: int, num_plain: int) -> float | None:
        """The factor by which noise alone can change a ratio of means, at `CONFIDENCE`.

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
        low, high: the interval; None with fewer than `FEWEST_PROMPTS`.
        num_prompts: the number of prompts.
        possible: the geometric mean of the tokens per round, relative to plain decoding:
            the most that speculation can gain if passes over more rows are not faster.
    """

    value: float
    low: float | None
    high: float | None
    num_prompts: int
    possible: float = math.inf

    @property
    def is_possible(self) -> bool:
        """Whether the tokens per round allow it. A value far above them is noise."""
        return self.value <= CHEAPER_PASSES * self.possible


@dataclass(frozen=True)
class PromptRatio:
    """A speed-up on one prompt.

    Args:
        item: the place of the prompt.
        value: over plain decoding.
        low, high: the range within noise; None if the noise is unknown.
    """

    item: int
    value: float
    low: float | None
    high: float | None

    @property
    def is_slower(self) -> bool:
        """Whether it is slower than plain decoding by more than noise."""
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
            # Non-overlapping pairs, so that they are independent.
            logs += [math.log(b / a) for a, b in list(pairwise(speeds))[::2]]
    if not logs:
        return Noise(None, 0, None)
    square = math.fsum(x * x for x in logs) / len(logs)
    return Noise(math.sqrt(square / 2), len(logs), math.exp(math.fsum(logs) / len(logs)))


def log_speed(runs: Sequence[Run], *, with_prefill: bool = False) -> float | None:
    """The mean logarithm of tokens per second; None if no run made a token."""
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
    runs: Sequence[Run], method: int, noise: Noise, *, with_prefill: bool = False
) -> Ratio | None:
    """The geometric mean over prompts of the speed-up over plain decoding, with its interval."""
    return compare(runs, method, 0, noise, with_prefill=with_prefill)


def compare(
    runs: Sequence[Run],
    method: int,
    other: int,
    noise: Noise,
    *,
    with_prefill: bool = False,
    confidence: float = CONFIDENCE,
) -> Ratio | None:
    """The speed of one method relative to another, over the prompts that both ran on.

    The interval is Student's for the mean of the logarithms, prompt by prompt. It covers both the
    spread between prompts and the noise of the runs, so it tells what another benchmark with other
    prompts of this kind would find. It is never narrower than the noise of plain decoding against
    itself, because a few prompts can agree by chance.
    """
    groups = by_prompt(runs)
    logs, possible, variances = [], [], []
    for item in dict.fromkeys(run.item for run in runs):
        ours, theirs = groups.get((item, method), []), groups.get((item, other), [])
        speed = log_speed(ours, with_prefill=with_prefill)
        base = log_speed(theirs, with_prefill=with_prefill)
        if speed is None or base is None:
            continue
        logs.append(speed - base)
        possible.append(math.log(_tokens_a_round(ours, math.inf) / _tokens_a_round(theirs, 1.0)))
        variances.append(1 / len(ours) + 1 / len(theirs))
    if not logs:
        return None
    mean = math.fsum(logs) / len(logs)
    most = math.exp(math.fsum(possible) / len(possible))
    if len(logs) < FEWEST_PROMPTS or method == other:
        return Ratio(math.exp(mean), None, None, len(logs), most)
    half = _half_width(logs, math.fsum(variances), noise, confidence)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs), most)


def _half_width(logs: Sequence[float], variances: float, noise: Noise, confidence: float) -> float:
    """Half the width of the interval of the mean of the logarithms.

    Args:
        logs: logarithms of the ratio, one per prompt.
        variances: the sum over prompts of the variance of one logarithm, in variances of a run.
        noise: of one run.
        confidence: of the interval.
    """
    edge, n = (1 + confidence) / 2, len(logs)
    seen = float(stats.t.ppf(edge, n - 1)) * float(np.std(logs, ddof=1)) / math.sqrt(n)
    if noise.deviation is None:
        return seen
    by_noise = float(stats.t.ppf(edge, noise.num_pairs)) * noise.deviation
    return max(seen, by_noise * math.sqrt(variances) / n)


def _tokens_a_round(runs: Sequence[Run], unknown: float) -> float:
    rounds = sum(len(run.rounds) for run in runs)
    return sum(len(run.tokens) for run in runs) / rounds if rounds else unknown


def fastest(runs: Sequence[Run], num_methods: int, noise: Noise) -> list[int]:
    """The methods that may be the fastest, the best first.

    Methods are left out that are slower than the best beyond noise and the spread of prompts. All
    comparisons together are wrong in at most 1 - `CONFIDENCE` of cases (Bonferroni). Empty if
    nothing can be said: too few prompts, or a speed-up that the tokens per round do not allow,
    which shows that the timings of this benchmark cannot be trusted.
    """
    ratios = {
        place: ratio
        for place in range(num_methods)
        if (ratio := compare(runs, place, 0, noise)) is not None
    }
    others = [ratio for place, ratio in ratios.items() if place]
    few = any(ratio.num_prompts < FEWEST_PROMPTS for ratio in others)
    if not others or few or not all(ratio.is_possible for ratio in others):
        return []
    ranked = sorted(ratios, key=lambda place: -ratios[place].value)
    best, rest = ranked[0], ranked[1:]
    confidence = 1 - (1 - CONFIDENCE) / len(rest)
    found = [best]
    for place in rest:
        ratio = compare(runs, best, place, noise, confidence=confidence)
        if ratio is None or ratio.low is None or ratio.low <= 1:
            found.append(place)
    return found


def share_of_time(runs: Sequence[Run]) -> Mapping[str, float]:
    """The total time of these runs by part, in seconds."""
    total: dict[str, float] = {}
    for run in runs:
        for part, seconds in run.parts_s.items():
            total[part] = total.get(part, 0.0) + seconds
    return total
