"""`auto` in company, by tables of costs: lengths fall with the load and reach 0, and no clock runs.

A scripted machine: each session's draft is accepted token by token by a seeded chance, and a round
takes what the table says for its rows, and the drafts of all.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from paceline.controllers.auto import AutoController
from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Draft, Outcome
from paceline.core.protocols import Controller
from paceline.core.traits import traits_of

ROUNDS = 200
LINEAR = {1: 1.0, 65: 9.0}
"""An eighth of a pass for each further row."""
STEPPED = {1: 1.0, 16: 1.0, 17: 2.0, 64: 5.0}
"""Rows are free up to 16."""


class Ran(NamedTuple):
    """By sequence the mean length of the later drafts; the tokens of all, and the seconds."""

    lengths: list[float]
    tokens: int
    seconds: float

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def run(
    controllers: Sequence[Controller],
    target: Mapping[int, float],
    *,
    draft: float = 0.0,
    accepted: Sequence[float] = (0.8,),
    seed: int = 0,
) -> Ran:
    chance = random.Random(seed)
    table = AutoController(costs={"target": target, "draft": draft}).open()._pass  # type: ignore[attr-defined]
    sessions = [controller.open() for controller in controllers]
    follow = [traits_of(controller).follows_load for controller in controllers]
    drafted = [0] * len(sessions)
    tokens, seconds = 0, 0.0
    for number in range(ROUNDS):
        budgets = [session.budget() for session in sessions]
        drafts = [Draft(tuple(range(budget.num_draft_tokens))) for budget in budgets]
        rows = [one.num_rows for one in drafts]
        took = table(sum(rows))
        given = [n for n, follows in zip(rows, follow, strict=True) if not follows]
        seconds += took + draft * sum(len(one) for one in drafts)
        for place, session in enumerate(sessions):
            length, right = len(drafts[place]), 0
            while right < length and chance.random() < accepted[place % len(accepted)]:
                right += 1
            tokens += right + 1
            if number >= ROUNDS // 2:
                drafted[place] += length
            session.observe(
                Outcome(
                    budgets[place],
                    drafts[place],
                    num_accepted_tokens=right,
                    num_tested_tokens=min(right + 1, length),
                    draft_seconds=draft * length,
                    target_seconds=took,
                    verify_seconds=0.0,
                    num_sequences=len(sessions),
                    pass_rows=sum(rows),
                    context=number,
                    num_set=len(given),
                    set_rows=sum(given),
                )
            )
    return Ran([total / (ROUNDS - ROUNDS // 2) for total in drafted], tokens, seconds)


def auto(target: Mapping[int, float], draft: float = 0.0) -> AutoController:
    return AutoController(costs={"target": target, "draft": draft})


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("draft", [0.0, 0.05])
def test_lengths_fall_as_the_batch_grows_and_reach_0_in_time(draft: float) -> None:
    """And at no size is it slower than plain decoding by more than its probes."""
    found = {}
    for size in (1, 2, 4, 8, 16, 64):
        ran = run([auto(LINEAR, draft)] * size, LINEAR, draft=draft)
        plain = run([FixedController(0)] * size, LINEAR)
        found[size] = mean(ran.lengths)
        assert ran.speed >= 0.98 * plain.speed, size
    sizes = list(found)
    assert found[1] > 2
    assert found[64] < 0.1
    for smaller, larger in itertools.pairwise(sizes):
        assert found[larger] <= found[smaller] + 0.1


def test_where_all_draft_alike_none_takes_the_room_that_all_see() -> None:
    """Eight rows are free and eight sequences see them: a token each, and not eight for one."""
    ran = run([auto(STEPPED)] * 8, STEPPED)
    plain = run([FixedController(0)] * 8, STEPPED)
    assert 0.5 < mean(ran.lengths) < 1.5
    assert ran.speed > 1.4 * plain.speed


def test_beside_plain_neighbours_one_takes_the_room_that_there_is() -> None:
    """Requests that ask for no drafts leave eight rows free for the one that drafts."""
    ran = run([auto(STEPPED), *[FixedController(0)] * 7], STEPPED)
    assert 6 <= ran.lengths[0] <= 9
    assert set(ran.lengths[1:]) == {0.0}


def test_a_neighbour_with_long_drafts_shortens_those_of_nobody() -> None:
    """Its rows are there in any case: of a longer pass, what others add is a smaller part."""
    beside_long = run([*[auto(LINEAR)] * 3, FixedController(20)], LINEAR)
    beside_plain = run([*[auto(LINEAR)] * 3, FixedController(0)], LINEAR)
    assert min(beside_long.lengths[:3]) >= max(beside_plain.lengths[:3]) - 0.5
    assert beside_long.lengths[3] == 20


def test_a_neighbour_whose_drafts_fail_does_not_shorten_those_of_others() -> None:
    """Acceptance is learnt by each for itself."""
    ran = run([auto(LINEAR)] * 2, LINEAR, accepted=(0.9, 0.1))
    assert ran.lengths[0] > 2
    assert ran.lengths[1] < 0.5
