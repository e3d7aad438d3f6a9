"""Looked-up tokens as a draft: their confidence, and the limits of the budget."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.drafts import ROOT, Budget, Draft, Scheme


def belief(match_length: int) -> float:
    """The probability that a text continues as it did after a match of `match_length` tokens.

    Laplace's rule of succession: a guess that controllers correct by what they observe.

    >>> belief(1), belief(3), belief(8)
    (0.3333333333333333, 0.6, 0.8)
    """
    return match_length / (match_length + 2)


def copied(tokens: Sequence[int], match_length: int, budget: Budget) -> Draft:
    """A chain copied from the text after a match of this length, within the budget.

    The confidence of each token is that of the match extended up to it.

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
    """Deterministically chosen tokens as a draft that respects the budget's confidence bounds.

    They were not sampled, so proposing fewer or none does not bias the output.

    Args:
        tokens, parents, scheme: as in `Draft`.
        confidence: the confidence of each token, given its parent.
        budget: its confidence bounds are applied here; its other limits are up to the caller.
    """
    kept: dict[int, int] = {ROOT: ROOT}
    paths: dict[int, float] = {ROOT: 1.0}
    for node, (parent, sure) in enumerate(zip(parents, confidence, strict=True)):
        if parent not in paths or (parent == ROOT and sure < budget.min_first_confidence):
            continue
        kept[node] = len(kept) - 1
        path = paths[parent] * sure
        if sure >= budget.min_confidence and path >= budget.min_path_confidence:
            paths[node] = path  # otherwise nothing follows it
    del kept[ROOT]
    return Draft(
        tuple(tokens[node] for node in kept),
        tuple(kept.get(parents[node], ROOT) for node in kept),
        scheme=scheme,
        confidence=tuple(confidence[node] for node in kept),
    )
