"""The speed-up of a method by the cost model, from acceptance by position and costs.

If this and the measured speed-up differ, the parts do not simply add up: a cache grows, a machine
slows down, or a draft costs more after a rejection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.economics import cost, stats
from paceline.economics.acceptance import AcceptanceProfile
from paceline.workbench.bench.runs import RoundFacts, Run, counts_of


@dataclass(frozen=True)
class Prices:
    """The median cost of each part, in seconds.

    Args:
        passes: a target pass, by its number of rows, over the rounds of all methods.
        drafts: proposing, by method, drafter and length of the longest path.
        hosts: verification and the rest of a round, by method.
    """

    passes: dict[int, float]
    drafts: dict[tuple[int, str, int], float]
    hosts: dict[int, float]

    def once_s(self, run: Run) -> float:
        """The time that the first draft of each drafter in a run took beyond its price.

        A draft model that is not used in every round reads the prompt when it is first used. That
        happens once and depends on the length of the prompt, so it is not part of any price.
        """
        first: dict[str, RoundFacts] = {}
        for item in run.rounds:
            if item.path_length:
                first.setdefault(item.drafter, item)
        return sum(
            max(0.0, item.draft_s - self.drafts[run.method, item.drafter, item.path_length])
            for item in first.values()
        )

    def round_s(self, method: int, item: RoundFacts) -> float:
        """The price of a round like this one."""
        return (
            self.drafts[method, item.drafter, item.path_length]
            + self.passes[item.num_rows]
            + self.hosts[method]
        )


def prices_of(runs: Sequence[Run]) -> Prices:
    """The prices, from all rounds."""
    passes: dict[int, list[float]] = {}
    drafts: dict[tuple[int, str, int], list[float]] = {}
    hosts: dict[int, list[float]] = {}
    for run in runs:
        for item in run.rounds:
            passes.setdefault(item.num_rows, []).append(item.target_s)
            drafts.setdefault((run.method, item.drafter, item.path_length), []).append(item.draft_s)
        if run.rounds:
            parts = run.parts_s
            host = (parts["verify"] + parts["rest"]) / len(run.rounds)
            hosts.setdefault(run.method, []).append(host)
    return Prices(
        {key: median(values) for key, values in passes.items()},
        {key: median(values) for key, values in drafts.items()},
        {key: median(values) for key, values in hosts.items()},
    )


def predicted_speedup(runs: Iterable[Run], method: int, prices: Prices) -> float | None:
    """Tokens per round over the price of a round, relative to plain decoding; None without a round.

    The tokens per round are computed from the conditional acceptance rate at each position and the
    share of rounds that drafted as far (`economics.cost.expected_tokens` for each draft length), as
    in the planner; they are not the tokens that were counted.
    """
    own = [run for run in runs if run.method == method]
    rounds = [item for run in own for item in run.rounds]
    if not rounds or 0 not in prices.hosts:
        return None
    counts = counts_of(rounds)
    rates = stats.conditional_acceptance_rate_per_position(counts) or ()
    # A position after an untested one is never reached, so its rate does not matter.
    profile = AcceptanceProfile(tuple(rate or 0.0 for rate in rates), beyond=0.0)
    lengths = [item.path_length for item in rounds]
    tokens = sum(cost.expected_tokens(profile, length) for length in lengths) / len(rounds)
    seconds = sum(prices.round_s(method, item) for item in rounds) + sum(map(prices.once_s, own))
    price = seconds / len(rounds)
    proposing = next(price for key, price in prices.drafts.items() if key[0] == 0)
    plain = prices.passes[1] + proposing + prices.hosts[0]
    return tokens * plain / price
