"""Drafts under a constraint: what it forces is drafted for nothing, what it forbids is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.core.drafts import ROOT, Auxiliary, Draft
from paceline.core.protocols import ConstraintSession

FORCED = "constraint"
"""Who drafted what the constraint forces, in `Round.drafter`."""


def forced_draft(session: ConstraintSession, room: int) -> Draft | None:
    """The tokens that must come next, as a draft of at most `room`; None without any.

    Each has probability 1, so they are accepted under every rule, and no drafter need be asked.
    """
    tokens = tuple(session.forced()[:room]) if room > 0 else ()
    return Draft(tokens, drafter=FORCED) if tokens else None


def cut(draft: Draft, session: ConstraintSession, ends: frozenset[int]) -> Draft:
    """The draft without what cannot come out under the constraint.

    A token that is not allowed is dropped if it was chosen, and stays if it was drawn: whether a
    drawn token is submitted must not depend on it (rule 2 of `core.protocols`). The rule then
    rejects it, since its probability is 0. What follows such a token, or an end token, is dropped;
    that depends on the tokens before alone.

    Args:
        draft: a proposal.
        session: the constraint, at the answer so far.
        ends: the tokens that end the answer.
    """
    kept: list[int] = []
    goes_on = {ROOT}
    assert draft.parents is not None
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent not in goes_on:
            continue
        allowed = session.allows([draft.tokens[i] for i in draft.path(parent)], token)
        if allowed or draft.law(node) is not None:
            kept.append(node)
        if allowed and token not in ends:
            goes_on.add(node)
    return draft if len(kept) == len(draft) else _only(draft, kept)


def _only(draft: Draft, kept: Sequence[int]) -> Draft:
    """The draft with only the nodes `kept`, whose parents are among them."""
    assert draft.parents is not None
    places = {ROOT: ROOT} | {node: place for place, node in enumerate(kept)}
    return replace(
        draft,
        tokens=tuple(draft.tokens[node] for node in kept),
        parents=tuple(places[draft.parents[node]] for node in kept),
        probs=None if draft.probs is None else tuple(draft.probs[node] for node in kept),
        confidence=(
            None if draft.confidence is None else tuple(draft.confidence[node] for node in kept)
        ),
        aux=None if draft.aux is None else _seeing(draft.aux, len(draft), kept),
    )


def _seeing(aux: Auxiliary, num_nodes: int, kept: Sequence[int]) -> Auxiliary:
    """Auxiliary rows that see of the draft only the nodes `kept`."""
    rows = range(1 + num_nodes, 1 + num_nodes + len(aux))
    columns = [0, *(1 + node for node in kept), *rows]
    return replace(aux, visible=aux.visible[:, columns])
