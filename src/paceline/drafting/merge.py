"""Several drafts for one position in a text, merged into one tree.

A token that two drafts have on the same path is one node. Tokens that were chosen deterministically
(point masses) may be merged: which of them are scored does not bias the output. A token that was
drawn at random must be tested against the law that drew it, so one draft keeps its laws and its
nodes as they are, and the others are attached to it. A drawn token is also exact as a point mass,
whatever drew it: rejection then strikes it out of p (2211.17192, with q a one-hot law).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.drafts import ROOT, Auxiliary, Draft, Scheme
from paceline.core.target import Committed
from paceline.core.traits import DraftKinds
from paceline.drafting.combined import either
from paceline.drafting.kinds import CHOSEN_TREE

_WITHOUT_POINT_MASSES = (Scheme.SINGLE, Scheme.IID)
"""The schemes that say that a drawn token has no sibling of another law."""


class Merged(NamedTuple):
    """A merged draft.

    Args:
        draft: the merged tree.
        rows: for each merged draft, the indices of its rows in a pass over the tree: the root, its
            nodes, its auxiliary rows, laid out as in `Scores`.
    """

    draft: Draft
    rows: tuple[tuple[int, ...], ...]


def merge(drafts: Sequence[Draft]) -> Merged:
    """Merge drafts into one tree.

    The first that has laws keeps them, and its children come first among siblings, in their draw
    order; a chosen token that equals one of them is that node, since once that is rejected the
    token could not be accepted any more. All other tokens are point masses.

    The scheme says how siblings have to be tested: `MIXED` if siblings of a drawn token do not
    share its law. Siblings drawn without replacement keep their scheme, under which point masses
    after them are tested in the same way.

    Example:
        >>> merge([Draft((5, 7)), Draft((5, 8, 9))]).draft.parents
        (-1, 0, 0, 2)
    """
    soft = next((number for number, draft in enumerate(drafts) if _has_laws(draft)), None)
    order = list(range(len(drafts)))
    if soft is not None:
        order.remove(soft)
        order.insert(0, soft)
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[Tensor | None] = []
    beliefs: list[float | None] = []
    children: dict[tuple[int, int], int] = {}
    places: dict[int, list[int]] = {}
    for number in order:
        draft = drafts[number]
        assert draft.parents is not None
        own: list[int] = []
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            above = ROOT if parent == ROOT else own[parent]
            place = None if number == soft else children.get((above, token))
            belief = None if draft.confidence is None else draft.confidence[node]
            if place is None:
                place = len(tokens)
                tokens.append(token)
                parents.append(above)
                laws.append(draft.law(node) if number == soft else None)
                beliefs.append(belief)
                children.setdefault((above, token), place)
            own.append(place)
        places[number] = own
    scheme = Scheme.CHOSEN
    if soft is not None:
        scheme, hung = drafts[soft].scheme, parents[len(drafts[soft]) :]
        children_of = Counter(parents)
        if scheme in _WITHOUT_POINT_MASSES and any(children_of[parent] > 1 for parent in hung):
            scheme = Scheme.MIXED
    aux, rows = _auxiliary(drafts, [places[number] for number in range(len(drafts))], len(tokens))
    merged = Draft(
        tuple(tokens),
        parents=tuple(parents),
        probs=tuple(laws) if soft is not None else None,
        scheme=scheme,
        aux=aux,
        confidence=None
        if any(belief is None for belief in beliefs)
        else tuple(belief for belief in beliefs if belief is not None),
    )
    return Merged(merged, rows)


def merged_kinds(kinds: Sequence[DraftKinds]) -> DraftKinds:
    """The kinds of drafts that `merge` makes of drafts of these kinds; undeclared if one is.

    >>> sorted(merged_kinds([CHOSEN_TREE, CHOSEN_TREE]).schemes)
    [<Scheme.CHOSEN: 'chosen'>]
    """
    all_kinds = either(kinds)
    if not all_kinds.draws:
        return CHOSEN_TREE if all_kinds.schemes else all_kinds
    # Any of those that draw may propose nothing in a round, and then another's scheme stays.
    schemes = either([one for one in kinds if one.draws]).schemes | {Scheme.CHOSEN}
    if not schemes.isdisjoint(_WITHOUT_POINT_MASSES):
        schemes |= {Scheme.MIXED}
    return DraftKinds(schemes, draws=True)


def view(committed: Committed, own: Draft, rows: Sequence[int]) -> Committed:
    """What is reported to one of the drafters: its own draft, its own path, its own rows.

    Hidden states belong to committed tokens, whoever drafted them, so all of them are reported.

    Args:
        committed: as reported by the engine for the merged draft.
        own: the draft that the drafter proposed.
        rows: its rows, see `Merged`.
    """
    nodes = {rows[1 + node] - 1: node for node in reversed(range(len(own)))}
    path: list[int] = []
    for place in committed.path:
        node = nodes.get(place)
        assert own.parents is not None
        if node is None or own.parents[node] != (path[-1] if path else ROOT):
            break
        path.append(node)
    logits = None if committed.logits is None else committed.logits[list(rows)]
    return Committed(committed.tokens, own, tuple(path), logits, committed.hidden)


def _has_laws(draft: Draft) -> bool:
    return any(law is not None for law in draft.probs or ())


def _auxiliary(
    drafts: Sequence[Draft], places: Sequence[Sequence[int]], num_nodes: int
) -> tuple[Auxiliary | None, tuple[tuple[int, ...], ...]]:
    """The auxiliary rows of all drafts after one tree, and where each draft has its rows."""
    rows = [[0, *(1 + place for place in own)] for own in places]
    total = sum(len(draft.aux) for draft in drafts if draft.aux is not None)
    visible = torch.zeros(total, 1 + num_nodes + total, dtype=torch.bool)
    tokens: list[int] = []
    positions: list[int] = []
    for draft, own in zip(drafts, rows, strict=True):
        if draft.aux is None:
            continue
        first = len(tokens)
        tokens += draft.aux.tokens
        positions += draft.aux.positions
        own += [1 + num_nodes + first + i for i in range(len(draft.aux))]
        # The column of a merged node is visible if any of its original columns was.
        part = visible[first : len(tokens)]
        for column, row in enumerate(own):
            part[:, row] |= draft.aux.visible[:, column]
    aux = Auxiliary(tuple(tokens), tuple(positions), visible) if total else None
    return aux, tuple(tuple(own) for own in rows)
