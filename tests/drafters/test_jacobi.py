"""Jacobi decoding against its equations, one plain call each."""

from __future__ import annotations

import pytest
import torch

from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.jacobi import JacobiDrafter
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from tests.observed import Watched, argmax_behind, long_memory
from tests.rigged import assert_same_law, law_of_run, markov, run
from tests.tiny_models import tiny, tokens_of


@pytest.mark.parametrize("verifier", [TokenVerifier(), CouplingVerifier()])
def test_it_keeps_the_contract(verifier: Verifier) -> None:
    check_drafter(JacobiDrafter(), verifier=verifier)


@pytest.mark.parametrize("k", [1, 4, 7])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_next_guesses_are_the_argmax_behind_the_last(k: int, temperature: float) -> None:
    target = long_memory(5)
    watched = Watched(JacobiDrafter())
    params = SamplingParams(temperature=temperature)
    run(target, (1, 2, 3), watched, k=k, max_tokens=40, params=params)
    guesses: list[int] = []
    for step in watched.steps:
        filled = [*guesses, *[step.text[-1]] * k][: len(step.draft)]
        assert step.draft.tokens == tuple(filled)
        ahead = range(len(step.path) + 1, len(filled) + 1)
        guesses = [argmax_behind(target, (*step.text, *filled[:i])) for i in ahead]
    assert any(step.path for step in watched.steps), "no guess was ever right"


def test_guesses_behind_a_right_prefix_become_right() -> None:
    """A law that counts upwards: in the first pass two copies of 0 lead to 1 and 1."""
    target = markov(2, 0)
    session = JacobiDrafter().open(TargetView(target.info), 100)
    session.observe(Committed((0,)))
    logits = torch.tensor([[0.0, 1], [0, 1], [1, 0]])
    session.observe(Committed((1,), Draft((0, 0)), (), logits))
    warp = SamplingWarp(SamplingParams())
    assert session.propose(Budget(4), warp, SeededNoise(0)).tokens == (1, 0, 1, 1)
    assert session.propose(Budget(4, max_nodes=2), warp, SeededNoise(0)).tokens == (1, 0)


def test_a_tree_of_another_drafter_leaves_no_guesses() -> None:
    session = JacobiDrafter().open(TargetView(TargetInfo("table", 3)), 100)
    session.observe(Committed((0,)))
    session.observe(Committed((1,), Draft((0, 2), (-1, -1)), (), torch.eye(3)))
    draft = session.propose(Budget(2), SamplingWarp(SamplingParams()), SeededNoise(0))
    assert draft.tokens == (1, 1)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral-window"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_greedy_tokens_are_those_of_plain_decoding(family: str, k: int) -> None:
    target = CachedTarget(HFDecoder(tiny(family)))
    prompt = tokens_of(7)
    plain = run(target, prompt, max_tokens=40)
    assert run(target, prompt, JacobiDrafter(), k=k, max_tokens=40).tokens == plain.tokens


def test_it_runs_to_the_last_place_of_the_context() -> None:
    model = tiny("llama")
    decoder = from_weights(model.state_dict(), model.config, dtype=torch.float32)
    target = CachedTarget(decoder)
    found = run(target, tokens_of(100), JacobiDrafter(), k=8, max_tokens=None)
    assert found.tokens == run(target, tokens_of(100), max_tokens=None).tokens
    assert len(found.tokens) == 28


@pytest.mark.parametrize("verifier", [TokenVerifier(), CouplingVerifier()])
def test_the_joint_law_is_that_of_plain_decoding(verifier: Verifier) -> None:
    target, warm = markov(3, 1), SamplingParams(temperature=1.0)
    plain = law_of_run(target, (0, 1), None, max_tokens=4, params=warm)
    found = law_of_run(
        target, (0, 1), JacobiDrafter(), k=2, verifier=verifier, max_tokens=4, params=warm
    )
    assert_same_law(found, plain)
