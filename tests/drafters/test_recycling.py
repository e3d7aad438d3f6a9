"""Token recycling against a dictionary that is filled by plain calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from paceline.core.drafts import Auxiliary, Budget, Draft, Scheme
from paceline.core.protocols import Target
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need
from paceline.core.view import TargetView
from paceline.drafters.recycling import (
    TEMPLATE,
    RecyclingDrafter,
    SuccessorStore,
    template_paths,
)
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.rrsw import RrswVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.traversal import TraversalVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.observed import Watched, logits_behind, long_memory, tokens_on
from tests.rigged import assert_alone_as_together, assert_same_law, law_of_run, markov, run
from tests.tiny_models import build, lean_target, tiny, tokens_of

RULE = TreeVerifier()
WARM = SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    "drafter", [RecyclingDrafter(), RecyclingDrafter(max_nodes=80), RecyclingDrafter(candidates=2)]
)
def test_it_keeps_the_contract(drafter: RecyclingDrafter) -> None:
    check_drafter(drafter, verifier=RULE)


def test_as_chains_it_keeps_the_contract_under_the_rule_for_chains() -> None:
    drafter = RecyclingDrafter(chain=True)
    check_drafter(drafter)
    assert drafter.needs == {Need.LOGITS}
    assert RecyclingDrafter().needs == {Need.LOGITS, Need.TREE}


# ---------------------------------------------------------------- the template


def test_the_template_is_the_tree_of_the_paper() -> None:
    paths = template_paths(6)
    assert Counter(map(len, paths)) == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    assert len(set(paths)) == len(paths) == 80
    # Its deepest nodes, from the authors' list.
    assert {path for path in paths if len(path) == 6} == {
        (0, 0, 0, 0, 0, 0),
        (0, 0, 0, 0, 0, 1),
        (0, 0, 0, 1, 0, 0),
    }
    assert {path for path in paths if path[0] >= 4} == {
        *((rank,) for rank in range(4, 8)),
        *((rank, 0) for rank in range(4, 8)),
        (4, 0, 0),
        (5, 0, 0),
    }
    assert set(TEMPLATE) <= {"".join(map(str, path)) for path in paths} | {""}


@pytest.mark.parametrize("depth", range(7))
def test_any_first_part_of_it_is_a_tree(depth: int) -> None:
    """Parents before children, better ranks before worse ones, so that a cut leaves no orphan."""
    seen: set[tuple[int, ...]] = {()}
    for path in template_paths(depth):
        assert len(path) <= depth
        assert path[:-1] in seen
        assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in seen
        seen.add(path)
    assert len(seen) == 1 + sum((8, 21, 25, 15, 8, 3)[:depth])


# ---------------------------------------------------------------- table and tree


class Plain:
    """The table as a dictionary, every scored row a plain call."""

    def __init__(self, target: Target, prompt: tuple[int, ...], k: int) -> None:
        self.target, self.k = target, k
        self.table: dict[int, list[int]] = {}
        for token in set(prompt[:-1]):
            places = [i for i in range(len(prompt) - 1) if prompt[i] == token]
            followers = [prompt[i + 1] for i in reversed(places)]
            self.table[token] = list(dict.fromkeys(followers))[:k]

    def learn(self, text: tuple[int, ...], draft: Draft, path: tuple[int, ...]) -> None:
        accepted = [-1, *path]
        rejected = [node for node in range(-1, len(draft)) if node not in accepted]
        for node in rejected + accepted:
            behind = (*text, *(() if node == -1 else tokens_on(draft, node)))
            best = logits_behind(self.target, behind).topk(self.k).indices.tolist()
            self.table[behind[-1]] = best

    def paths(self, token: int, depth: int, ranks: str = "") -> set[tuple[int, ...]]:
        """The tokens from the root to each node of the whole tree, by going down."""
        if not depth:
            return set()
        found = set()
        for rank, child in enumerate(self.table.get(token, [])[: TEMPLATE.get(ranks, 0)]):
            below = self.paths(child, depth - 1, f"{ranks}{rank}")
            found |= {(child,), *((child, *rest) for rest in below)}
        return found


@pytest.mark.parametrize("where", ["table", "lean", "hf"])
@pytest.mark.parametrize(("k", "candidates"), [(6, 8), (3, 3), (1, 8)])
def test_the_tree_is_that_of_a_dictionary(where: str, k: int, candidates: int) -> None:
    target: Target = long_memory(20)
    prompt: tuple[int, ...] = (1, 2, 3, 1, 4, 3, 2, 3, 1)
    if where != "table":
        model = tiny("llama" if where == "lean" else "gpt2")
        target = lean_target(model) if where == "lean" else CachedTarget(HFDecoder(model))
        prompt = tokens_of(8) * 2
    watched = Watched(RecyclingDrafter(candidates=candidates, max_nodes=80))
    found = run(target, prompt, watched, k=k, verifier=RULE, max_tokens=12)
    plain = Plain(target, prompt, candidates)
    for step in watched.steps:
        tree = {tokens_on(step.draft, node) for node in range(len(step.draft))}
        left = len(prompt) + 12 - len(step.text) - 1
        assert tree == plain.paths(step.text[-1], min(k, left))
        plain.learn(step.text, step.draft, step.path)
    assert max(r.num_draft_tokens for r in found.rounds) >= min(8, candidates)


def test_a_smaller_budget_takes_the_most_promising_nodes() -> None:
    session = RecyclingDrafter(max_nodes=30).open(TargetView(markov(30, 0).info), 100)
    session.observe(Committed((1,)))
    ids = torch.arange(30)
    # Behind every token t come t + 1, t + 2, ... in this order.
    logits = -((ids[None] - ids[:, None] - 1) % 30).float()
    session.observe(Committed((5,), Draft(tuple(range(2, 30)), (-1,) * 28), (), logits[1:]))
    warp = SamplingWarp(SamplingParams())
    for budget, expected in (
        (Budget(6, max_nodes=3), ((6, 7, 7), (-1, 0, -1))),
        (Budget(1, max_nodes=3), ((6, 7, 8), (-1, -1, -1))),
        (Budget(0), ((), ())),
    ):
        draft = session.propose(budget, warp, SeededNoise(0))
        assert (draft.tokens, draft.parents) == expected
        assert draft.scheme is Scheme.CHOSEN
    assert len(session.propose(Budget(6), warp, SeededNoise(0))) == 30


def test_rows_that_are_accepted_win_over_others_of_the_same_token() -> None:
    session = RecyclingDrafter(candidates=1).open(TargetView(markov(4, 0).info), 100)
    session.observe(Committed((0,)))
    draft = Draft((1, 2, 1), (-1, -1, 1), scheme=Scheme.CHOSEN)
    session.observe(Committed((1, 1), draft, (0,), torch.eye(4)[[2, 3, 0, 2]]))
    # Behind 1 comes 3 on the accepted path, and 2 on the other.
    drafted = session.propose(Budget(1), SamplingWarp(SamplingParams()), SeededNoise(0))
    assert drafted.tokens == (3,)


def test_auxiliary_rows_are_recycled_too() -> None:
    session = RecyclingDrafter(candidates=1, chain=True).open(TargetView(markov(4, 0).info), 100)
    session.observe(Committed((0,)))
    aux = Auxiliary((2,), (1,), torch.tensor([[True, True]]))
    session.observe(Committed((2,), Draft(aux=aux), (), torch.eye(4)[[2, 3]]))
    drafted = session.propose(Budget(3), SamplingWarp(SamplingParams()), SeededNoise(0))
    assert drafted.tokens == (3,), "of 3 nothing is known, so the chain ends"


def test_tokens_that_cannot_come_are_no_candidates() -> None:
    session = RecyclingDrafter().open(TargetView(markov(4, 0).info), 100)
    session.observe(Committed((0,)))
    logits = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf]])
    session.observe(Committed((0,), Draft(), (), logits))
    drafted = session.propose(Budget(1), SamplingWarp(SamplingParams()), SeededNoise(0))
    assert drafted.tokens == (2, 1)


class TestStore:
    def test_sequences_share_it_if_asked_to(self) -> None:
        target, prompt = long_memory(9), (1, 2, 3)
        store = SuccessorStore()

        def rounds(drafter: RecyclingDrafter) -> int:
            return len(run(target, prompt, drafter, verifier=RULE, max_tokens=30).rounds)

        shared = RecyclingDrafter(max_nodes=80, store=store)
        alone = RecyclingDrafter(max_nodes=80)
        cold = [rounds(shared), rounds(alone), rounds(alone)]
        assert len(set(cold)) == 1, "the first sequence finds it empty"
        assert rounds(shared) < cold[0]

    def test_what_was_scored_is_not_undone_by_a_prompt(self) -> None:
        store = SuccessorStore()
        drafter = RecyclingDrafter(candidates=1, store=store)
        drafter.open(TargetView(markov(4, 0).info), 10)
        store.learn([1], [[3]])
        session = drafter.open(TargetView(markov(4, 0).info), 10)
        session.observe(Committed((1, 2, 0, 1)))
        assert store.after(1) == [3]
        assert store.after(2) == [0]

    def test_another_vocabulary_or_number_of_candidates_is_refused(self) -> None:
        store = SuccessorStore()
        RecyclingDrafter(store=store).open(TargetView(markov(4, 0).info), 10)
        with pytest.raises(InvalidInput, match="holds 8 successors of 4 tokens, but 8 of 5"):
            RecyclingDrafter(store=store).open(TargetView(markov(5, 0).info), 10)
        with pytest.raises(InvalidInput, match="3 of 4 are needed"):
            RecyclingDrafter(store=store, candidates=3).open(TargetView(markov(4, 0).info), 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "candidates must be at least 1"),
        ({"max_nodes": 0}, "max_nodes must be at least 1"),
        ({"chain": "no"}, "chain must be true or false"),
        ({"store": {}}, "store must be a SuccessorStore"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RecyclingDrafter(**options)


# ---------------------------------------------------------------- what comes out


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral-window", "gemma3"])
@pytest.mark.parametrize("k", [1, 6])
def test_greedy_tokens_are_those_of_plain_decoding(family: str, k: int) -> None:
    target = CachedTarget(HFDecoder(tiny(family)))
    plain = run(target, tokens_of(7), max_tokens=40)
    found = run(
        target, tokens_of(7), RecyclingDrafter(max_nodes=80), k=k, verifier=RULE, max_tokens=40
    )
    assert found.tokens == plain.tokens
    chains = RecyclingDrafter(chain=True)
    assert run(target, tokens_of(7), chains, k=k, max_tokens=40).tokens == plain.tokens


def test_it_runs_to_the_last_place_of_the_context() -> None:
    target = CachedTarget(HFDecoder(build("gpt2", n_positions=40)))
    for length in (1, 30, 38):
        prompt = tokens_of(length)
        found = run(
            target, prompt, RecyclingDrafter(max_nodes=80), k=6, verifier=RULE, max_tokens=None
        )
        assert found.tokens == run(target, prompt, max_tokens=None).tokens
        assert len(found.tokens) == 40 - length


@pytest.mark.parametrize("params", [SamplingParams(), WARM])
def test_sequences_of_a_batch_get_what_they_get_alone(params: SamplingParams) -> None:
    target = lean_target(tiny("llama"))
    drafter = RecyclingDrafter()
    prompts = [tokens_of(4), tokens_of(9, 1) * 2, tokens_of(1, 2)]
    assert_alone_as_together(target, prompts, drafter, k=5, verifier=RULE, params=params)


@pytest.mark.parametrize("chain", [False, True])
def test_the_joint_law_is_that_of_plain_decoding(chain: bool) -> None:
    target, prompt = markov(3, 3), (0, 1, 0)
    watched = Watched(RecyclingDrafter(candidates=2, max_nodes=5, chain=chain))
    plain = law_of_run(target, prompt, None, max_tokens=4, params=WARM)
    trees = (RULE, RrswVerifier(), TraversalVerifier(), CouplingVerifier())
    for rule in (RULE, TokenVerifier()) if chain else trees:
        found = law_of_run(target, prompt, watched, k=2, verifier=rule, max_tokens=4, params=WARM)
        assert_same_law(found, plain)
    assert any(step.path for step in watched.steps), "nothing was ever accepted"
