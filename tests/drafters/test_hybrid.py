"""Several drafters in one tree: its law, its greedy output, what its parts are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paceline
from paceline.core.drafts import Budget, Draft, Scheme
from paceline.core.passes import drive
from paceline.core.protocols import Drafter, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.hybrid import HybridDrafter
from paceline.drafters.lookahead import LookaheadDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.recycling import RecyclingDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.errors import ContractViolation, InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.traversal import TraversalVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import Line, assert_same_law, law_of_run, markov, run
from tests.tiny_models import build, tiny, tokens_of

WARM = SamplingParams(temperature=1.0)
MODEL = markov(3, 5, order=1)
NGRAM = NgramDrafter(max_ngram=2)

PAIRS: dict[str, tuple[Drafter, ...]] = {
    "ngram, model": (NGRAM, ModelDrafter(MODEL)),
    "model, ngram": (ModelDrafter(MODEL), NGRAM),
    "greedy model": (NGRAM, ModelDrafter(MODEL, params=SamplingParams())),
    "tree, ngram": (TreeDrafter(MODEL, max_nodes=2, top_k=2), NGRAM),
    "ngram, chosen tree": (NGRAM, TreeDrafter(MODEL, children="chosen", max_nodes=3, top_k=2)),
}


@pytest.fixture(scope="module")
def target() -> CachedTarget:
    return CachedTarget(HFDecoder(tiny("llama")))


@pytest.fixture(scope="module")
def other() -> CachedTarget:
    return CachedTarget(HFDecoder(build("llama", num_hidden_layers=1)))


def session_of(*drafters: Drafter, vocab_size: int = 8, **settings: Any) -> Any:
    return HybridDrafter(drafters, **settings).open(
        TargetView(TargetInfo("target", vocab_size)), 100
    )


class TestContract:
    @pytest.mark.parametrize("pair", PAIRS)
    def test_check_drafter(self, pair: str) -> None:
        drafter = HybridDrafter(PAIRS[pair], max_nodes=4)
        check_drafter(drafter, verifier=TreeVerifier(), text_alone=True)

    @pytest.mark.parametrize("rule", [TraversalVerifier(), CouplingVerifier()])
    def test_under_other_rules(self, rule: Verifier) -> None:
        check_drafter(HybridDrafter(PAIRS["ngram, model"]), verifier=rule)

    def test_two_models(self) -> None:
        """Two drafters that draw: the second's tokens become point masses."""
        second = TreeDrafter(markov(3, 6, order=1), max_nodes=2, top_k=1)
        drafter = HybridDrafter((ModelDrafter(MODEL), second))
        options: dict[str, Any] = {"params": WARM, "k": 2, "max_tokens": 3}
        plain = law_of_run(markov(3, 1), (0, 1), None, **options)
        found = law_of_run(markov(3, 1), (0, 1), drafter, verifier=TreeVerifier(), **options)
        assert_same_law(found, plain)


class TestGreedy:
    @pytest.mark.parametrize("rule", [TreeVerifier(), TraversalVerifier(), CouplingVerifier()])
    def test_as_plain(self, target: CachedTarget, other: CachedTarget, rule: Verifier) -> None:
        prompt = tokens_of(9)
        plain = run(target, prompt, max_tokens=50)
        parts: tuple[Drafter, ...] = (NGRAM, ModelDrafter(other), TreeDrafter(other))
        for drafters in (parts, parts[:2], parts[1:]):
            found = run(target, prompt, HybridDrafter(drafters), verifier=rule, max_tokens=50)
            assert found.tokens == plain.tokens

    def test_drafters_that_the_target_feeds(self, target: CachedTarget) -> None:
        """Logits of every row and auxiliary rows, each drafter with its own."""
        prompt = tokens_of(9)
        drafter = HybridDrafter((LookaheadDrafter(), NGRAM, RecyclingDrafter()))
        assert drafter.needs == {Need.TREE, Need.LOGITS, Need.AUXILIARY}
        plain = run(target, prompt, max_tokens=60)
        found = run(target, prompt, drafter, verifier=TreeVerifier(), max_tokens=60)
        assert found.tokens == plain.tokens
        assert any(r.num_accepted_tokens for r in found.rounds)

    def test_it_needs_no_more_rounds_than_its_parts(
        self, target: CachedTarget, other: CachedTarget
    ) -> None:
        prompt = (*tokens_of(6), *tokens_of(6))
        parts: tuple[Drafter, ...] = (NGRAM, ModelDrafter(other))
        options: dict[str, Any] = {"max_tokens": 60, "verifier": TreeVerifier()}
        rounds = [len(run(target, prompt, part, **options).rounds) for part in parts]
        assert len(run(target, prompt, HybridDrafter(parts), **options).rounds) <= min(rounds)


class TestParts:
    def test_a_draft_of_all(self) -> None:
        one, two = Line(lambda *_: [1, 2, 3]), Line(lambda *_: [1, 4])
        session = session_of(Named("one", one), Named("two", two))
        session.observe(Committed((0,)))
        draft = drive(session.propose(Budget(3), SamplingWarp(WARM), SeededNoise(0)))
        assert (draft.tokens, draft.parents) == ((1, 2, 3, 4), (-1, 0, 1, 0))
        assert draft.scheme is Scheme.CHOSEN

    def test_each_hears_of_its_own_draft(self) -> None:
        told: list[Committed] = []
        one, two = Line(lambda *_: [1, 2, 3]), Line(lambda *_: [1, 4])
        session = session_of(Named("one", one), Named("two", two, told))
        session.observe(Committed((0,)))
        draft = drive(session.propose(Budget(3), SamplingWarp(WARM), SeededNoise(0)))
        logits = torch.arange(5.0)[:, None].expand(5, 8)
        session.observe(Committed((1, 4, 7), draft, (0, 3), logits))
        assert told[0] == Committed((0,))
        own = told[1].draft
        assert own is not None
        assert (own.tokens, told[1].path) == ((1, 4), (0, 1))
        assert told[1].logits is not None
        assert told[1].logits[:, 0].tolist() == [0, 1, 4]
        # A round without a proposal: only the root was scored.
        session.observe(Committed((7,), Draft(), (), logits[:1]))
        assert told[2].draft is not None
        assert len(told[2].draft) == 0

    def test_nodes_are_shared_out(self) -> None:
        one, two = Line(lambda *_: [1, 2, 3, 4]), Line(lambda *_: [5, 6, 7, 1])
        three = Line(lambda *_: [2])
        parts = Named("one", one), Named("two", two), Named("three", three)
        session = session_of(*parts, max_nodes=7)
        session.observe(Committed((0,)))
        draft = drive(session.propose(Budget(4), SamplingWarp(WARM), SeededNoise(0)))
        assert sorted(draft.tokens) == [1, 2, 2, 3, 5, 6]
        assert (
            len(drive(session.propose(Budget(4, max_nodes=2), SamplingWarp(WARM), SeededNoise(0))))
            == 2
        )
        assert len(drive(session.propose(Budget(0), SamplingWarp(WARM), SeededNoise(0)))) == 0

    def test_a_controller_may_ask_for_one(self) -> None:
        session = session_of(
            Named("one", Line(lambda *_: [])), Named("two", Line(lambda *_: [4, 5]))
        )
        session.observe(Committed((0,)))
        warp, noise = SamplingWarp(WARM), SeededNoise(0)
        assert drive(session.propose(Budget(1, drafter="two"), warp, noise)).tokens == (4,)
        assert drive(session.propose(Budget(1, drafter="one"), warp, noise)).tokens == ()
        other = Budget(3, drafter="one", fallback=Budget(2, drafter="two"))
        assert drive(session.propose(other, warp, noise)).tokens == (4, 5)
        with pytest.raises(
            ContractViolation, match="asked for drafter 'three'; there are one, two"
        ):
            drive(session.propose(Budget(1, drafter="three"), warp, noise))

    def test_all_are_closed(self) -> None:
        one, two = Line(lambda *_: []), Line(lambda *_: [])
        session = session_of(Named("one", one), Named("two", two))
        session.close()
        assert (one.log.closed, two.log.closed) == (1, 1)

    def test_what_is_open_is_closed_after_an_error(self) -> None:
        one = Line(lambda *_: [])
        wrong = ModelDrafter(MODEL, params=SamplingParams(logit_bias={99: 1.0}))
        with pytest.raises(InvalidInput, match="token 99"):
            session_of(Named("one", one), wrong)
        assert (one.log.opened, one.log.closed) == (1, 1)


class Named:
    """A drafter under a name of its own, that keeps what it is told."""

    needs: frozenset[str] = frozenset()

    def __init__(self, name: str, line: Line, told: list[Committed] | None = None) -> None:
        self.name, self._line, self._told = name, line, told

    def open(self, target: TargetView, capacity: int) -> Any:
        self._session = self._line.open(target, capacity)
        return self

    def observe(self, committed: Committed) -> None:
        if self._told is not None:
            self._told.append(committed)
        self._session.observe(committed)

    def propose(self, budget: Budget, warp: Any, noise: Any) -> Draft:
        draft = drive(self._session.propose(budget, warp, noise))
        if budget.max_nodes is not None:
            draft = Draft(draft.tokens[: budget.max_nodes])
        return draft  # type: ignore[no-any-return]

    def close(self) -> None:
        self._session.close()


class TestByName:
    def test_python(self) -> None:
        model = paceline.load(tiny("llama"))
        draft = paceline.load(build("llama", num_hidden_layers=1))
        prompt = list(tokens_of(9))
        plain = model.generate(prompt, drafter="none", max_tokens=20)
        found = model.generate(
            prompt,
            drafter="hybrid",
            drafter_options={"drafters": ["ngram", "model"], "max_ngram": 2, "max_nodes": 8},
            draft_model=draft,
            max_tokens=20,
        )
        assert found.token_ids == plain.token_ids
        assert found.spec["drafter"] == "hybrid"
        assert found.spec["verifier"] == "tree"

    def test_settings_that_make_no_sense(self) -> None:
        for drafters in ((NGRAM,), (NGRAM, NGRAM), ()):
            with pytest.raises(InvalidInput, match="different names, at least two; it has"):
                HybridDrafter(drafters)
        with pytest.raises(InvalidInput, match="max_nodes"):
            HybridDrafter((NGRAM, ModelDrafter(MODEL)), max_nodes=0)

    def test_no_combination_of_combinations(self) -> None:
        with pytest.raises(InvalidInput, match="combines single drafters; 'cascade' is not one"):
            paceline.load(tiny("llama")).generate(
                [3, 4], drafter="hybrid", drafter_options={"drafters": "ngram,cascade"}
            )
        assert HybridDrafter((CascadeDrafter((NGRAM,)), ModelDrafter(MODEL))).names == (
            "cascade",
            "model",
        )
