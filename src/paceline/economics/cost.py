"""What speculation gains: expected tokens per round, speed-up over plain decoding, best length.

The model of Leviathan et al. (arXiv 2211.17192, section 3), without its two simplifications where
measurements exist: the acceptance rate may differ by position, and scoring k + 1 rows may cost more
than scoring one. Times are in units of one plain target pass.

Notation: alpha is the acceptance rate of a *tested* draft token, c (`cost`) the time of one draft
step in target passes, k (`num_draft_tokens`, gamma in the paper) the number of tokens drafted per
round. A round yields its accepted tokens and one more, the correction or the bonus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from paceline.economics._checks import (
    check_not_negative,
    check_positive,
    check_probability,
    checked_count,
)
from paceline.economics.acceptance import Acceptance, as_profile
from paceline.errors import InvalidInput

MAX_NUM_DRAFT_TOKENS = 64
"""How far `best_num_draft_tokens` searches if the acceptance profile has no end."""


VerifyCost = float | Mapping[int, float] | Callable[[int], float]
"""T(n) / T(1), the time of a target pass over n = k + 1 rows relative to a pass over one row: one
number for every n > 1, a table by n, or a function of n. 1.0 means that extra rows are free, as
they are while reading the weights takes longer than the arithmetic."""


def expected_accepted_tokens(acceptance: Acceptance, num_draft_tokens: int) -> float:
    """The expected number of accepted draft tokens per round: sum over i of P(i is accepted)."""
    return math.fsum(as_profile(acceptance).unconditional(num_draft_tokens))


def expected_tokens(acceptance: Acceptance, num_draft_tokens: int) -> float:
    """The expected number of tokens per round, including the correction or bonus.

    For a constant rate this is (1 - alpha^(k+1)) / (1 - alpha), summed here term by term so that
    alpha = 1 needs no limit. Reads of weights and cache per token fall by this factor.
    (Leviathan et al., equation 1.)

    Raises:
        InvalidInput: a rate is outside [0, 1], or a length is negative or beyond the profile.

    Example:
        >>> round(expected_tokens(0.8, 4), 4)
        3.3616
        >>> round(expected_tokens([0.9, 0.8, 0.7], 3), 4)
        3.124
    """
    return 1.0 + expected_accepted_tokens(acceptance, num_draft_tokens)


def oracle_tokens(alpha: float) -> float:
    """1 / (1 - alpha): the tokens per round if drafting always stopped at the first rejection.

    The limit of `expected_tokens` for ever longer drafts; infinite for alpha = 1.
    """
    check_probability("the acceptance rate", alpha)
    return math.inf if alpha == 1 else 1.0 / (1.0 - alpha)


def round_cost(
    cost: float, num_draft_tokens: int, verify_cost: VerifyCost = 1.0, overhead: float = 0.0
) -> float:
    """The time of one round in units of plain target passes: k * c + T(k + 1) / T(1) + overhead.

    Args:
        cost: the time of one draft step. For a drafter that proposes all its tokens in one step
            whatever k is, give 0 here and the time of the step as `overhead`.
        num_draft_tokens: k. With k = 0 the round is a plain target pass: exactly 1.
        verify_cost: see `VerifyCost`.
        overhead: the rest of a speculative round: the verifier, the host.

    Raises:
        InvalidInput: a cost is negative or infinite, or a table has no entry for k + 1 rows.
    """
    check_not_negative("cost", cost)
    check_not_negative("overhead", overhead)
    if checked_count(num_draft_tokens) == 0:
        return 1.0
    return num_draft_tokens * cost + _verify_cost_of(verify_cost, num_draft_tokens + 1) + overhead


def speedup(
    acceptance: Acceptance,
    cost: float,
    num_draft_tokens: int,
    verify_cost: VerifyCost = 1.0,
    overhead: float = 0.0,
) -> float:
    """The speed-up over plain decoding: expected tokens per round over the cost of a round.

    Below 1 speculation is slower. The arguments are those of `expected_tokens` and `round_cost`.
    (Leviathan et al., theorem 3.8; with `verify_cost`, MagicDec, arXiv 2408.11049.)

    Example:
        >>> round(speedup(0.8, 0.05, 4), 4)
        2.8013
    """
    tokens = expected_tokens(acceptance, num_draft_tokens)
    return tokens / round_cost(cost, num_draft_tokens, verify_cost, overhead)


def best_num_draft_tokens(
    acceptance: Acceptance,
    cost: float,
    verify_cost: VerifyCost = 1.0,
    overhead: float = 0.0,
    max_num_draft_tokens: int | None = None,
) -> int:
    """The draft length with the greatest speed-up; 0 if speculation does not pay.

    Every length up to `max_num_draft_tokens` is tried, since with a stepped `verify_cost` the
    speed-up can have several local maxima. Ties go to the shortest length. None searches as far as
    the profile is known, or up to `MAX_NUM_DRAFT_TOKENS`.

    Example:
        >>> best_num_draft_tokens(0.8, 0.05), best_num_draft_tokens(0.3, 0.9)
        (8, 0)
    """
    profile = as_profile(acceptance)
    if max_num_draft_tokens is None:
        max_num_draft_tokens = profile.horizon or MAX_NUM_DRAFT_TOKENS
    lengths = range(checked_count(max_num_draft_tokens) + 1)
    return max(lengths, key=lambda k: speedup(profile, cost, k, verify_cost, overhead))


def guaranteed_speedup(alpha: float, cost: float) -> float:
    """A lower bound on the best speed-up: (1 + alpha) / (1 + c) if alpha > c, else 1.

    If alpha <= c, no length helps: 1 + alpha + ... + alpha^k <= 1 + k * c. Verification of any
    length is assumed to cost one pass. (Leviathan et al., corollary 3.9.)
    """
    check_probability("the acceptance rate", alpha)
    check_not_negative("cost", cost)
    return max(1.0, (1.0 + alpha) / (1.0 + cost))


def acceptance_rate_for(tokens: float, num_draft_tokens: int) -> float | None:
    """The constant acceptance rate at which a round yields `tokens`: `expected_tokens` inverted.

    Returns:
        The smallest rate that reaches `tokens`; None if even full acceptance, which yields k + 1,
        falls short.

    Example:
        >>> round(acceptance_rate_for(3.3616, 4), 6)
        0.8
    """
    check_not_negative("tokens", tokens)
    if expected_tokens(1.0, num_draft_tokens) < tokens:
        return None
    if expected_tokens(0.0, num_draft_tokens) >= tokens:
        return 0.0
    low, high = 0.0, 1.0
    # Bisection down to adjacent floats; the expectation is strictly increasing in the rate.
    while low < (middle := (low + high) / 2) < high:
        if expected_tokens(middle, num_draft_tokens) < tokens:
            low = middle
        else:
            high = middle
    return high


def break_even_acceptance_rate(
    cost: float, num_draft_tokens: int, verify_cost: VerifyCost = 1.0, overhead: float = 0.0
) -> float | None:
    """The constant acceptance rate above which drafting k tokens pays; None if none does.

    Example:
        >>> round(break_even_acceptance_rate(0.3, 1), 6)
        0.3
    """
    needed = round_cost(cost, num_draft_tokens, verify_cost, overhead)
    return acceptance_rate_for(needed, num_draft_tokens)


def break_even_cost(
    acceptance: Acceptance,
    num_draft_tokens: int,
    verify_cost: VerifyCost = 1.0,
    overhead: float = 0.0,
) -> float | None:
    """The cost of a draft step below which drafting k >= 1 tokens pays.

    Returns:
        c in target passes; None if not even a free drafter breaks even.

    Example:
        >>> round(break_even_cost(0.8, 4), 4)
        0.5904
    """
    if checked_count(num_draft_tokens) == 0:
        raise InvalidInput("expected at least 1 draft token, got 0; an empty draft costs nothing")
    tokens = expected_tokens(acceptance, num_draft_tokens)
    spare = tokens - round_cost(0.0, num_draft_tokens, verify_cost, overhead)
    return spare / num_draft_tokens if spare >= 0 else None


def implied_tokens(
    measured_speedup: float,
    cost: float,
    num_draft_tokens: int,
    verify_cost: VerifyCost = 1.0,
    overhead: float = 0.0,
) -> float:
    """The tokens per round that a measured speed-up implies: `speedup` solved for the tokens."""
    check_not_negative("measured_speedup", measured_speedup)
    return measured_speedup * round_cost(cost, num_draft_tokens, verify_cost, overhead)


def arithmetic_overhead(
    acceptance: Acceptance, num_draft_tokens: int, arithmetic_cost: float = 0.0
) -> float:
    """The arithmetic per token relative to plain decoding: (k * c' + k + 1) / expected tokens.

    Args:
        acceptance: see `Acceptance`.
        num_draft_tokens: k.
        arithmetic_cost: c', the draft model's operations per token over the target's: about the
            ratio of their parameter counts. The default counts only the target's work, as Leviathan
            et al. do in table 1. (Theorem 3.11.)
    """
    check_not_negative("arithmetic_cost", arithmetic_cost)
    work = num_draft_tokens * arithmetic_cost + num_draft_tokens + 1
    return work / expected_tokens(acceptance, num_draft_tokens)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The predictions for one draft length.

    `expected_tokens` includes the correction or bonus, `accepted_tokens` does not; `speedup` and
    `arithmetic_overhead` are relative to plain decoding.
    """

    num_draft_tokens: int
    expected_tokens: float
    accepted_tokens: float
    speedup: float
    arithmetic_overhead: float


def plan_table(
    acceptance: Acceptance,
    cost: float,
    lengths: Iterable[int],
    verify_cost: VerifyCost = 1.0,
    overhead: float = 0.0,
    arithmetic_cost: float = 0.0,
) -> list[PlanRow]:
    """One row for each draft length in `lengths`, in that order.

    Example:
        >>> [row] = plan_table(0.8, 0.05, [4])
        >>> f"{row.expected_tokens:.4f} {row.speedup:.4f}"
        '3.3616 2.8013'
    """
    profile = as_profile(acceptance)
    return [
        PlanRow(
            num_draft_tokens=k,
            expected_tokens=expected_tokens(profile, k),
            accepted_tokens=expected_accepted_tokens(profile, k),
            speedup=speedup(profile, cost, k, verify_cost, overhead),
            arithmetic_overhead=arithmetic_overhead(profile, k, arithmetic_cost),
        )
        for k in lengths
    ]


def _verify_cost_of(verify_cost: VerifyCost, num_rows: int) -> float:
    if callable(verify_cost):
        ratio = verify_cost(num_rows)
    elif isinstance(verify_cost, Mapping):
        if num_rows not in verify_cost:
            raise InvalidInput(
                f"expected a verify cost for {num_rows} rows (the draft tokens and one more), got "
                f"a table for {sorted(verify_cost)}; measure that shape, or pass a function"
            )
        ratio = verify_cost[num_rows]
    else:
        ratio = verify_cost
    check_positive(f"verify_cost for {num_rows} rows", ratio)
    return ratio
