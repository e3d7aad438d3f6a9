"""The law of the output with a controller inside, by enumeration over every outcome of chance."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from paceline.controllers.adaedl import AdaEDLController
from paceline.controllers.adaptive_threshold import AdaptiveThresholdController
from paceline.controllers.auto import AutoController
from paceline.controllers.bandit import BanditController
from paceline.controllers.confidence import ConfidenceController
from paceline.controllers.heuristic import HeuristicController
from paceline.core.drafts import Budget, Outcome
from paceline.core.protocols import Controller, Drafter
from paceline.core.sampling import SamplingParams
from paceline.core.target import Opening
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.verifiers.token import TokenVerifier
from tests.rigged import Soft, assert_same_law, law_of_run, markov

PROMPT = (1, 2, 1)
TARGET = markov(3, 21, scale=1.5)
DRAFT = markov(3, 22, scale=1.5)
SAMPLING = SamplingParams(temperature=1.0)


class Scripted:
    """A controller whose clock is a script: what a round takes follows from rows and tokens."""

    name = "scripted"

    def __init__(self, inner: Controller, *, row: float, token: float) -> None:
        self.inner, self.row, self.token = inner, row, token
        self.lengths: set[int] = set()

    def open(self, opening: Opening = Opening()) -> Any:
        outer, session = self, self.inner.open(opening)

        class Session:
            def budget(self) -> Budget:
                found = session.budget()
                outer.lengths.add(found.num_draft_tokens)
                return found

            def observe(self, outcome: Outcome) -> None:
                # A clock may depend on all that is past, what was accepted included.
                jitter = random.Random(f"{outcome.context} {outcome.num_accepted_tokens}")
                session.observe(
                    outcome._replace(
                        draft_seconds=outer.token * len(outcome.draft),
                        target_seconds=(1 + outer.row * outcome.pass_rows) * jitter.uniform(0.7, 2),
                        verify_seconds=0.0,
                    )
                )

        return Session()


def soft(text: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).roll(text[-1])


DRAFTERS: dict[str, Drafter] = {
    "soft": Soft(soft),
    "draft model": ModelDrafter(DRAFT),
    "greedy draft": ModelDrafter(DRAFT, params=SamplingParams()),
    "cascade": CascadeDrafter((NgramDrafter(max_ngram=2), ModelDrafter(DRAFT))),
}


OTHERS: dict[str, Controller] = {
    "heuristic": HeuristicController(1),
    "confidence": ConfidenceController(3),
    "adaedl": AdaEDLController(3, bound=0.5, step=0.1),
    "adaptive-threshold": AdaptiveThresholdController(3, threshold=0.5),
    "bandit": BanditController((0, 1, 3)),
}


@pytest.mark.parametrize("controller", OTHERS)
@pytest.mark.parametrize("drafter", ["draft model", "greedy draft"])
def test_so_do_the_rules_of_the_literature(controller: str, drafter: str) -> None:
    options: dict[str, Any] = {"params": SAMPLING, "max_tokens": 4}
    plain = law_of_run(TARGET, PROMPT, None, **options)
    timed = Scripted(OTHERS[controller], row=0.02, token=0.1)
    found = law_of_run(TARGET, PROMPT, DRAFTERS[drafter], controller=timed, **options)
    assert_same_law(found, plain, atol=1e-10)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("row", "token"), [(0.02, 0.1), (0.5, 0.5)], ids=["cheap", "dear"])
def test_auto_keeps_the_law(drafter: str, row: float, token: float) -> None:
    names = getattr(DRAFTERS[drafter], "names", ())
    controller = Scripted(AutoController(3, drafters=names), row=row, token=token)
    options: dict[str, Any] = {
        "params": SAMPLING,
        "max_tokens": 5,
        "verifier": TokenVerifier(),
    }
    plain = law_of_run(TARGET, PROMPT, None, **options)
    found = law_of_run(TARGET, PROMPT, DRAFTERS[drafter], controller=controller, **options)
    assert_same_law(found, plain, atol=1e-10)
    assert len(controller.lengths) > 1, "the controller took but one length"
