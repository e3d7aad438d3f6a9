"""Drafts of tokens that were looked up, within the confidences of a budget."""

from __future__ import annotations

import pytest

from paceline.core.drafts import Budget, Scheme
from paceline.drafting.stores.copies import belief, believed, copied

TREE = (5, 6, 7, 8, 9), (-1, -1, 0, 2, 1), (0.6, 0.3, 0.5, 0.9, 0.8)


@pytest.mark.parametrize(
    ("bounds", "tokens"),
    [
        ({}, (5, 6, 7, 8, 9)),
        ({"min_confidence": 0.55}, (5, 6, 7)),
        ({"min_confidence": 0.65}, (5, 6)),
        ({"min_path_confidence": 0.3}, (5, 6, 7, 8, 9)),
        ({"min_path_confidence": 0.31}, (5, 6, 7)),
        ({"min_first_confidence": 0.3}, (5, 6, 7, 8, 9)),
        ({"min_first_confidence": 0.4}, (5, 7, 8)),
        ({"min_first_confidence": 0.7}, ()),
    ],
    ids=str,
)
def test_nothing_goes_behind_a_token_that_is_not_believed(
    bounds: dict[str, float], tokens: tuple[int, ...]
) -> None:
    draft = believed(*TREE, Budget(8, **bounds), Scheme.CHOSEN)  # type: ignore[arg-type]
    assert draft.tokens == tokens
    assert draft.scheme is Scheme.CHOSEN
    before = dict(zip(TREE[0], (None, None, 5, 7, 6), strict=True))
    assert draft.parents is not None
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        assert before[token] == (None if parent == -1 else draft.tokens[parent])
    sure = dict(zip(TREE[0], TREE[2], strict=True))
    assert draft.confidence == tuple(sure[token] for token in tokens)


def test_a_copy_is_as_sure_as_the_match_that_goes_on_to_it() -> None:
    draft = copied((5, 6, 7, 8), 2, Budget(3))
    assert (draft.tokens, draft.parents) == ((5, 6, 7), (-1, 0, 1))
    assert draft.confidence == (belief(2), belief(3), belief(4))
    assert copied((5, 6), 1, Budget(3, min_first_confidence=0.4)).tokens == ()
    assert copied((5, 6), 1, Budget(0)).tokens == ()
