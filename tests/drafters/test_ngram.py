"""Prompt lookup against a plain scan."""

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
from paceline.drafters.ngram import NgramDrafter
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.testing import check_drafter

INFO = TargetView(TargetInfo("table", vocab_size=10))


def propose(drafter: NgramDrafter, rounds: Sequence[Sequence[int]], count: int) -> Draft:
    session = drafter.open(INFO, 1000)
    for tokens in rounds:
        session.observe(Committed(tuple(tokens)))
    return session.propose(Budget(count), SamplingWarp(SamplingParams()), SeededNoise(0))


def scan(drafter: NgramDrafter, text: list[int], count: int) -> list[int]:
    """What the method says, by looking at every place."""
    for n in range(drafter.max_ngram, drafter.min_ngram - 1, -1):
        if n > len(text):
            continue
        gram = text[len(text) - n :]
        for source in (text, *map(list, drafter.references)):
            places = [i for i in range(n, len(source)) if source[i - n : i] == gram]
            if not places:
                continue
            start = places[-1] if drafter.match == "newest" else places[0]
            if source is not text:
                return source[start : start + count]
            # A copy that reaches the end goes on into what it has written.
            longer = list(text)
            for i in range(count):
                longer.append(longer[start + i])
            return longer[len(text) :]
    return []


tokens = st.lists(st.integers(0, 3), max_size=12)


@given(
    st.lists(tokens, min_size=1, max_size=4),
    st.lists(tokens, max_size=2),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from(["newest", "oldest"]),
    st.integers(0, 8),
)
def test_the_draft_is_what_a_scan_finds(
    rounds: list[list[int]],
    references: list[list[int]],
    min_ngram: int,
    more: int,
    match: Any,
    count: int,
) -> None:
    drafter = NgramDrafter(
        max_ngram=min_ngram + more, min_ngram=min_ngram, match=match, references=references
    )
    draft = propose(drafter, rounds, count)
    assert list(draft.tokens) == scan(drafter, [t for r in rounds for t in r], count)
    assert draft.probs is None
    assert draft.is_chain


def test_newest_and_oldest_match() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    assert propose(NgramDrafter(), [text], 2).tokens == (4, 1)
    assert propose(NgramDrafter(match="oldest"), [text], 2).tokens == (3, 1)


def test_a_longer_match_in_a_reference_beats_a_shorter_one_in_the_text() -> None:
    drafter = NgramDrafter(references=((5, 6, 7, 8),))
    assert propose(drafter, [[7, 1, 5, 6, 7]], 2).tokens == (8,)
    assert propose(drafter, [[7, 1, 9, 9, 7]], 2).tokens == (1, 9)
    assert propose(drafter, [[0, 0, 5, 6, 7, 1, 5, 6, 7]], 1).tokens == (1,)


@pytest.mark.parametrize("period", [1, 2, 5])
def test_a_text_that_repeats_is_drafted_in_full(period: int) -> None:
    text = [*range(period)] * 4
    assert propose(NgramDrafter(), [text], 8).tokens == tuple(i % period for i in range(8))


def test_a_step_costs_the_same_after_a_long_text() -> None:
    """The index is asked once for each n, and never walks the text."""
    session = NgramDrafter(max_ngram=3).open(INFO, 10**6)
    session.observe(Committed(tuple(i * i % 7 for i in range(5000))))
    asked: list[tuple[int, ...]] = []
    lookup = session._own.after
    session._own.after = lambda gram: asked.append(gram) or lookup(gram)  # type: ignore[method-assign, func-returns-value]
    session.propose(Budget(4), SamplingWarp(SamplingParams()), SeededNoise(0))
    assert 1 <= len(asked) <= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_ngram": 0}, "min_ngram"),
        ({"min_ngram": 3, "max_ngram": 2}, "max_ngram must be at least 3"),
        ({"max_ngram": 2.0}, "max_ngram must be a whole number"),
        ({"match": "best"}, "'newest' or 'oldest'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        NgramDrafter(**options)


def test_a_reference_of_another_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="holds token 10; the vocabulary of table is 0 to 9"):
        NgramDrafter(references=((1, 2), (3, 10))).open(INFO, 10)


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_ngram": 2, "match": "oldest"}, {"references": ((1, 2, 0, 1, 1),)}],
    ids=str,
)
def test_it_keeps_the_contract_and_the_distribution_of_the_output(settings: dict[str, Any]) -> None:
    check_drafter(NgramDrafter(**settings), text_alone=True)


class TestConfidence:
    TEXT = (1, 2, 3, 4, 5, 9, 1, 2, 3, 4)

    def draft(self, budget: Budget, text: Sequence[int] = TEXT, **settings: Any) -> Draft:
        session = NgramDrafter(**settings).open(INFO, 1000)
        session.observe(Committed(tuple(text)))
        return session.propose(budget, SamplingWarp(SamplingParams()), SeededNoise(0))

    def test_it_grows_with_the_match_and_along_the_draft(self) -> None:
        draft = self.draft(Budget(3))
        assert draft.tokens == (5, 9, 1)
        # Four tokens match, though no more than three are looked up.
        assert draft.confidence == (4 / 6, 5 / 7, 6 / 8)
        assert self.draft(Budget(1), (7, 4, 5, 8, 4)).confidence == (1 / 3,)

    def test_of_a_reference(self) -> None:
        draft = self.draft(Budget(1), (8, 2, 3, 4), references=((1, 2, 3, 4, 6),), min_ngram=2)
        assert (draft.tokens, draft.confidence) == ((6,), (3 / 5,))

    def test_a_draft_ends_after_a_token_of_little_confidence(self) -> None:
        assert len(self.draft(Budget(4, min_confidence=5 / 7))) == 1
        assert len(self.draft(Budget(4, min_path_confidence=0.45))) == 3  # .67, .48, .36
        assert len(self.draft(Budget(4, min_path_confidence=0.3))) == 4

    def test_or_does_not_begin(self) -> None:
        assert len(self.draft(Budget(4, min_first_confidence=0.7))) == 0
        assert len(self.draft(Budget(4, min_first_confidence=0.6))) == 4
