"""How many answers a verdict takes, and what difference those that there are would have shown.

The difference is stated as a total variation d: at each of the first `twosample.FIRST` positions
the two laws of the token differ by d, on average over positions and prompts (among tokens that are
not rare). The chi-square of one position then exceeds its mean by at least 2 n d^2, with n answers
on each side: by the inequality of Cauchy and Schwarz,

    n sum (p - q)^2 / (p + q)  >=  n (sum |p - q|)^2 / sum (p + q)  =  n (2 d)^2 / 2.

It is the noncentrality of its law (Cohen, *Statistical Power Analysis*, 1988, chapter 7).
"""

from __future__ import annotations

import math

from paceline.errors import InvalidInput
from paceline.workbench.audit.twosample import FIRST, NUM_TESTS, TestResult, load_scipy_stats

KINDS = 20
"""How many kinds of tokens a position is assumed to have when the number of answers is chosen."""

LEAST, MOST = 20, 20_000
"""The fewest and the most answers to one prompt that are chosen."""


def num_answers(num_prompts: int, *, effect: float, power: float, false_alarm_rate: float) -> int:
    """How many answers to each prompt, on each side, show a difference of `effect`.

    Args:
        num_prompts: among which the answers are spread.
        effect: the total variation d to be seen.
        power: the probability of seeing it.
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
            f"to see a total variation of {effect:g} with probability {power:g} takes more than "
            f"{MOST} answers a prompt; look for a larger one, or give more prompts"
        )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle + 1, high)
    return low


def achieved_power(
    first_tokens: TestResult, *, answers: int, num_prompts: int, effect: float, level: float
) -> float:
    """The probability that the test of first tokens would have shown a difference of `effect`.

    From the mean and variance that its statistic really had under permutation, to which a gamma
    law is fitted; the difference moves the mean by `2 n effect^2` a position and adds four times
    that to the variance, as in the noncentral chi-square law.

    Args:
        first_tokens: what the test gave.
        answers: n, to each prompt on each side.
        num_prompts: of them.
        effect: the total variation d.
        level: the p-value at which the test alone would have been a fault.
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
    """The total variation that the answers there are would have shown with probability `power`."""
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
