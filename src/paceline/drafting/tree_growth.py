"""Which nodes of a draft tree get children, and how many, from the draft model's probabilities.

Source: EAGLE-2 (2406.16858), section 4: the probability of a node is the product of the draft
model's probabilities along its path.
"""

from __future__ import annotations

from collections.abc import Sequence


def best(scores: Sequence[float], count: int) -> list[int]:
    """The indices of the largest scores, in ascending order; ties go to the first.

    >>> best([0.1, 0.5, 0.5, 0.5], 2)
    [1, 2]
    """
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    return sorted(order[:count])


def allocate(scores: Sequence[float], beliefs: Sequence[Sequence[float]], width: int) -> list[int]:
    """How many children each node gets if `width` children are drawn in total.

    The r-th draw at a node is valued at the score of the node times the r-th largest probability
    there. So the numbers depend only on what is known before the draw, and every token that is
    drawn can be submitted.

    Args:
        scores: for each node, the probability of its path.
        beliefs: for each node, the largest probabilities of the next token, in descending order.
        width: the maximum total number of children.

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
    """How many of the remaining `num_nodes` the next of `num_levels` gets: an equal share.

    >>> level_width(16, 5, most=10)
    4
    """
    return min(most, num_nodes, -(-num_nodes // max(num_levels, 1)))
