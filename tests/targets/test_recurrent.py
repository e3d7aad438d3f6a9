"""A target whose state cannot be cut runs every drafter that needs tokens or logits alone."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Drafter, Verifier, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Need
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.drafters.hybrid import HybridDrafter
from paceline.drafters.jacobi import JacobiDrafter
from paceline.drafters.layer_skip import LayerSkipDrafter
from paceline.drafters.lookahead import LookaheadDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.parallel import ParallelDrafter
from paceline.drafters.predicted_output import PredictedOutputDrafter
from paceline.drafters.recycling import RecyclingDrafter
from paceline.drafters.reference import ReferenceDrafter
from paceline.drafters.retrieval import RetrievalDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafters.swift import SwiftDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.drafters.universal import UniversalDrafter
from paceline.drafting.stores.corpus import Corpus
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.targets.cached import CachedTarget
from paceline.testing import check_drafter, check_target
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.drafters.test_universal import Letters
from tests.recurrent import Recurrent, recurrent
from tests.rigged import assert_alone_as_together, assert_r0, flip, oracle, ragged, run

VOCAB = 8
PROMPT = (1, 2, 3, 1, 2, 3, 1, 2, 5, 1)
TEXT = (1, 2, 3, 1, 2, 7, 0, 4, 2, 3, 1, 2, 5, 6)
WRITES = ("end", "every")

NAMES = Letters(*"abcdefgh")


def close() -> Any:
    """A draft model of the same kind: the target itself, whose drafts are accepted."""
    return recurrent(VOCAB, "end")


def far() -> Any:
    """A draft model of the same kind that is often wrong."""
    return recurrent(VOCAB, "end", seed=1)


DRAFTERS: dict[str, list[Drafter]] = {
    "none": [NoDrafter()],
    "ngram": [NgramDrafter(max_ngram=2)],
    "reference": [ReferenceDrafter((TEXT,))],
    "suffix": [SuffixDrafter(), SuffixDrafter(mode="tree")],
    "predicted-output": [PredictedOutputDrafter(TEXT)],
    "retrieval": [
        RetrievalDrafter(Corpus.of([TEXT]), min_match=1, mode=mode) for mode in ("path", "tree")
    ],
    "model": [ModelDrafter(close()), ModelDrafter(far())],
    "parallel": [ParallelDrafter(close(), mask_token=0), ParallelDrafter(far(), mask_token=0)],
    "cascade": [CascadeDrafter((NgramDrafter(), ModelDrafter(far())))],
    "tree": [TreeDrafter(close()), TreeDrafter(far(), max_nodes=6, top_k=2)],
    "universal": [UniversalDrafter(far(), NAMES, NAMES)],
    "hybrid": [HybridDrafter((NgramDrafter(), ModelDrafter(close())))],
    "jacobi": [JacobiDrafter()],
    "lookahead": [LookaheadDrafter(window=3, ngram=3)],
    "recycling": [RecyclingDrafter(), RecyclingDrafter(chain=True)],
}
"""Every registered drafter that needs tokens or logits alone, draft models included."""

ALL = [(name, number) for name, drafters in DRAFTERS.items() for number in range(len(drafters))]


def test_no_registered_drafter_is_left_out() -> None:
    heads = {
        name
        for name in plugins.points("drafter")
        if plugins.find("drafter", name).traits.needs_draft_head
    }
    assert {"medusa", "eagle", "mtp"} <= heads, "they read hidden states, which this target lacks"
    assert plugins.points("drafter").keys() - DRAFTERS.keys() - heads == {
        drafter.name for drafter in (EarlyExitDrafter, LayerSkipDrafter, SwiftDrafter)
    }
    assert all(Need.LAYERS not in one.needs for some in DRAFTERS.values() for one in some)


@pytest.mark.parametrize("writes", WRITES)
def test_it_keeps_the_contract_of_targets(writes: str) -> None:
    """Prefills in parts, chains, trees, commits of every path, cuts to every length, batches."""
    check_target(recurrent(VOCAB, writes, max_length=40))


@pytest.mark.parametrize("writes", WRITES)
@pytest.mark.parametrize(("name", "number"), ALL)
class TestEveryDrafter:
    def test_greedy_output_is_that_of_plain_decoding(
        self, name: str, number: int, writes: str
    ) -> None:
        target, drafter = recurrent(VOCAB, writes), DRAFTERS[name][number]
        options: dict[str, Any] = {"max_tokens": 40, "keep_logits": True}
        plain = run(target, PROMPT, **options)
        found = run(target, PROMPT, drafter, verifier=rule_of(drafter), **options)
        assert_r0(found, plain, atol=1e-9)

    def test_coupled_samples_are_those_of_plain_decoding(
        self, name: str, number: int, writes: str
    ) -> None:
        target, drafter = recurrent(VOCAB, writes), DRAFTERS[name][number]
        options: dict[str, Any] = {
            "params": SamplingParams(temperature=1.0),
            "max_tokens": 40,
            "verifier": CouplingVerifier(),
        }
        found = run(target, PROMPT, drafter, **options)
        assert found.tokens == run(target, PROMPT, **options).tokens


def rule_of(drafter: Drafter) -> Verifier:
    return TreeVerifier() if Need.TREE in drafter.needs else TokenVerifier()


@pytest.mark.parametrize("writes", WRITES)
@pytest.mark.parametrize(
    "drafter",
    [
        NgramDrafter(max_ngram=2),
        ModelDrafter(recurrent(3, "end", seed=1)),
        TreeDrafter(recurrent(3, "every", seed=1), max_nodes=2, top_k=2),
    ],
    ids=lambda drafter: drafter.name,
)
def test_the_output_distribution_is_the_targets_by_enumeration(
    drafter: Drafter, writes: str
) -> None:
    check_drafter(
        drafter,
        target=recurrent(3, writes, max_length=24),
        verifier=rule_of(drafter),
        params=SamplingParams(temperature=1.0),
    )


@pytest.mark.parametrize("writes", WRITES)
@pytest.mark.parametrize("right", range(6))
def test_rejections_anywhere_in_a_draft_change_nothing(right: int, writes: str) -> None:
    target = recurrent(VOCAB, writes)
    plain = run(target, PROMPT, max_tokens=30, keep_logits=True)
    text = (*PROMPT, *plain.tokens)
    scripts = [flip(text, VOCAB, right), ragged(text, VOCAB, [right, 0, 5, 2]), oracle(text)]
    for drafter in scripts:
        found = run(target, PROMPT, drafter, k=5, max_tokens=30, keep_logits=True)
        assert_r0(found, plain, atol=1e-9)


def test_a_batch_is_as_each_alone() -> None:
    target = recurrent(VOCAB, "end")
    drafter = ModelDrafter(far())
    prompts = [PROMPT, PROMPT[:3], TEXT]
    params = SamplingParams(temperature=1.0)
    assert_alone_as_together(target, prompts, drafter, k=3, verifier=TokenVerifier(), params=params)


class TestRunAgain:
    """Only what a state falls short of is run again."""

    def scored(self, writes: str, path: tuple[int, ...]) -> int:
        decoder = Recurrent(VOCAB, writes)
        target = CachedTarget(decoder)
        slot = target.open(40)
        prefill(target, slot, PROMPT[:-1])
        target.score([Work(slot, PROMPT[-1:], Draft((1, 2, 3)))])
        before = decoder.rows_run
        target.commit(slot, path)
        return decoder.rows_run - before

    def test_nothing_after_full_acceptance(self) -> None:
        assert self.scored("end", (0, 1, 2)) == 0

    def test_the_root_and_the_accepted_tokens_after_a_rejection(self) -> None:
        assert self.scored("end", (0,)) == 2
        assert self.scored("end", ()) == 1

    def test_nothing_where_every_row_was_written(self) -> None:
        assert self.scored("every", (0,)) == 0

    def test_a_rollback_reads_from_the_nearest_snapshot(self) -> None:
        decoder = Recurrent(VOCAB, "end")
        target = CachedTarget(decoder)
        slot = target.open(200)
        for token in range(100):
            prefill(target, slot, [token % VOCAB])
        before = decoder.rows_run
        target.rollback(slot, 97)
        assert decoder.rows_run - before <= 3
        assert target.length(slot) == 97
        text = [token % VOCAB for token in range(97)]
        row = target.score([Work(slot, [5], Draft())])[0].logits[0]
        assert (row - decoder.after([*text, 5])).abs().max() < 1e-12


def test_drafters_that_need_more_are_refused() -> None:
    with pytest.raises(InvalidInput, match="needs layers of the target, which recurrent"):
        run(recurrent(VOCAB, "end"), PROMPT, EarlyExitDrafter(), max_tokens=3)
