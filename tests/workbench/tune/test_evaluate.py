"""What a skip set earns: acceptance against real greedy drafts, costs against arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.target import SkipSet
from paceline.drafters.layer_skip import LayerSkipDrafter
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.workbench.tune import Costs, Sample, draft_cost, measure_costs, prefix_rates, record
from paceline.workbench.tune.evaluate import layered
from tests.rigged import run
from tests.spare_layers import LAYERS, lean
from tests.tiny_models import tiny, tokens_of

SKIPS = [
    SkipSet(),
    SkipSet(frozenset({1, 3}), frozenset({4})),
    SkipSet(frozenset({2}), frozenset({2})),
    SkipSet.after(4, LAYERS),
]
K = 3


def quiet(done: int, total: int, text: str) -> None:
    """Tells nobody."""


def model() -> LanguageModel:
    return LanguageModel(lean(), lean().decoder, None, frozenset())


def samples() -> list[Sample]:
    return record(model(), [tokens_of(n, seed=n) for n in (5, 9, 12)], 3 * K + 1, K, quiet)


def test_samples_are_the_target_s_greedy_answers() -> None:
    for sample, n in zip(samples(), (5, 9, 12), strict=True):
        prompt = tokens_of(n, seed=n)
        assert sample.num_prompt_tokens == n
        assert sample.tokens == (*prompt, *run(lean(), prompt, max_tokens=3 * K + 1).tokens)


@pytest.mark.parametrize("skip", SKIPS, ids=str)
def test_rates_are_those_of_real_drafts(skip: SkipSet) -> None:
    """The oracle: a draft decoded at each of the places, and verified by the engine."""
    accepted, drafts = [0] * K, 0
    drafter = LayerSkipDrafter(tuple(skip.attention), tuple(skip.mlp), min_confidence=0.0)
    for sample in samples():
        for root in range(sample.num_prompt_tokens - 1, len(sample.tokens) - K, K):
            found = run(lean(), sample.tokens[: root + 1], drafter, k=K, max_tokens=K + 1)
            drafts += 1
            for i in range(found.rounds[0].num_accepted_tokens):
                accepted[i] += 1
    assert prefix_rates(lean(), samples(), skip, K) == pytest.approx([a / drafts for a in accepted])
    if skip == SkipSet():
        assert accepted == [drafts] * K


def test_costs_are_positive_and_add_up() -> None:
    costs = measure_costs(lean(), samples()[0], K)
    assert len(costs.passes) == K + 1
    assert min(costs.base, *costs.passes) > 0
    assert min(costs.attention, costs.mlp) >= 0
    full = draft_cost(costs, SkipSet(), LAYERS)
    less = draft_cost(costs, SkipSet.after(2, LAYERS), LAYERS)
    assert full - less == pytest.approx(4 * (costs.attention + costs.mlp) / costs.passes[0])
    assert lean().length(lean().open(3)) == 0, "the target is as it was"


def test_a_draft_cost_by_hand() -> None:
    costs = Costs(0.1, 0.02, 0.05, (1.0, 1.1))
    skip = SkipSet(frozenset({0, 1, 2}), frozenset({5}))
    assert draft_cost(costs, skip, 6) == pytest.approx(0.1 + 3 * 0.02 + 5 * 0.05)
    assert costs.verify_cost(2) == pytest.approx(1.1)


def test_answers_that_say_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no prompt has an answer of 4 tokens"):
        record(model(), [tokens_of(5)], 3, 4, quiet)


def test_a_model_that_does_not_give_its_layers() -> None:
    target: Any = CachedTarget(HFDecoder(tiny("llama"), probe=False))
    with pytest.raises(InvalidInput, match="does not give its layers"):
        layered(LanguageModel(target, target.decoder, None, frozenset()))
