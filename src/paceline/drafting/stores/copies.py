"""Tokens that were looked up, as a draft: how sure they are, and how far the budget goes."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.drafts import ROOT, Budget, Draft, Scheme


def belief(match_length: int) -> float:
    """How probable it is that a text goes on as it did behind the last `match_length` tokens.

    Laplace's rule of succession, a guess that controllers correct by what they see.

    >>> belief(1), belief(3), belief(8)
    (0.3333333333333333, 0.6, 0.8)
    """
    return match_length / (match_length + 2)


def copied(tokens: Sequence[int], match_length: int, budget: Budget) -> Draft:
    """A chain that was copied from behind a match of this length, as far as the budget goes.

    Each token is held to be as sure as a match that goes on to it.

    >>> copied((5, 6, 7), 1, Budget(3, min_confidence=0.5)).tokens
    (5,)
    """
    tokens = tokens[: budget.num_draft_tokens]
    beliefs = [belief(match_length + number) for number in range(len(tokens))]
    return believed(tokens, tuple(range(ROOT, len(tokens) - 1)), beliefs, budget)


def believed(
    tokens: Sequence[int],
    parents: Sequence[int],
    confidence: Sequence[float],
    budget: Budget,
    scheme: Scheme = Scheme.SINGLE,
) -> Draft:
    """Tokens chosen without chance, as a draft that keeps to the confidences of the budget.

    They are no draws, so to propose fewer, or none, bends no law.

    Args:
        tokens, parents, scheme: as in `Draft`.
        confidence: of each token, its parent given.
        budget: its bounds on confidence; the other ones are the caller's.
    """
    kept: dict[int, int] = {ROOT: ROOT}
    paths: dict[int, float] = {ROOT: 1.0}
    for node, (parent, sure) in enumerate(zip(parents, confidence, strict=True)):
        if parent not in paths or (parent == ROOT and sure < budget.min_first_confidence):
            continue
        kept[node] = len(kept) - 1
        path = paths[parent] * sure
        if sure >= budget.min_confidence and path >= budget.min_path_confidence:
            paths[node] = path  # else nothing goes behind it
    del kept[ROOT]
    return Draft(
        tuple(tokens[node] for node in kept),
        tuple(kept.get(parents[node], ROOT) for node in kept),
        scheme=scheme,
        confidence=tuple(confidence[node] for node in kept),
    )
