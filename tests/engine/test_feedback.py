"""What sessions and controllers hear of a round, auxiliary rows included."""

from __future__ import annotations

import torch

from paceline.core.drafts import Auxiliary, Budget, Draft, Outcome, Scheme
from paceline.core.events import Round
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need, Opening
from paceline.core.view import TargetView
from paceline.engine.loop import Request, decode
from paceline.sampling.noise import SeededNoise
from paceline.testing.table import TableTarget
from paceline.verifiers.coupling import CouplingVerifier


def told_of(needs: frozenset[str]) -> tuple[list[Committed], list[Outcome], list[Round]]:
    committed: list[Committed] = []
    outcomes: list[Outcome] = []

    class Session:
        def observe(self, told: Committed) -> None:
            committed.append(told)

        def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
            aux = Auxiliary((2,), (1,), torch.tensor([[1, 0, 0, 0, 1]], dtype=torch.bool))
            return Draft((1, 2, 0), (-1, -1, 1), scheme=Scheme.CHOSEN, aux=aux)

        def close(self) -> None: ...

    class Watching:
        name = "watching"

        def open(self, opening: Opening = Opening()) -> Watching:
            return self

        def budget(self) -> Budget:
            return Budget(2)

        def observe(self, outcome: Outcome) -> None:
            outcomes.append(outcome)

    class Told:
        name = "told"

        def __init__(self) -> None:
            self.needs = needs

        def open(self, target: TargetView, capacity: int) -> Session:
            return Session()

    # Behind 0 comes 2, behind 2 comes 0, so that the second branch is right.
    target = TableTarget(torch.tensor([[0.0, 0, 1], [1, 0, 0], [1, 0, 0]]).double())
    request = Request(
        prompt=[0],
        drafter=Told(),
        controller=Watching(),
        verifier=CouplingVerifier(),
        noise=SeededNoise(0),
        max_tokens=4,
    )
    events = decode(target, [request])
    return committed, outcomes, [event for event in events if isinstance(event, Round)]


def test_the_draft_and_where_asked_for_the_logits_of_every_row() -> None:
    committed, _, rounds = told_of(frozenset({Need.LOGITS}))
    assert committed[0] == Committed((0,))
    told = committed[1]
    assert (told.tokens, told.path) == ((2, 0, 2), (1, 2))
    assert told.draft is not None
    assert told.draft.tokens == (1, 2, 0)
    assert told.logits is not None
    # Root, three nodes, and the auxiliary row behind (0, 2).
    assert told.logits.argmax(dim=-1).tolist() == [2, 0, 0, 2, 0]
    assert rounds[0].num_rows == 5


def test_no_logits_unless_asked_for() -> None:
    assert all(told.logits is None for told in told_of(frozenset())[0])


def test_a_controller_hears_what_was_tested_and_what_it_took() -> None:
    _, (first, last), rounds = told_of(frozenset())
    assert (first.num_accepted_tokens, first.num_tested_tokens) == (2, 2)
    assert (first.pass_rows, first.num_sequences, first.context) == (5, 1, 1)
    assert (first.prefill_rows, rounds[0].pass_rows, rounds[0].num_rows) == (0, 5, 5)
    assert first.target_seconds == rounds[0].target_seconds > 0
    # Room for one more token: nothing was drafted, so nothing was tested.
    assert (len(last.draft), last.budget.num_draft_tokens, last.num_tested_tokens) == (0, 0, 0)
