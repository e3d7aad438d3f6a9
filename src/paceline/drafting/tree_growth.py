"""Which nodes of a draft tree get children, and how many, from what a draft model believes.

Source: EAGLE-2 (2406.16858), section 4: the probability of a node is the product of the draft
model's probabilities along its path.
"""

from __future__ import annotations

from collections.abc import Sequence


def best(scores: Sequence[float], count: int) -> list[int]:
    """The places of the largest scores, in rising order; of equal ones the first.

    >>> best([0.1, 0.5, 0.5, 0.5], 2)
    [1, 2]
    """
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    return sorted(order[:count])


def allocate(scores: Sequence[float], beliefs: Sequence[Sequence[float]], width: int) -> list[int]:
    """How many children each node gets, where `width` children are to be drawn among all.

    The r-th draw at a node is taken to be worth the score of the node times the r-th largest
    probability there. So the numbers depend on what is known before the draw alone, and every
    token that is drawn can be submitted.

    Args:
        scores: of each node, the probability of its path.
        beliefs: of each node, the largest probabilities of the next token, falling.
        width: how many children there are to be in all, at most.

    Example:
        >>> allocate([0.6, 0.3], [[0.9, 0.1], [0.5, 0.5]], 3)
        [1, 2]
    """
    values = [
        (score * belief, node)
        for node, (score, row) in enumerate(zip(scores, beliefs, strict=True))
        for belief in row
        if belief > 0
    ]
    chosen = best([value for value, _ in values], width)
    counts = [0] * len(scores)
    for place in chosen:
        counts[values[place][1]] += 1
    return counts


def level_width(num_nodes: int, num_levels: int, most: int) -> int:
    """How many of the `num_nodes` that are left the next of `num_levels` gets: an even share.

    >>> level_width(16, 5, most=10)
    4
    """
    return min(most, num_nodes, -(-num_nodes // max(num_levels, 1)))
