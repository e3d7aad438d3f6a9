"""Inference with reference against a plain scan of the documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.drafts import Budget, Draft
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.reference import ReferenceDrafter
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.testing.drafters import check_drafter

INFO = TargetView(TargetInfo("table", vocab_size=10))
WARP, NOISE = SamplingWarp(SamplingParams()), SeededNoise(0)


def propose(drafter: ReferenceDrafter, rounds: Sequence[Sequence[int]], count: int) -> Draft:
    session = drafter.open(INFO, 1000)
    for tokens in rounds:
        session.observe(Committed(tuple(tokens)))
    return session.propose(Budget(count), WARP, NOISE)


def scan(drafter: ReferenceDrafter, text: list[int], count: int) -> list[int]:
    """What the method says, by looking at every place."""
    for n in range(drafter.max_ngram, drafter.min_ngram - 1, -1):
        gram = text[len(text) - n :] if n <= len(text) else None
        for document in map(list, drafter.references):
            for place in range(n, len(document)):
                if document[place - n : place] == gram:
                    return document[place : place + count]
    return []


tokens = st.lists(st.integers(0, 3), max_size=12)


@given(
    st.lists(tokens, min_size=1, max_size=4),
    st.lists(tokens, min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 8),
)
def test_the_draft_is_what_a_scan_finds(
    rounds: list[list[int]],
    references: list[list[int]],
    min_ngram: int,
    more: int,
    count: int,
) -> None:
    drafter = ReferenceDrafter(references, max_ngram=min_ngram + more, min_ngram=min_ngram)  # type: ignore[arg-type]
    draft = propose(drafter, rounds, count)
    assert list(draft.tokens) == scan(drafter, [t for r in rounds for t in r], count)
    assert draft.probs is None
    assert draft.is_chain


def test_the_text_itself_is_not_looked_at() -> None:
    assert propose(ReferenceDrafter(((7, 8),)), [[1, 2, 1]], 4).tokens == ()


def test_the_first_place_counts_and_the_longest_match_before_it() -> None:
    drafter = ReferenceDrafter(((1, 2, 3), (5, 1, 4, 1, 9)))
    assert propose(drafter, [[1]], 1).tokens == (2,)
    assert propose(drafter, [[5, 1]], 2).tokens == (4, 1)


def test_it_keeps_the_contract() -> None:
    check_drafter(ReferenceDrafter(((1, 2, 0, 1, 1), (2, 2, 1))), text_alone=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": ()}, "at least one reference"),
        ({"references": 3}, "sequences of token ids"),
        ({"references": [["a"]]}, "sequences of token ids"),
        ({"references": [[1]], "min_ngram": 0}, "min_ngram"),
        ({"references": [[1]], "max_ngram": 0}, "max_ngram must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ReferenceDrafter(**options)


def test_a_reference_of_another_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="holds token 10; the vocabulary of table is 0 to 9"):
        ReferenceDrafter(((1, 2), (3, 10))).open(INFO, 10)
