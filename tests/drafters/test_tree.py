"""Trees of a draft model: their shapes, their laws, and what comes out of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import ROOT, Budget, Draft, Outcome, Scheme
from paceline.core.events import Round
from paceline.core.passes import drive
from paceline.core.protocols import Noise, Verifier, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Opening, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.drafting import tree_plan
from paceline.drafting.tree import BestFirstGrowth, DraftTree
from paceline.drafting.tree_shape import best_shape
from paceline.engine.loop import Request, decode
from paceline.errors import ContractViolation, InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.testing.law import output_law
from paceline.testing.table import TableTarget
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.rrsw import RrswVerifier
from paceline.verifiers.traversal import TraversalVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import assert_same_law, law_of_run, markov, run
from tests.tiny_models import VOCAB, build, lean_target, tiny, tokens_of

WARM = SamplingParams(temperature=1.0)
GREEDY = SamplingParams()

SHAPES: dict[str, dict[str, Any]] = {
    "dynamic": {"max_nodes": 12, "top_k": 3},
    "narrow": {"max_nodes": 8, "top_k": 3, "width": 1},
    "static": {"shape": "static", "branching": [3, 2, 1]},
    "paths": {"shape": "static", "paths": [[0, 0, 0, 0], [0, 1], [1, 0], [2]]},
    "sequoia": {"shape": "sequoia", "acceptance": [0.6, 0.2, 0.1], "max_nodes": 10},
    "measured": {"shape": "sequoia", "max_nodes": 10},
}
CHILDREN = ("sampled", "independent", "chosen")
RULES: dict[str, Verifier] = {
    "tree": TreeVerifier(),
    "traversal": TraversalVerifier(),
    "rrsw": RrswVerifier(),
    "coupling": CouplingVerifier(),
}


@pytest.fixture(scope="module")
def target() -> CachedTarget:
    return lean_target(tiny("llama"))


@pytest.fixture(scope="module")
def other() -> CachedTarget:
    return lean_target(build("llama", num_hidden_layers=1))


def draft_of(
    drafter: TreeDrafter,
    prompt: Sequence[int] = (0, 1),
    *,
    budget: Budget | None = None,
    params: SamplingParams = WARM,
    seed: int = 0,
    info: TargetInfo | None = None,
) -> Draft:
    vocab = drafter.model.info.vocab_size
    session = drafter.open(TargetView(info or TargetInfo("target", vocab)), 100)
    session.observe(Committed(tuple(prompt)))
    draft = drive(
        session.propose(budget or Budget(3), SamplingWarp(params, prompt), SeededNoise(seed))
    )
    session.close()
    return draft


@dataclass(frozen=True)
class Bounded:
    """A controller that always says the same."""

    allowed: Budget
    name: ClassVar[str] = "bounded"

    def open(self, opening: Opening = Opening()) -> Bounded:
        return self

    def budget(self) -> Budget:
        return self.allowed

    def observe(self, outcome: Outcome) -> None:
        pass


class TestContract:
    """The exact law of drafts and of output over several rounds, on tables of three tokens."""

    @pytest.mark.parametrize(
        ("shape", "children", "rule"),
        [
            *itertools.product(("dynamic", "static"), ("sampled",), ("tree", "traversal")),
            ("dynamic", "independent", "traversal"),
            ("static", "independent", "tree"),
            ("dynamic", "chosen", "tree"),
            ("beam", "chosen", "tree"),
            ("sequoia", "sampled", "tree"),
            ("dynamic", "sampled", "rrsw"),
            ("dynamic", "sampled", "coupling"),
            ("narrow", "sampled", "tree"),
            ("narrow", "independent", "traversal"),
            ("static", "independent", "coupling"),
        ],
    )
    def test_check_drafter(self, shape: str, children: Any, rule: str) -> None:
        settings: dict[str, Any] = {
            "dynamic": {"max_nodes": 3, "top_k": 2},
            "narrow": {"max_nodes": 4, "top_k": 2, "width": 1},
            "static": {"shape": "static", "branching": [2, 1], "max_nodes": 3},
            "sequoia": {"shape": "sequoia", "acceptance": [0.5, 0.3], "max_nodes": 3},
            "beam": {"shape": "beam", "width": 2},
        }[shape]
        drafter = TreeDrafter(markov(3, 5, order=1), children=children, **settings)
        check_drafter(drafter, verifier=RULES[rule], num_draft_tokens=2, text_alone=True)

    def test_a_shape_that_is_measured(self) -> None:
        drafter = TreeDrafter(markov(3, 5, order=1), shape="sequoia", max_nodes=3)
        check_drafter(drafter, verifier=TreeVerifier())

    @pytest.mark.parametrize("rule", ["tree", "traversal"])
    @pytest.mark.parametrize("bound", [{"min_confidence": 0.5}, {"entropy_bound": 0.75}], ids=str)
    def test_branches_that_stop_keep_the_law(self, rule: str, bound: dict[str, float]) -> None:
        """A controller's bounds: after a token that is kept, or before one is drawn."""
        drafter = TreeDrafter(markov(3, 5, order=1), max_nodes=4, top_k=2)
        lengths = set()

        def answer(noise: Noise) -> tuple[int, ...]:
            request = Request(
                prompt=(2,),
                drafter=drafter,
                controller=Bounded(Budget(3, **bound)),  # type: ignore[arg-type]
                verifier=RULES[rule],
                noise=noise,
                params=WARM,
                max_tokens=3,
            )
            rounds = [
                event for event in decode(markov(3, 1), [request]) if isinstance(event, Round)
            ]
            lengths.update(r.num_draft_tokens for r in rounds if r.number == 1)
            return tuple(token for r in rounds for token in r.tokens)

        plain = law_of_run(markov(3, 1), (2,), None, params=WARM, max_tokens=3)
        assert_same_law(output_law(answer), plain)  # type: ignore[arg-type]
        assert len(lengths) > 1, "no branch ever stopped"

    def test_the_check_sees_pruned_samples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """EAGLE-2's pruning on drawn children: the check names the rule that it breaks."""
        monkeypatch.setattr(
            tree_plan, "ForesightGrowth", lambda top_k, _, width: BestFirstGrowth(top_k, 2, width)
        )
        drafter = TreeDrafter(markov(3, 5, order=1), max_nodes=3, top_k=2)
        with pytest.raises(ContractViolation, match="'honesty'"):
            check_drafter(drafter, verifier=TreeVerifier(), num_draft_tokens=2)

    @pytest.mark.parametrize("children", CHILDREN)
    @pytest.mark.parametrize("vocab_size", [2, 3, 6])
    def test_a_draft_model_with_another_vocabulary(self, vocab_size: int, children: str) -> None:
        model = markov(4, 21, scale=1.5)
        drafter = TreeDrafter(markov(vocab_size, 23), children=children, max_nodes=3, top_k=2)  # type: ignore[arg-type]
        params = SamplingParams(temperature=0.8, top_k=3)
        options: dict[str, Any] = {"params": params, "k": 2, "max_tokens": 2}
        plain = law_of_run(model, (1, 2), None, **options)
        assert_same_law(
            law_of_run(model, (1, 2), drafter, verifier=TreeVerifier(), **options), plain
        )

    def test_penalties_look_at_the_path(self) -> None:
        model = markov(4, 21)
        params = SamplingParams(temperature=1.0, presence_penalty=1.5, frequency_penalty=0.7)
        drafter = TreeDrafter(model, max_nodes=4, top_k=2)
        options: dict[str, Any] = {"params": params, "k": 2, "max_tokens": 2}
        plain = law_of_run(model, (1,), None, **options)
        found = law_of_run(model, (1,), drafter, verifier=TreeVerifier(), **options)
        assert_same_law(found, plain)
        # Draft and target are one, so first children are certain, penalties included.
        for seed in range(20):
            told = run(
                model,
                (1,),
                drafter,
                params=params,
                verifier=TreeVerifier(),
                seed=seed,
                max_tokens=8,
            )
            assert all(r.num_accepted_tokens for r in told.rounds[:-1])


class TestGreedy:
    @pytest.mark.parametrize("rule", ["tree", "traversal", "coupling"])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_as_plain(
        self, target: CachedTarget, other: CachedTarget, shape: str, rule: str
    ) -> None:
        prompt = tokens_of(9)
        plain = run(target, prompt, max_tokens=50)
        for k in (1, 2, 5):
            drafter = TreeDrafter(other, **SHAPES[shape])
            found = run(target, prompt, drafter, k=k, verifier=RULES[rule], max_tokens=50)
            assert found.tokens == plain.tokens
            assert any(r.num_accepted_tokens for r in found.rounds)

    @pytest.mark.parametrize("family", ["gpt2", "gemma2", "mistral-window"])
    def test_with_modules_of_transformers(self, family: str) -> None:
        target = CachedTarget(HFDecoder(tiny(family)))
        draft = CachedTarget(
            HFDecoder(build(family, **{} if family == "gpt2" else {"intermediate_size": 40}))
        )
        prompt = tokens_of(6)
        found = run(target, prompt, TreeDrafter(draft), verifier=TreeVerifier(), max_tokens=40)
        assert found.tokens == run(target, prompt, max_tokens=40).tokens

    def test_branches_save_rounds(self, target: CachedTarget, other: CachedTarget) -> None:
        prompt, options = tokens_of(9), {"max_tokens": 60, "k": 4}
        chain = run(target, prompt, ModelDrafter(other), **options)  # type: ignore[arg-type]
        found = run(
            target,
            prompt,
            TreeDrafter(other, max_nodes=24, top_k=6),
            verifier=TreeVerifier(),
            **options,  # type: ignore[arg-type]
        )
        assert found.tokens == chain.tokens
        assert len(found.rounds) < len(chain.rounds)

    def test_of_width_one_it_feeds_its_model_as_for_a_chain(
        self, target: CachedTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a level shares with the one before is in the cache."""
        draft = lean_target(build("llama", num_hidden_layers=1))
        fed: list[int] = []
        monkeypatch.setattr(draft, "score", _counting(draft.score, fed))
        prompt, k = tokens_of(9), 4
        drafter = TreeDrafter(draft, width=1, top_k=3, max_nodes=3 * k)
        found = run(target, prompt, drafter, verifier=TreeVerifier(), k=k, max_tokens=50)
        assert found.tokens == run(target, prompt, max_tokens=50).tokens
        assert max(r.num_draft_tokens for r in found.rounds) == 3 * k
        assert fed[0] == len(prompt)
        assert set(fed[1:]) <= {1, 2}, "a row a level, and what the model missed"

    @pytest.mark.parametrize("shape", SHAPES)
    def test_draft_is_target(self, target: CachedTarget, shape: str) -> None:
        found = run(
            target,
            tokens_of(9),
            TreeDrafter(target, **SHAPES[shape]),
            verifier=TreeVerifier(),
            max_tokens=40,
            k=3,
        )
        for r in found.rounds[:-1]:
            # The dynamic shape may go deeper elsewhere than on the path that it is surest of.
            assert r.num_accepted_tokens == r.max_path_length or shape in ("dynamic", "narrow")
            assert r.num_accepted_tokens

    @pytest.mark.parametrize("shape", [{"top_k": 1}, {"top_k": 3, "width": 1}], ids=str)
    def test_an_option_may_ban_the_best_token(
        self, target: CachedTarget, shape: dict[str, int]
    ) -> None:
        """The first child is what the options leave, not what the draft model likes best.

        The draft model is the target, so that the path that goes on is accepted whole.
        """
        banned = frozenset(run(target, tokens_of(9), max_tokens=20).tokens)
        params = SamplingParams(banned_token_ids=banned)
        found = run(
            target,
            tokens_of(9),
            TreeDrafter(target, **shape),  # type: ignore[arg-type]
            verifier=TreeVerifier(),
            params=params,
            max_tokens=20,
        )
        assert found.tokens == run(target, tokens_of(9), params=params, max_tokens=20).tokens
        assert all(r.num_accepted_tokens == r.max_path_length for r in found.rounds[:-1])
        assert max(r.max_path_length for r in found.rounds) > 2


def _counting(score: Any, fed: list[int]) -> Any:
    def counted(work: Sequence[Work]) -> Any:
        fed.extend(item.num_rows for item in work)
        return score(work)

    return counted


class TestShared:
    """`DraftTree.above`: what a model has to be fed, beyond the path that all nodes share."""

    #   0 - 1 - 2
    #         - 3 - 5
    #     - 4
    TREE = ((10, 11, 12, 13, 14, 15), (ROOT, 0, 1, 1, 0, 3))

    def tree(self) -> DraftTree:
        tree = DraftTree()
        tree.tokens, tree.parents = [list(part) for part in self.TREE]
        return tree

    @pytest.mark.parametrize(
        ("nodes", "path", "below", "places"),
        [
            ([3], [10, 11, 13], Draft(), [ROOT]),
            ([2, 5], [10, 11], Draft((12, 13, 15), (ROOT, ROOT, 1)), [0, 2]),
            ([3, 4], [10], Draft((11, 13, 14), (ROOT, 0, ROOT)), [1, 2]),
            ([0], [10], Draft(), [ROOT]),
        ],
    )
    def test_above(
        self, nodes: list[int], path: list[int], below: Draft, places: list[int]
    ) -> None:
        found = self.tree().above(nodes)
        assert (found[0], found[2]) == (path, places)
        assert (found[1].tokens, found[1].parents) == (below.tokens, below.parents)

    def test_nothing_is_shared(self) -> None:
        tree = self.tree()
        tree.tokens.append(16)
        tree.parents.append(ROOT)
        path, below, places = tree.above([4, 6])
        assert (path, places) == ([], [1, 2])
        assert (below.tokens, below.parents) == ((10, 14, 16), (ROOT, 0, ROOT))


class TestSampled:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("children", ["sampled", "independent"])
    def test_draft_is_target(self, shape: str, children: str) -> None:
        """With p = q the first child of every node is accepted."""
        table = markov(8, 1)
        for seed in range(5):
            drafter = TreeDrafter(table, children=children, **SHAPES[shape])  # type: ignore[arg-type]
            options: dict[str, Any] = {"params": WARM, "max_tokens": 30, "seed": seed}
            found = run(table, (1, 2), drafter, verifier=TreeVerifier(), **options)
            for r in found.rounds[:-1]:
                assert r.num_accepted_tokens == r.max_path_length or shape in ("dynamic", "narrow")
                assert r.num_accepted_tokens

    @pytest.mark.parametrize("shape", SHAPES)
    def test_coupling_gives_what_the_seed_gives(
        self, target: CachedTarget, other: CachedTarget, shape: str
    ) -> None:
        options: dict[str, Any] = {"params": WARM, "max_tokens": 40, "verifier": CouplingVerifier()}
        plain = run(target, tokens_of(9), **options)
        for children in CHILDREN:
            drafter = TreeDrafter(other, children=children, **SHAPES[shape])  # type: ignore[arg-type]
            assert run(target, tokens_of(9), drafter, **options).tokens == plain.tokens

    def test_siblings_differ_and_share_their_law(self) -> None:
        draft = draft_of(TreeDrafter(markov(8, 1), shape="static", branching=[3, 2]))
        assert draft.scheme is Scheme.WITHOUT_REPLACEMENT
        assert len(draft) == 9
        for node in range(-1, 3):
            children = draft.children(node)
            assert len({draft.tokens[child] for child in children}) == len(children)
            assert len({id(draft.law(child)) for child in children}) == 1

    def test_each_law_is_that_behind_its_path(self) -> None:
        model = markov(8, 1)
        for shape in SHAPES.values():
            draft = draft_of(TreeDrafter(model, **shape), (3, 4))
            assert draft.parents is not None
            for node, parent in enumerate(draft.parents):
                tokens = (3, 4, *(draft.tokens[i] for i in draft.path(parent)))
                expected = model._law(tokens)
                torch.testing.assert_close(draft.law(node), expected, rtol=1e-12, atol=0)
                assert draft.confidence is not None
                assert draft.confidence[node] == pytest.approx(float(expected[draft.tokens[node]]))

    def test_fewer_tokens_than_children(self) -> None:
        """Where the law has fewer, there are fewer; the others have their own children."""
        law = torch.tensor([0.7, 0.3, 0.0, 0.0], dtype=torch.float64)
        drafter = TreeDrafter(TableTarget(law), shape="static", branching=[3, 3])
        draft = draft_of(drafter)
        assert draft.parents == (-1, -1, 0, 0, 1, 1)
        assert draft_of(drafter, params=SamplingParams(temperature=1.0, top_k=1)).parents == (-1, 0)

    def test_a_repeat_gets_no_children(self) -> None:
        law = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
        drafter = TreeDrafter(TableTarget(law), children="independent", top_k=4, max_nodes=8)
        for seed in range(10):
            draft = draft_of(drafter, seed=seed, budget=Budget(2))
            assert draft.scheme is Scheme.IID
            firsts = draft.children(-1)
            assert len(firsts) == 4
            for place, node in enumerate(firsts):
                if draft.tokens[node] in [draft.tokens[i] for i in firsts[:place]]:
                    assert not draft.children(node)

    def test_own_options(self) -> None:
        law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        drafter = TreeDrafter(TableTarget(law), params={"temperature": 0.5}, top_k=2)  # type: ignore[arg-type]
        expected = torch.tensor([0.25, 0.09, 0.04], dtype=torch.float64) / 0.38
        for q in draft_of(drafter).probs or ():
            torch.testing.assert_close(q, expected)
        cold = TreeDrafter(TableTarget(law), params=GREEDY, top_k=2)
        draft = draft_of(cold, budget=Budget(1))
        assert (draft.tokens, draft.probs, draft.scheme) == ((0, 1), None, Scheme.CHOSEN)


class TestShapes:
    @pytest.mark.parametrize("max_nodes", [1, 4, 9, 20])
    def test_dynamic_is_the_best_of_all_paths(self, max_nodes: int) -> None:
        """With a wide beam, EAGLE-2's tree is the most probable paths of all."""
        model, prompt = markov(4, 3), (1, 2)
        drafter = TreeDrafter(model, children="chosen", top_k=64, max_nodes=max_nodes)
        draft = draft_of(drafter, prompt, budget=Budget(3))
        scores = {}
        for length in (1, 2, 3):
            for path in itertools.product(range(4), repeat=length):
                share = 1.0
                for i, token in enumerate(path):
                    share *= float(model._law((*prompt, *path[:i]))[token])
                scores[path] = share
        best = sorted(scores, key=lambda path: -scores[path])[:max_nodes]
        found = {tuple(draft.tokens[i] for i in draft.path(n)) for n in range(len(draft))}
        assert found == set(best)
        assert draft.scheme is Scheme.CHOSEN
        assert draft.probs is None

    def test_a_narrow_beam(self) -> None:
        """Level by level the two best nodes are expanded, with two children each."""
        model, prompt = markov(6, 4), (1, 2)
        drafter = TreeDrafter(model, children="chosen", top_k=2, max_nodes=64)
        draft = draft_of(drafter, prompt, budget=Budget(3))
        level: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        expected: set[tuple[int, ...]] = set()
        for _ in range(3):
            grown = []
            for path, share in level:
                law = model._law((*prompt, *path))
                grown += [((*path, t), share * float(law[t])) for t in law.topk(2).indices.tolist()]
            expected |= {path for path, _ in grown}
            level = sorted(grown, key=lambda item: -item[1])[:2]
        found = {tuple(draft.tokens[i] for i in draft.path(n)) for n in range(len(draft))}
        assert found == expected

    def test_drawn_levels_share_the_nodes(self) -> None:
        drafter = TreeDrafter(markov(8, 1), max_nodes=16, top_k=10)
        draft = draft_of(drafter, budget=Budget(5))
        depths = [len(draft.path(node)) for node in range(len(draft))]
        assert [depths.count(level) for level in range(1, 6)] == [4, 3, 3, 3, 3]

    @pytest.mark.parametrize("children", CHILDREN)
    def test_sequoia_is_planned(self, children: str) -> None:
        rates = (0.6, 0.2, 0.1)
        drafter = TreeDrafter(
            markov(8, 1),
            shape="sequoia",
            acceptance=rates,
            max_nodes=9,
            children=children,  # type: ignore[arg-type]
        )
        assert draft_of(drafter).parents == best_shape(rates, 9, 3).parents

    def test_sequoia_minds_the_machine(self) -> None:
        rates = (0.6, 0.2, 0.1)
        dear = TreeDrafter(
            markov(8, 1), shape="sequoia", acceptance=rates, cost=[[1, 1.0], [17, 17.0]]
        )
        assert len(draft_of(dear)) == 1
        flat = TreeDrafter(
            markov(8, 1), shape="sequoia", acceptance=rates, cost=[[1, 1.0], [9, 1.0]]
        )
        assert len(draft_of(flat)) == 8

    def test_sequoia_learns_what_is_accepted(self) -> None:
        """A draft model that is always right comes to draft a chain, one that misleads does not."""
        table = markov(8, 1)
        drafter = TreeDrafter(table, shape="sequoia", max_nodes=6)
        options: dict[str, Any] = {"params": WARM, "max_tokens": 200, "verifier": TreeVerifier()}
        right = run(table, (1, 2), drafter, k=6, **options)
        assert right.rounds[0].max_path_length < 6
        assert right.rounds[-2].max_path_length > right.rounds[0].max_path_length
        wrong = run(markov(8, 2), (1, 2), drafter, k=6, **options)
        assert wrong.rounds[-2].max_path_length < right.rounds[-2].max_path_length

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("children", CHILDREN)
    def test_budgets(self, shape: str, children: str) -> None:
        drafter = TreeDrafter(markov(8, 1), children=children, **SHAPES[shape])  # type: ignore[arg-type]
        for depth, nodes in itertools.product((1, 2, 5), (0, 1, 3, 50)):
            draft = draft_of(drafter, budget=Budget(depth, max_nodes=nodes))
            assert draft.max_path_length <= depth
            assert len(draft) <= nodes
            assert bool(draft.tokens) == bool(nodes)

    def test_a_target_of_few_rows(self) -> None:
        info = TargetInfo("target", 8, max_draft_tokens=5)
        assert len(draft_of(TreeDrafter(markov(8, 1)), info=info)) == 5

    def test_the_whole_static_tree_by_default(self) -> None:
        drafter = TreeDrafter(markov(32, 1, order=1), shape="static", branching=[20, 2])
        assert len(draft_of(drafter)) == 60

    def test_a_sure_draft_goes_on_and_an_unsure_one_does_not(self) -> None:
        for children in ("chosen", "sampled"):
            drafter = TreeDrafter(markov(8, 1), children=children, max_nodes=30)  # type: ignore[arg-type]
            draft = draft_of(drafter, budget=Budget(4, min_confidence=0.4))
            assert draft.confidence is not None
            for node, share in enumerate(draft.confidence):
                assert share >= 0.4 or not draft.children(node)
            assert min(draft.confidence) < 0.4, "what was drawn is kept"
            assert len(draft_of(drafter, budget=Budget(4, entropy_bound=0.999))) == 0


class TestCache:
    @pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
    @pytest.mark.parametrize("prompt", [1, 2, 40])
    def test_after_every_round(
        self, other: CachedTarget, params: SamplingParams, prompt: int
    ) -> None:
        drafter, text = TreeDrafter(other), tokens_of(100, seed=1)
        info = TargetInfo("target", VOCAB)
        session = drafter.open(TargetView(info), 100)
        session.observe(Committed(text[:prompt]))
        at = prompt
        for number, accepted in enumerate([5, 0, 3, None, 5, 1, None, 0]):
            warp, noise = SamplingWarp(params, text[:at]), SeededNoise(number)
            new = text[at : at + 9]
            if accepted is not None:
                draft = drive(session.propose(Budget(5), warp, noise))
                deepest = max(range(len(draft)), key=lambda node: len(draft.path(node)))
                path = draft.path(deepest)[:accepted]
                new = (*(draft.tokens[node] for node in path), 7)
            text = (*text[:at], *new, *text[at + len(new) :])
            at += len(new)
            session.observe(Committed(new))
            fresh = drafter.open(TargetView(info), 100)
            fresh.observe(Committed(text[:at]))
            warp = SamplingWarp(params, text[:at])
            one = drive(session.propose(Budget(3), warp, SeededNoise(99)))
            two = drive(fresh.propose(Budget(3), warp, SeededNoise(99)))
            assert (one.tokens, one.parents) == (two.tokens, two.parents)
            for ours, theirs in zip(one.probs or (), two.probs or (), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
            fresh.close()
        session.close()

    def test_to_the_end_of_a_shorter_context(self, target: CachedTarget) -> None:
        short = lean_target(build("llama", max_position_embeddings=32))
        prompt = tokens_of(10)
        found = run(target, prompt, TreeDrafter(short), k=4, verifier=TreeVerifier(), max_tokens=60)
        assert found.tokens == run(target, prompt, max_tokens=60).tokens
        at, last = len(prompt), 0
        for r in found.rounds:
            last = at if r.num_draft_tokens else last
            assert r.max_path_length <= max(0, 33 - at)
            at += len(r.tokens)
        assert last > 25, "drafted almost to the end of its context"


class TestBatches:
    """Four sequences with trees of different shapes in each pass: each gets what it gets alone."""

    PROMPTS = (tokens_of(3, 1), tokens_of(12, 2), tokens_of(7, 3), tokens_of(30, 4))

    def decode(
        self,
        target: CachedTarget,
        drafters: Sequence[TreeDrafter],
        rows: Sequence[int],
        **options: Any,
    ) -> tuple[dict[int, tuple[int, ...]], list[Round]]:
        requests = [
            Request(
                prompt=self.PROMPTS[row],
                drafter=drafters[row],
                controller=FixedController(3 + row % 2),
                verifier=options["rule"],
                noise=SeededNoise(7, row),
                params=options["params"],
                max_tokens=40 + row,
            )
            for row in rows
        ]
        tokens: dict[int, tuple[int, ...]] = dict.fromkeys(rows, ())
        rounds = []
        for event in decode(target, requests):
            if isinstance(event, Round):
                tokens[rows[event.id]] += event.tokens
                rounds.append(event)
        return tokens, rounds

    @pytest.mark.parametrize(
        ("kind", "params", "children", "rule"),
        [
            *itertools.product(("lean",), (WARM,), CHILDREN, ("tree", "traversal")),
            ("transformers", WARM, "sampled", "tree"),
            ("transformers", GREEDY, "sampled", "tree"),
            ("lean", GREEDY, "chosen", "traversal"),
            ("lean", WARM, "sampled", "coupling"),
        ],
    )
    def test_each_row_as_alone(
        self, kind: str, params: SamplingParams, children: Any, rule: str
    ) -> None:
        models = tiny("llama"), build("llama", num_hidden_layers=1)
        if kind == "lean":
            target, draft = (lean_target(model) for model in models)
        else:
            target, draft = (CachedTarget(HFDecoder(model)) for model in models)
        drafters = [
            TreeDrafter(draft, children=children, **SHAPES[shape])
            for shape in ("dynamic", "static", "paths", "sequoia")
        ]
        options = {"params": params, "rule": RULES[rule]}
        together, rounds = self.decode(target, drafters, range(4), **options)
        first = {r.id: r.num_draft_tokens for r in rounds if r.number == 1}
        assert len(set(first.values())) == 4, "four different trees"
        assert max(r.num_sequences for r in rounds) == 4
        for row in range(4):
            alone, _ = self.decode(target, drafters, [row], **options)
            assert together[row] == alone[row]
            assert len(alone[row]) == 40 + row


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"shape": "round"},
                "shape must be one of dynamic, static, sequoia, beam; it is 'round'",
            ),
            ({"children": "many"}, "children must be one of chosen, sampled, independent"),
            ({"max_nodes": 0}, "max_nodes must be at least 1"),
            ({"max_nodes": 10**9}, "max_nodes must be at least 1 and at most 10000"),
            ({"children": []}, "children must be one of"),
            ({"shape": "sequoia", "cost": [[float("nan"), 1.0]]}, "cost must be"),
            ({"shape": "sequoia", "cost": [[1, float("inf")]]}, "cost must be"),
            ({"top_k": 1.5}, "top_k must be a whole number"),
            ({"width": 0}, "width"),
            ({"width": 1, "shape": "sequoia"}, "width goes with the shape 'dynamic' or 'beam'"),
            ({"shape": "beam"}, "the shape 'beam' is for chosen children"),
            ({"shape": "beam", "children": "independent"}, "set children to 'chosen'"),
            ({"shape": "static"}, "needs branching, as in .* or paths"),
            ({"shape": "static", "branching": [2], "paths": [[0]]}, "one of them"),
            ({"branching": [2]}, "branching goes with the shape 'static'; the shape is 'dynamic'"),
            ({"cost": [[1, 1.0]]}, "cost goes with the shape 'sequoia'"),
            ({"shape": "static", "branching": [2, 0]}, "each of branching must be at least 1"),
            ({"shape": "static", "branching": "3,2"}, "branching must be a list of whole numbers"),
            ({"shape": "static", "branching": [100, 100, 2]}, "more than 10,000 nodes"),
            ({"shape": "static", "paths": [[0], [2]]}, "child 2 of the node"),
            ({"shape": "static", "paths": 3}, "paths must be a list of lists"),
            ({"shape": "sequoia", "acceptance": [0.7, 0.6]}, "whose sum is at most 1"),
            ({"shape": "sequoia", "acceptance": []}, "acceptance must be a list"),
            ({"shape": "sequoia", "cost": [[2, 1.0], [1, 1.0]]}, "rising rows"),
            ({"shape": "sequoia", "cost": [[1, 0.0]]}, "times above 0"),
            ({"draft_cost": -1}, "draft_cost"),
            ({"params": {"temprature": 1}}, "temperature"),
        ],
    )
    def test_settings_that_make_no_sense(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            TreeDrafter(markov(3, 1), **options)

    def test_a_draft_model_that_scores_no_trees(self) -> None:
        chains = lean_target(tiny("llama"), fixed_rows=4)
        with pytest.raises(InvalidInput, match="needs a draft model that scores trees"):
            TreeDrafter(chains).open(TargetView(TargetInfo("target", VOCAB)), 50)

    def test_options_that_name_tokens_outside_the_vocabulary(self) -> None:
        drafter = TreeDrafter(markov(3, 1), params=SamplingParams(logit_bias={7: 1.0}))
        with pytest.raises(InvalidInput, match="drafter 'tree' name token 7"):
            drafter.open(TargetView(TargetInfo("target", 3)), 9)
