"""Whether a draft model reads the text: for whole answers, everything a user waits for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.controllers.auto import AutoController
from paceline.controllers.reading import (
    CONTEXT_ODDS,
    WINDOW,
    Reader,
    Reading,
    Savings,
    choose_reading,
    expected_rest,
)
from paceline.core.target import Opening, TargetInfo
from paceline.errors import InvalidInput
from paceline.testing.simulation import Costs, Script, simulate

PROMPTS, ANSWERS = (20, 100, 450, 1100, 2000), (16, 64, 200)
TARGET = TargetInfo("target", 1000, num_weights=1300)
"""Beside a draft model of 350 weights, as Qwen2.5-Coder 1.5B is beside 0.5B."""
COSTS = Costs(row=0.02, token=0.2, catch_up=0.008, prefill=0.03)
RATES = (0.6, 0.7, 0.8, 0.9)
"""Acceptance by task, of a draft model that sees all of the text: that pair has .69 to .93."""
POOR = 0.45
"""That of a draft model which is hardly worth its time with all of the text, and not without."""


def seconds(
    controller: AutoController,
    prompt: int,
    answer: int,
    rate: float,
    seed: int,
    context_odds: float = CONTEXT_ODDS,
) -> float:
    """A whole answer, the prompt included. A short context is right less often."""
    odds = rate / (1 - rate) / context_odds
    whole = Script.blind(lambda t: rate, answer + 40, seed)
    short = Script.blind(lambda t: odds / (1 + odds), answer + 40, seed)
    script = Script(whole.right, right_of_short=short.right)
    return simulate(
        controller,
        script,
        COSTS,
        num_tokens=answer,
        seed=seed,
        opening=Opening(prompt, answer, answer, TARGET),
        disturbed=lambda number, chance: (
            math.exp(0.1 * chance.gauss(0, 1)),
            math.exp(0.1 * chance.gauss(0, 1)),
        ),
    ).seconds


def gain(
    controller: AutoController,
    prompt: int,
    answer: int,
    rate: float,
    context_odds: float = CONTEXT_ODDS,
) -> float:
    """The geometric mean of plain over its time, of 8 texts."""
    plain = COSTS.prefill * prompt + answer
    return mean(
        [plain / seconds(controller, prompt, answer, rate, s, context_odds) for s in range(8)]
    )


def mean(values: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


AUTO = AutoController(draft_weights=350)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_whole_answers_are_not_slower_than_plain_ones(prompt: int, answer: int) -> None:
    gains = [gain(AUTO, prompt, answer, rate) for rate in RATES]
    assert min(gains) > 0.98
    assert mean(gains) > 1.0
    # It takes a draft to find out that a draft model is poor: three tokens and 64 that are read are
    # 1.1 passes, which are up to 4 % of an answer of 16 tokens.
    assert gain(AUTO, prompt, answer, POOR) > (0.96 if answer == 16 else 0.99)


@pytest.mark.parametrize("answer", [16, 64])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_short_answers_that_the_draft_model_mostly_misses_lose_little(
    prompt: int, answer: int
) -> None:
    """Most of these tasks are not worth a draft, one is, and only a draft can find out which.

    Alone, a rate of .2 loses up to 11 % of an answer of 16 tokens: one draft, with what is read for
    it, is 1.1 passes of 16.
    """
    assert mean([gain(AUTO, prompt, answer, rate) for rate in (0.2, 0.3, 0.4, 0.7)]) > 0.97


@pytest.mark.parametrize("context_odds", [1.0, 4.0])
def test_a_wrong_guess_of_what_a_short_context_loses_costs_little(context_odds: float) -> None:
    """From no loss at all to twice the odds that are assumed, over short answers."""
    cases = [(prompt, answer, rate) for prompt in PROMPTS for answer in (16, 64) for rate in RATES]
    gains = [gain(AUTO, *case, context_odds) for case in cases]
    assert min(gains) > 0.95
    assert mean(gains) > 1.2


def test_a_long_prompt_is_read_for_a_long_answer_and_its_end_alone_for_a_short_one() -> None:
    def first_limit(prompt: int, answer: int) -> int | None:
        budget = AUTO.open(Opening(prompt, answer, answer, TARGET)).budget()
        assert budget.num_draft_tokens > 0
        return budget.max_catch_up

    assert first_limit(20, 16) is None
    assert first_limit(1100, 16) == WINDOW
    assert first_limit(1100, 400) is None


def test_what_drafts_without_a_model_reads_nothing() -> None:
    budget = AutoController().open(Opening(2000, 4, 4, TARGET)).budget()
    assert budget.num_draft_tokens > 0
    assert budget.max_catch_up is None


def test_a_price_from_a_table_decides_as_well() -> None:
    def asked(catch_up: float) -> tuple[int, int | None]:
        costs = {"target": {1: 1.0, 9: 1.2}, "draft": 0.2, "catch_up": catch_up}
        budget = AutoController(costs=costs).open(Opening(1000, 32, 32)).budget()
        return budget.num_draft_tokens, budget.max_catch_up

    assert asked(0.0001)[1] is None
    assert asked(0.02)[1] == WINDOW
    assert asked(0.5)[0] == 0


def test_the_rest_of_an_answer() -> None:
    assert expected_rest(Opening(max_tokens=16), 4) == 12
    assert expected_rest(Opening(), 0) == 64
    assert expected_rest(Opening(max_tokens=4000), 300) == 364
    assert expected_rest(Opening(max_tokens=200, min_tokens=200), 0) == 200
    assert expected_rest(Opening(max_tokens=5), 5) == 1


def test_a_reader_follows_what_a_draft_model_does() -> None:
    reader = Reader(1000)
    assert reader.missing(None) == 1000
    assert reader.read(WINDOW) == WINDOW
    assert reader.is_partial
    reader.add(10)
    assert reader.usual_limit() == WINDOW
    assert reader.read(WINDOW) == 10
    assert reader.is_partial
    reader.add(5)
    assert reader.read(None) == 1015
    assert not reader.is_partial


def test_a_short_context_is_left_when_all_of_the_text_is_worth_reading() -> None:
    reader = Reader(500)
    reader.read(WINDOW)
    reader.add(4)
    proven = Savings(all=0.5, part=0.3, num_tested=20)
    assert choose_reading(reader, 0.01, 20, proven) == Reading(WINDOW, 0.04)
    assert choose_reading(reader, 0.01, 200, proven) == Reading(None, pytest.approx(5.04))


@pytest.mark.parametrize("given", ["many", -1, {"model": "x"}], ids=str)
def test_weights_that_cannot_be_are_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="draft_weights must be counts"):
        AutoController(draft_weights=given)


def test_weights_of_a_real_draft_model_are_counts_too() -> None:
    """A model of half a billion weights is far beyond any number of seconds."""
    weights = {"ngram": 0, "model": 357_826_560}
    controller = AutoController(drafters=("ngram", "model"), draft_weights=weights)
    assert controller.open().budget().longest > 0
