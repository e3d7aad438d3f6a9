"""How much of several drafts is worth a pass over all of them: the scheduler of DSpark.

Source: DSpark 2607.05147, section 3.2.2 and appendix A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul


def admitted(
    confidence: Sequence[Sequence[float]],
    passes_per_second: Callable[[int], float],
    *,
    other_rows: int = 0,
    other_tokens: float = 0.0,
) -> list[int]:
    """How many tokens of each chain are scored, so that tokens a second are about the most.

    A token's chance is the product of the confidences up to it. Tokens are admitted in the order of
    their chances, each if the expected tokens a second rise by it, and the first one that does not
    raise them ends it. So whether a token is admitted follows from chances that are not below its
    own. If a confidence is known before its token is drawn, this is exact: a search for the best
    cut of all would look at what comes after a token, and so at the token (rule 2 of
    `core.protocols`).

    Args:
        confidence: for each chain, the probability that each token is accepted once those before it
            are.
        passes_per_second: of a pass over a number of rows.
        other_rows: rows of the pass besides a root and the tokens of each chain.
        other_tokens: the tokens that a round yields besides one for each chain and their tokens.

    Example:
        >>> chains = [(0.9, 0.8, 0.5), (0.6, 0.5, 0.4)]
        >>> [admitted(chains, lambda rows: 1 / (free + rows)) for free in (20, 4, 1, 0)]
        [[3, 2], [2, 1], [1, 0], [0, 0]]
    """
    chances = [
        (-chance, chain, place)
        for chain, own in enumerate(confidence)
        for place, chance in enumerate(accumulate(own, mul))
    ]
    counts = [0] * len(confidence)
    rows, tokens = len(confidence) + other_rows, len(confidence) + other_tokens
    rate = tokens * passes_per_second(rows)
    for negative, chain, place in sorted(chances):
        rows, tokens = rows + 1, tokens - negative
        if (with_it := tokens * passes_per_second(rows)) <= rate:
            break
        rate, counts[chain] = with_it, place + 1
    return counts
