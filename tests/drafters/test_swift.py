"""SWIFT: the search for a skip set within a request, and that the output stays the target's."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.drafters.swift import SwiftDrafter, SwiftSession, random_sets
from paceline.drafting.self_draft import every_second, layers_of
from paceline.errors import InvalidInput
from paceline.testing import check_drafter
from paceline.verifiers.coupling import CouplingVerifier
from tests.rigged import markov, run
from tests.spare_layers import LAYERS, lean, rate, shallow
from tests.tiny_models import tokens_of

WARM = SamplingParams(temperature=1.0)
FEW = SamplingParams(temperature=1.0, top_k=2)
PROMPT = tokens_of(9)
EAGER: dict[str, Any] = {"window": 4, "min_confidence": 0.0}


class Follower:
    """A session whose target commits what it is told, token by token."""

    def __init__(self, drafter: SwiftDrafter) -> None:
        self.target = lean()
        self.slot = self.target.open(100)
        prefill(self.target, self.slot, PROMPT[:-1])
        self.session: SwiftSession = drafter.open(self.target.view(self.slot), 100)
        self.session.observe(Committed(PROMPT))
        self.root = PROMPT[-1]

    def go_on(self) -> None:
        scores = self.target.score([Work(self.slot, [self.root], Draft())])[0]
        self.target.commit(self.slot, ())
        self.root = int(scores.logits[0].argmax())
        self.session.observe(Committed((self.root,), Draft()))


@pytest.mark.parametrize("k", [1, 3, 8])
def test_greedy_is_plain_greedy_while_it_searches(k: int) -> None:
    plain = run(lean(), PROMPT, max_tokens=60)
    found = run(lean(), PROMPT, SwiftDrafter(**EAGER), k=k, max_tokens=60)
    assert found.tokens == plain.tokens
    assert 0.0 < rate(found) < 1.0, "both acceptance and rejection happen"


@pytest.mark.parametrize("settings", [{"window": 1, "min_confidence": 0.3}, {}], ids=str)
def test_it_keeps_its_contract(settings: dict[str, Any]) -> None:
    check_drafter(SwiftDrafter(**settings), target=shallow(), params=FEW)


def test_coupled_tokens_are_those_of_plain_decoding() -> None:
    options: dict[str, Any] = {"params": WARM, "max_tokens": 40, "verifier": CouplingVerifier()}
    found = run(lean(), PROMPT, SwiftDrafter(**EAGER), **options)
    assert found.tokens == run(lean(), PROMPT, **options).tokens
    assert rate(found) > 0.0


class TestSearch:
    def test_it_begins_with_every_second_layer_and_only_gets_better(self) -> None:
        follower = Follower(SwiftDrafter(**EAGER, good_enough=1.0))
        session = follower.session
        scores = []
        for number in range(40):
            if number < 4:
                assert session.skip == every_second(LAYERS)
                assert session.tries == 0
            follower.go_on()
            if session.score is not None:
                scores.append(session.score)
        assert scores == sorted(scores)
        assert scores[-1] > scores[0], "no try was better"
        assert session.skip != every_second(LAYERS)
        assert session.tries == 37

    def test_its_score_is_the_agreement_of_a_draft_on_the_window(self) -> None:
        """The oracle runs the layers token by token behind the prompt alone."""
        follower = Follower(SwiftDrafter(**EAGER, good_enough=1.0))
        for _ in range(12):
            follower.go_on()
        answer = follower.session._draft.committed[len(PROMPT) :]
        slot = follower.target.open(40)
        prefill(follower.target, slot, PROMPT[:-1])
        own = layers_of(follower.target.view(slot), "test")
        own.start(follower.session.skip)
        fed = [PROMPT[-1], *answer[:3]]
        hits = [int(own.run([t]).argmax()) == a for t, a in zip(fed, answer[:4], strict=True)]
        assert follower.session.score == sum(hits) / 4

    @pytest.mark.parametrize(
        ("settings", "tries"),
        [
            ({"good_enough": 0.0}, None),
            ({"max_tries": 3}, 3),
            ({"max_failures": 0, "good_enough": 1.0}, None),
            ({"window": 200}, 0),
        ],
        ids=str,
    )
    def test_when_it_ends(self, settings: dict[str, Any], tries: int | None) -> None:
        follower = Follower(SwiftDrafter(**{**EAGER, **settings}))
        for _ in range(30):
            follower.go_on()
        session = follower.session
        before = session.tries
        assert before < 26 if tries is None else before == tries
        if "good_enough" in settings and settings["good_enough"] == 0.0:
            assert session.score is not None
            assert session.score > 0.0
        if "max_failures" in settings:
            assert session.failures == 1

    @pytest.mark.parametrize("num_layers", [1, 2, 3, 6, 30])
    def test_random_sets_spare_the_first_and_the_last_layer(self, num_layers: int) -> None:
        sets = list(islice(random_sets(num_layers, 0.45), 50))
        for skip in sets:
            assert len(skip.attention) + len(skip.mlp) == int(2 * max(num_layers - 2, 0) * 0.45)
            assert not (skip.attention | skip.mlp) & {0, num_layers - 1}
        assert sets == list(islice(random_sets(num_layers, 0.45), 50))
        assert num_layers < 6 or len(set(sets)) > 10

    def test_requests_know_nothing_of_each_other(self) -> None:
        drafter = SwiftDrafter(**EAGER)
        first = run(lean(), PROMPT, drafter, max_tokens=40)
        again = run(lean(), PROMPT, drafter, max_tokens=40)
        assert [r.num_draft_tokens for r in first.rounds] == [
            r.num_draft_tokens for r in again.rounds
        ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skip_ratio": 2}, "skip_ratio must be a finite number"),
        ({"window": 0}, "window must be at least 1"),
        ({"max_tries": -1}, "max_tries must be at least 0"),
        ({"min_confidence": "high"}, "min_confidence must be a number"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SwiftDrafter(**settings)


def test_a_target_that_does_not_give_its_layers() -> None:
    with pytest.raises(InvalidInput, match="'swift' needs layers of the target"):
        run(markov(4, 0), (1, 2), SwiftDrafter(), max_tokens=4)
