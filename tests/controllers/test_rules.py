"""The field's rules for the draft length: their published values, and what they owe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from paceline.controllers.adaedl import AdaEDLController
from paceline.controllers.adaptive_threshold import AdaptiveThresholdController
from paceline.controllers.bandit import BanditController, radius
from paceline.controllers.confidence import ConfidenceController
from paceline.controllers.heuristic import HeuristicController
from paceline.core.drafts import Budget, Draft, Outcome
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.sampling.entropy import acceptance_bound
from paceline.testing import check_controller
from paceline.testing.simulation import Costs, Script, simulate


def told(session: Any, drafted: int, accepted: int) -> Budget:
    """The budget of the next round, after one in which so many of so many were accepted."""
    draft = Draft((0,) * drafted)
    asked = session.budget()
    tested = min(accepted + 1, drafted)
    session.observe(Outcome(asked, draft, accepted, tested, 0.1, 1.0, 0.0, 1, drafted + 1, 9))
    found: Budget = session.budget()
    return found


def lengths_after(session: Any, shares: Sequence[tuple[int, int]]) -> list[int]:
    return [told(session, drafted, accepted).num_draft_tokens for drafted, accepted in shares]


@pytest.mark.parametrize("name", plugins.names("controller"))
def test_every_controller_keeps_the_contract(name: str) -> None:
    check_controller(plugins.find("controller", name).make({}))


def test_the_heuristic_schedule() -> None:
    session = HeuristicController(5).open()
    shares = [(5, 5), (7, 7), (9, 3), (8, 8), (0, 0)]
    assert lengths_after(session, shares) == [7, 9, 8, 10, 10]
    down = HeuristicController(2).open()
    assert lengths_after(down, [(2, 0), (1, 0), (1, 0)]) == [1, 1, 1]
    assert lengths_after(HeuristicController(5, longest=6).open(), [(5, 5), (6, 6)]) == [6, 6]


def test_the_confidence_threshold() -> None:
    session = ConfidenceController().open()
    assert session.budget() == told(session, 4, 0) == Budget(20, min_confidence=0.4)


def test_the_adaptive_threshold() -> None:
    """From .8, with 3 of 4, 8 of 8, 2 of 5, 5 of 5 and 0 of 1 accepted."""
    session = AdaptiveThresholdController().open()
    found = [
        told(session, drafted, accepted).min_confidence
        for drafted, accepted in ((4, 3), (8, 8), (5, 2), (5, 5), (1, 0))
    ]
    assert found == pytest.approx([0.801, 0.802, 0.803, 0.804, 0.805], abs=1e-9)
    assert session.budget().num_draft_tokens == 8


def test_the_entropy_bounds() -> None:
    laws = ([0.25] * 4, [0.9, 0.05, 0.05], [0.6, 0.3, 0.1])
    found = [acceptance_bound(torch.tensor(law, dtype=torch.float64)) for law in laws]
    assert found == pytest.approx([0.4734, 0.7191, 0.5762], abs=5e-5)


def test_lambda_follows_the_acceptance() -> None:
    session = AdaEDLController(bound=0.5).open()
    rising = [told(session, 4, 0).entropy_bound for _ in range(5)]
    assert rising == sorted(rising)
    assert rising[0] > 0.5
    falling = [told(session, 4, 4).entropy_bound for _ in range(20)]
    assert falling[-1] < max(falling)


def test_lambda_falls_where_nothing_is_tried_any_more() -> None:
    session = AdaEDLController(bound=1.0).open()
    assert told(session, 0, 0).entropy_bound < 1.0


class TestBandit:
    def test_each_arm_once_and_then_the_best(self) -> None:
        session = BanditController((1, 3), cost=0.0).open()
        assert session.budget() == Budget(1)
        assert told(session, 1, 1) == Budget(3)
        counts = {1: 0, 3: 0}
        for _ in range(300):
            length = session.budget().num_draft_tokens
            counts[length] += 1
            told(session, length, length)
        assert counts[3] > 4 * counts[1] > 0

    def test_drafters_are_arms(self) -> None:
        session = BanditController((0, 2), drafters=("one", "two")).open()
        asked = [session.budget()]
        asked += [told(session, n, 0) for n in (0, 2)]
        assert asked == [Budget(0), Budget(2, drafter="one"), Budget(2, drafter="two")]

    def test_the_radius(self) -> None:
        expected = 0.5 * math.sqrt(3 / 4 * (1 + 2 * math.log(5 * 9 * math.sqrt(3) / 0.1)))
        assert radius(2, 3, 5, 1.0, 0.1) == pytest.approx(expected)

    def test_it_finds_the_better_arm(self) -> None:
        script = Script.blind(lambda t: 0.9, 3000, 0)
        run = simulate(
            BanditController((1, 6), cost=0.05), script, Costs(token=0.05), num_tokens=2800
        )
        assert run.lengths.count(6) > 0.6 * len(run.lengths)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HeuristicController(0),
        lambda: HeuristicController(9, longest=8),
        lambda: ConfidenceController(-1),
        lambda: ConfidenceController(threshold=1.5),
        lambda: AdaptiveThresholdController(aim=2),
        lambda: AdaEDLController(bound=-0.1),
        lambda: BanditController(()),
        lambda: BanditController((9,), num_draft_tokens=8),
        lambda: BanditController((-1,)),
        lambda: BanditController("123"),
        lambda: BanditController(delta=0),
    ],
)
def test_settings_that_cannot_be(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()
