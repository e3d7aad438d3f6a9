"""The number of answers that a verdict needs, and the difference that given answers can detect.

The difference is stated as a total variation d: at each of the first `twosample.FIRST` positions
the two distributions of the token differ by d, on average over positions and prompts (among tokens
that are not rare). The chi-square of one position then exceeds its mean by at least 2 n d^2, with n
answers on each side, by the Cauchy-Schwarz inequality:

    n sum (p - q)^2 / (p + q)  >=  n (sum |p - q|)^2 / sum (p + q)  =  n (2 d)^2 / 2.

This is its noncentrality parameter (Cohen, *Statistical Power Analysis*, 1988, chapter 7).
"""

from __future__ import annotations

import math

from paceline.errors import InvalidInput
from paceline.workbench.audit.twosample import FIRST, NUM_TESTS, TestResult, load_scipy_stats

KINDS = 20
"""The number of distinct tokens that a position is assumed to have when planning the answers."""

LEAST, MOST = 20, 20_000
"""The fewest and the most answers per prompt."""


def num_answers(num_prompts: int, *, effect: float, power: float, false_alarm_rate: float) -> int:
    """The number of answers per prompt and side that detect a difference of `effect`.

    Args:
        num_prompts: the number of prompts.
        effect: the total variation d to detect.
        power: the probability of detecting it.
        false_alarm_rate: of all tests together.

    Raises:
        InvalidInput: more than `MOST` answers.

    Example:
        >>> num_answers(8, effect=0.15, power=0.9, false_alarm_rate=0.001)
        129
    """
    stats = load_scipy_stats()
    places = num_prompts * FIRST
    degrees = places * (KINDS - 1)
    critical = stats.chi2.isf(false_alarm_rate / NUM_TESTS, degrees)
    low, high = LEAST, MOST

    def seen(n: int) -> bool:
        return bool(stats.ncx2.sf(critical, degrees, 2 * n * effect**2 * places) >= power)

    if not seen(high):
        raise InvalidInput(
            f"to detect a total variation of {effect:g} with probability {power:g} takes more than "
            f"{MOST} answers per prompt; choose a larger one, or give more prompts"
        )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle + 1, high)
    return low


def achieved_power(
    first_tokens: TestResult, *, answers: int, num_prompts: int, effect: float, level: float
) -> float:
    """The probability that the test of first tokens would have detected a difference of `effect`.

    A gamma distribution is fitted to the mean and the variance that the statistic had under
    permutation. The difference moves the mean by `2 n effect^2` per position and adds four times
    that to the variance, as in the noncentral chi-square distribution.

    Args:
        first_tokens: the result of the test.
        answers: n, per prompt and side.
        num_prompts: the number of prompts.
        effect: the total variation d.
        level: the p-value at which this test alone would be a fault.
    """
    stats = load_scipy_stats()
    shift = 2 * answers * effect**2 * num_prompts * FIRST
    mean, variance = first_tokens.null_mean, first_tokens.null_variance
    critical = mean
    if variance > 0:
        critical = float(stats.gamma.isf(level, mean**2 / variance, scale=variance / mean))
    return float(stats.norm.sf((critical - mean - shift) / math.sqrt(variance + 4 * shift)))


def smallest_effect(
    first_tokens: TestResult, *, answers: int, num_prompts: int, power: float, level: float
) -> float:
    """The total variation that these answers would have shown with probability `power`."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        reached = achieved_power(
            first_tokens,
            answers=answers,
            num_prompts=num_prompts,
            effect=middle,
            level=level,
        )
        low, high = (low, middle) if reached >= power else (middle, high)
    return high
