"""A predicted answer, and the ways in which the real one differs from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.drafts import Budget
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.predicted_output import PredictedOutputDrafter
from paceline.drafting.stores.ngrams import NgramPlaces
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.testing.drafters import check_drafter
from paceline.testing.table import TableTarget
from tests.rigged import Run, run

VOCAB = 400
PROMPT = [1, 2, 3]


def says(answer: list[int]) -> TableTarget:
    """A target that answers so, without doubt."""

    def law(tokens: tuple[int, ...]) -> Tensor:
        one_hot = torch.zeros(VOCAB, dtype=torch.float64)
        one_hot[answer[len(tokens) - len(PROMPT)]] = 1
        return one_hot

    return TableTarget(law, vocab_size=VOCAB)


def answered(prediction: list[int], answer: list[int], k: int = 4) -> Run:
    drafter = PredictedOutputDrafter(tuple(prediction))
    found = run(says(answer), PROMPT, drafter, k=k, max_tokens=len(answer))
    assert list(found.tokens) == answer
    return found


def rounds(prediction: list[int], answer: list[int]) -> int:
    return len(answered(prediction, answer).rounds)


TEXT = list(range(100, 180))
"""All tokens differ, so that every place is known by one."""
PROSE = [token for i in range(40) for token in (100 + i, 5, 200 + i % 7)]
"""Every third token is the same, and others return."""


@pytest.mark.parametrize("k", [0, 1, 4, 9])
def test_an_answer_that_is_as_predicted_comes_in_the_fewest_rounds(k: int) -> None:
    assert len(answered(TEXT, TEXT, k).rounds) == -(-len(TEXT) // (k + 1))


@pytest.mark.parametrize("text", [TEXT, PROSE], ids=["distinct", "prose"])
@pytest.mark.parametrize("at", [0, 1, 33, 60])
@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("kind", ["insertion", "deletion", "replacement", "longer", "shorter"])
def test_an_edit_costs_a_few_rounds_and_no_more(
    text: list[int], at: int, length: int, kind: str
) -> None:
    new = list(range(300, 300 + length))
    answer = {
        "insertion": text[:at] + new + text[at:],
        "deletion": text[:at] + text[at + length :],
        "replacement": text[:at] + new + text[at + length :],
        "longer": text[:at] + new + [398, 399] + text[at + length :],
        "shorter": text[:at] + new + text[at + length + 2 :],
    }[kind]
    fewest = -(-len(answer) // 5)
    # One round a new token, one that breaks off, and two to find the place where words return.
    assert rounds(text, answer) <= fewest + length + 2 + 1 + (3 if text is PROSE else 0)


def test_a_replaced_token_costs_a_round_at_most() -> None:
    answer = TEXT.copy()
    answer[40] = 300
    assert rounds(TEXT, answer) <= -(-len(TEXT) // 5) + 1


def test_many_edits() -> None:
    answer = [300 + i if i % 20 == 10 else token for i, token in enumerate(TEXT)]
    assert rounds(TEXT, answer) <= 80 // 5 + 4


def test_a_block_that_moved_is_found() -> None:
    answer = TEXT[60:] + TEXT[:60]
    assert rounds(TEXT, answer) <= 16 + 12
    far = [*range(5, 100), *TEXT]
    assert rounds(far, far[90:] + far[:90]) <= 35 + 20


def test_an_answer_that_has_nothing_of_it_costs_one_draft() -> None:
    found = answered(TEXT, list(range(200, 240)))
    assert len(found.rounds) == 40
    assert sum(one.num_draft_tokens for one in found.rounds) <= 8


def test_a_new_paragraph_of_common_words_does_not_lead_away() -> None:
    """Single matches in the new text mislead for a while; the anchor stays."""
    new = [5 if i % 3 else 300 + i for i in range(40)]
    answer = PROSE[:60] + new + PROSE[60:]
    assert rounds(PROSE, answer) <= -(-len(PROSE) // 5) + 40 + 6


@given(
    st.lists(st.integers(0, 2), max_size=20),
    st.integers(0, 22),
    st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple),
)
def test_places_are_those_of_a_scan(text: list[int], place: int, gram: tuple[int, ...]) -> None:
    places = NgramPlaces(text, (1, 2, 3))
    n = len(gram)
    found = [i for i in range(n, len(text) + 1) if tuple(text[i - n : i]) == gram]
    assert places.from_on(gram, place) == min((i for i in found if i >= place), default=None)
    nearest = min(found, key=lambda i: (abs(i - place), -i), default=None)
    assert places.nearest(gram, place) == nearest


def test_the_budget_bounds_what_is_believed() -> None:
    session = PredictedOutputDrafter(tuple(TEXT)).open(TargetView(TargetInfo("table", VOCAB)), 100)
    warp, noise = SamplingWarp(SamplingParams()), SeededNoise(0)
    session.observe(Committed((1, 2)))
    careful = Budget(5, min_first_confidence=0.5)
    assert session.propose(careful, warp, noise).tokens == tuple(TEXT[:5])  # as the client says
    session.observe(Committed((TEXT[0], 300)))
    assert session.propose(careful, warp, noise).tokens == ()
    assert session.propose(Budget(2), warp, noise).tokens == tuple(TEXT[2:4])
    session.observe(Committed(tuple(TEXT[2:5])))
    draft = session.propose(careful, warp, noise)
    assert draft.tokens == tuple(TEXT[5:10])
    assert draft.confidence == (0.6, 4 / 6, 5 / 7, 6 / 8, 7 / 9)


def test_a_round_asks_a_few_times_however_long_the_prediction() -> None:
    drafter = PredictedOutputDrafter(tuple(i * i % 97 for i in range(5000)))
    session = drafter.open(TargetView(TargetInfo("table", VOCAB)), 10)
    asked: list[Any] = []
    for name in ("from_on", "nearest"):
        lookup = getattr(session._places, name)
        setattr(session._places, name, lambda *a, lookup=lookup: asked.append(a) or lookup(*a))
    for tokens in ((1,), (300,), (301,), (4,)):
        session.observe(Committed(tokens))
        session.propose(Budget(4), SamplingWarp(SamplingParams()), SeededNoise(0))
    assert 1 <= len(asked) <= 3 * 4


def test_it_keeps_the_contract() -> None:
    check_drafter(PredictedOutputDrafter((1, 2, 1, 2, 0, 1, 2, 2, 1)), text_alone=False)


@pytest.mark.parametrize(
    ("prediction", "message"),
    [((), "it is empty"), (3, "token ids"), ("text", "token ids"), ([1.5], "token ids")],
)
def test_what_is_no_prediction(prediction: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PredictedOutputDrafter(prediction)


def test_a_prediction_of_another_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the prediction holds token 10; the vocabulary of"):
        PredictedOutputDrafter((1, 10)).open(TargetView(TargetInfo("table", 10)), 10)
