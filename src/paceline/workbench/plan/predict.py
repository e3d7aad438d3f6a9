"""The speed-up of a method with its interval, from acceptance by position and measured costs.

The round is that of `economics.cost`, with three measured inputs: how often a drafter had something
to propose and how much, how far it was accepted, and the time of passes and drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput
from paceline.workbench.plan.costs import MethodCosts, PassCosts

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one method at one draft length.

    Args:
        method: its name.
        num_draft_tokens: k; 0 is plain decoding, and "auto" is chosen by a controller; then the
            speed was measured rather than predicted.
        batch, context: the number of sequences, and their cached tokens.
        tokens: expected tokens per round, including the correction or bonus.
        seconds: of a round.
        speedup: over plain decoding of the same batch.
        low, high: the interval of the speed-up.
    """

    method: str
    num_draft_tokens: int | str
    batch: int
    context: int
    tokens: float
    seconds: float
    speedup: float
    low: float
    high: float

    @property
    def fixed_length(self) -> int:
        """The draft length; 0 if a controller chooses it."""
        return self.num_draft_tokens if isinstance(self.num_draft_tokens, int) else 0


def shares_of_lengths(counts: AcceptanceCounts, num_draft_tokens: int) -> list[float]:
    """The share of rounds that draft 0, 1, ..., k tokens, if at most k are drafted.

    >>> shares_of_lengths(AcceptanceCounts.from_rounds([(4, 1), (1, 1), (0, 0), (0, 0)]), 2)
    [0.5, 0.25, 0.25]
    """
    drafted = list(counts.drafted[:num_draft_tokens])
    drafted += [0] * (num_draft_tokens - len(drafted))
    reached = [counts.rounds, *drafted, 0]
    return [(one - two) / counts.rounds for one, two in pairwise(reached)]


def round_seconds(
    counts: AcceptanceCounts,
    num_draft_tokens: int,
    passes: PassCosts,
    costs: MethodCosts,
    batch: int = 1,
    context: int | None = None,
) -> float:
    """The expected time of a round of `batch` sequences.

    Sequences are drafted one after another, so the time is `batch` times that of one; the
    target pass is shared.
    """
    shares = shares_of_lengths(counts, num_draft_tokens)
    rows = [1 + length * costs.rows_per_token for length in range(len(shares))]
    mean_rows = sum(n * share for n, share in zip(rows, shares, strict=True))
    # A tree is drafted through all its levels, whatever is kept of it.
    is_tree = costs.rows_per_token > 1
    drafting = sum(
        share * costs.draft(num_draft_tokens if is_tree and length else length)
        for length, share in enumerate(shares)
    )
    if batch == 1:
        scoring = sum(
            share * passes.seconds(n, 1, context)
            for n, share in zip(rows, shares, strict=True)
            if share
        )
    else:  # rows add up over the batch, so their mean is what counts
        scoring = passes.seconds(mean_rows, batch, context)
    return scoring + batch * (drafting + costs.rest)


def expected_tokens(counts: AcceptanceCounts, num_draft_tokens: int) -> float:
    """Tokens per round if drafts are cut to k: 1 + the sum of accepted / rounds by position."""
    return 1 + sum(counts.accepted[:num_draft_tokens]) / counts.rounds


def predict(
    method: str,
    counts: AcceptanceCounts,
    num_draft_tokens: int,
    passes: PassCosts,
    costs: MethodCosts,
    *,
    plain: MethodCosts | None = None,
    batch: int = 1,
    context: int | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> Prediction:
    """The speed-up at one draft length.

    The interval combines two uncertainties by Monte Carlo: acceptance (a beta distribution for each
    position, with Jeffreys' prior) and times (log-normal, with the measured spread).

    Args:
        method: its name.
        counts: acceptance by position, of drafts of at least k tokens whenever there was something
            to draft.
        num_draft_tokens: k.
        passes, costs: measured.
        plain: the time of plain decoding outside its passes; None means none.
        batch, context: see `PassCosts.seconds`.
        draws, seed: of the Monte Carlo simulation.

    Raises:
        InvalidInput: no rounds were counted, or none drafted as far as k.
    """
    if not counts.rounds:
        raise InvalidInput(f"no rounds of {method} were counted; replay or bench more text")
    if num_draft_tokens > max(len(counts.drafted), 1):
        raise InvalidInput(
            f"drafts of {method} were at most {len(counts.drafted)} tokens long, which says "
            f"nothing about k = {num_draft_tokens}; replay or bench with a larger k"
        )
    at = passes.context if context is None else context
    rest = MethodCosts() if plain is None else plain
    plain_seconds = passes.seconds(1, batch, at) + batch * rest.rest
    seconds = round_seconds(counts, num_draft_tokens, passes, costs, batch, at)
    tokens = expected_tokens(counts, num_draft_tokens)
    low, high = _interval(counts, num_draft_tokens, passes.spread, draws, seed)
    speedup = tokens * plain_seconds / seconds
    return Prediction(
        method=method,
        num_draft_tokens=num_draft_tokens,
        batch=batch,
        context=at,
        tokens=tokens,
        seconds=seconds,
        speedup=speedup,
        low=speedup * low / tokens,
        high=speedup * high / tokens,
    )


def _interval(
    counts: AcceptanceCounts, num_draft_tokens: int, spread: float, draws: int, seed: int
) -> tuple[float, float]:
    """The interval of the expected tokens, widened by the spread of the times."""
    import numpy as np
    from scipy import stats

    generator = np.random.default_rng(seed)
    tokens, reach = np.ones(draws), np.ones(draws)
    before = counts.rounds
    for tested, accepted in zip(counts.tested[:num_draft_tokens], counts.accepted, strict=False):
        if not tested:
            break
        rate = stats.beta.rvs(
            accepted + 0.5, tested - accepted + 0.5, size=draws, random_state=generator
        )
        # The rounds whose draft went on after this position; in the others it ended before.
        reach = reach * (tested / before) * rate
        tokens = tokens + reach
        before = max(accepted, 1)
    # Median and quartiles: a quartile of a normal distribution is .674 standard deviations away.
    times = generator.lognormal(0.0, spread / 0.674, draws)
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(tokens * times, [edge, 1 - edge])
    return float(low), float(high)
