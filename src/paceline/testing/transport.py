"""The best acceptance that any rule could reach at one node: the benchmark for the rules.

Source: SpecTr 2310.15141 states the problem as optimal transport with membership cost; the form by
subsets is that of Hu et al. 2502.18779.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from torch import Tensor

from paceline.core.drafts import Scheme
from paceline.errors import InvalidInput

MAX_VOCAB = 12


def optimal_acceptance(p: Tensor, q: Tensor, k: int, scheme: Scheme) -> float:
    """Min over H of 1 + P(H) - Pr(all k siblings lie in H).

    An upper bound on the probability that one of k siblings from `q` is accepted, for every rule
    whose output is distributed as p; the best rule reaches it. Every subset H is tried.

    Args:
        p, q: distributions `[V]` of at most 12 tokens.
        k: the number of siblings; without replacement at most the number of tokens with mass.
        scheme: how they are drawn; `SINGLE` is one, `CHOSEN` the k most probable under q, `MIXED`
            one drawn from q and the most probable of the others.

    Example:
        >>> import torch
        >>> p, q = torch.tensor([[.3, .4, .3], [.6, .3, .1]]).double()
        >>> round(optimal_acceptance(p, q, 2, Scheme.IID), 4)
        0.89
    """
    vocab = len(p)
    if vocab > MAX_VOCAB:
        raise InvalidInput(f"every subset is tried: at most {MAX_VOCAB} tokens, not {vocab}")
    k = 1 if scheme is Scheme.SINGLE else k
    masses = q.tolist()
    drawn_inside: Callable[[frozenset[int]], float]
    order = sorted((t for t in range(vocab) if masses[t] > 0), key=lambda token: -masses[token])
    if scheme is Scheme.CHOSEN:

        def drawn_inside(inside: frozenset[int]) -> float:
            return float(inside.issuperset(order[:k]))

    elif scheme is Scheme.MIXED:

        def drawn_inside(inside: frozenset[int]) -> float:
            return float(
                sum(
                    masses[first]
                    for first in inside
                    if inside.issuperset([token for token in order if token != first][: k - 1])
                )
            )

    elif scheme is Scheme.WITHOUT_REPLACEMENT:
        k = min(k, sum(mass > 0 for mass in masses))

        def drawn_inside(inside: frozenset[int]) -> float:
            return _all_inside(masses, inside, k, sum(masses))

    else:

        def drawn_inside(inside: frozenset[int]) -> float:
            return float(sum(masses[token] for token in inside) ** k)

    return min(
        1 + float(sum(float(p[token]) for token in inside)) - drawn_inside(frozenset(inside))
        for size in range(vocab + 1)
        for inside in combinations(range(vocab), size)
    )


def _all_inside(masses: list[float], inside: frozenset[int], k: int, total: float) -> float:
    """Pr(k draws without replacement lie in `inside`), by recursion on the first draw."""
    if k == 0:
        return 1.0
    return sum(
        masses[token] / total * _all_inside(masses, inside - {token}, k - 1, total - masses[token])
        for token in inside
        if masses[token] > 0
    )
