"""SuffixDecoding against a scan of the texts, which counts what followed every match."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.drafts import Budget, Draft
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need, TargetInfo
from paceline.core.traits import traits_of
from paceline.core.view import TargetView
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafting.stores.outputs import PastOutputs
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.testing.drafters import check_drafter
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import markov, run

INFO = TargetView(TargetInfo("table", vocab_size=10))
WARP, NOISE = SamplingWarp(SamplingParams()), SeededNoise(0)
Gram = tuple[int, ...]


def propose(drafter: SuffixDrafter, rounds: Sequence[Sequence[int]], budget: Budget) -> Draft:
    session = drafter.open(INFO, 1000)
    for tokens in rounds:
        session.observe(Committed(tuple(tokens)))
    return session.propose(budget, WARP, NOISE)


@dataclass
class Scan:
    """The method as the paper has it, by looking at every place of every text."""

    drafter: SuffixDrafter
    texts: list[list[int]]

    def ends(self, gram: Gram) -> list[tuple[int, int]]:
        n = len(gram)
        return [
            (number, i + n)
            for number, text in enumerate(self.texts)
            for i in range(len(text) - n + 1)
            if tuple(text[i : i + n]) == gram
        ]

    def children(self, gram: Gram) -> list[tuple[int, float]]:
        total = len(self.ends(gram))
        found = [
            (-len(ends), [-x for x in max(ends)], token)
            for token in range(4)
            if (ends := self.ends((*gram, token)))
        ]
        return [(token, -count / total) for count, _, token in sorted(found)]

    def path(self, gram: Gram, count: int, budget: Budget) -> tuple[Any, ...]:
        tokens: Gram = ()
        shares: tuple[float, ...] = ()
        probability, score = 1.0, 0.0
        while len(tokens) < min(count, budget.num_draft_tokens):
            if not (children := self.children((*gram, *tokens))):
                break
            token, share = children[0]
            probability *= share
            if probability < self.drafter.min_probability:
                break
            tokens, shares, score = (*tokens, token), (*shares, share), score + probability
        return score, tokens, tuple(range(-1, len(tokens) - 1)), shares

    def tree(self, gram: Gram, count: int, budget: Budget) -> tuple[Any, ...]:
        tokens: list[int] = []
        parents: list[int] = []
        shares: list[float] = []
        score, order, heap = 0.0, 0, []
        todo: list[tuple[float, Gram, int, int]] = [(1.0, gram, -1, 1)]
        while len(tokens) < count:
            for probability, path, parent, depth in todo:
                for token, share in self.children(path):
                    if probability * share >= self.drafter.min_probability:
                        order += 1
                        item = (*path, token), parent, depth, share
                        heapq.heappush(heap, (-probability * share, order, item))
            todo = []
            if not heap:
                break
            minus, _, (path, parent, depth, share) = heapq.heappop(heap)
            tokens.append(path[-1])
            parents.append(parent)
            shares.append(share)
            score -= minus
            if depth < budget.num_draft_tokens:
                todo = [(-minus, path, len(tokens) - 1, depth + 1)]
        return score, tuple(tokens), tuple(parents), tuple(shares)

    def best(self, tail: Gram, budget: Budget) -> tuple[Any, ...]:
        drafter, best = self.drafter, (0.0, (), (), ())
        budget = budget._replace(num_draft_tokens=min(budget.num_draft_tokens, drafter.max_depth))
        for m in range(1, min(drafter.max_depth, len(tail)) + 1):
            gram = tail[-m:]
            if not self.ends(gram):
                break
            most = budget.num_draft_tokens if drafter.mode == "path" else drafter.max_nodes
            most = most if budget.max_nodes is None else min(most, budget.max_nodes)
            if drafter.mode == "tree" and budget.max_nodes is not None:
                most = budget.max_nodes
            count = max(min(most, int(drafter.factor * m + drafter.offset + 1e-6)), 0)
            found = (self.path if drafter.mode == "path" else self.tree)(gram, count, budget)
            if found[0] >= best[0]:
                best = found
        return best


tokens = st.lists(st.integers(0, 3), max_size=12)


@given(
    st.lists(tokens, min_size=1, max_size=4),
    st.lists(tokens, max_size=3),
    st.sampled_from(["path", "tree"]),
    st.integers(1, 6),
    st.sampled_from([(1.0, 0.0), (0.5, 1.0), (4.0, -1.0), (0.0, 3.0)]),
    st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    st.tuples(st.integers(1, 8), st.sampled_from([None, 1, 5])).map(lambda two: Budget(*two)),
)
def test_the_draft_is_what_a_scan_finds(
    rounds: list[list[int]],
    outputs: list[list[int]],
    mode: Any,
    max_depth: int,
    budget_rule: tuple[float, float],
    min_probability: float,
    budget: Budget,
) -> None:
    store = PastOutputs(max_depth=max_depth)
    for output in outputs:
        store.add(output)
    drafter = SuffixDrafter(
        mode=mode,
        max_depth=max_depth,
        factor=budget_rule[0],
        offset=budget_rule[1],
        min_probability=min_probability,
        max_nodes=6,
        store=store if outputs else None,
    )
    draft = propose(drafter, rounds, budget)
    text = [t for r in rounds for t in r]
    own = Scan(drafter, [text]).best(tuple(text), budget)
    past = Scan(drafter, outputs).best(tuple(text), budget)
    expected = own if own[0] >= past[0] else past
    assert (draft.tokens, draft.parents, draft.confidence) == expected[1:]
    assert draft.probs is None


def test_more_evidence_wins() -> None:
    text = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2]
    assert propose(SuffixDrafter(), [text], Budget(5)).tokens == (3, 1)
    assert propose(SuffixDrafter(factor=4), [text], Budget(5)).tokens == (3, 1, 2, 4, 1)


def test_the_budget_bounds_what_is_believed() -> None:
    text = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2]
    assert propose(SuffixDrafter(), [text], Budget(5)).confidence == (0.5, 1.0)
    assert propose(SuffixDrafter(), [text], Budget(5, min_confidence=0.6)).tokens == (3,)
    assert propose(SuffixDrafter(), [text], Budget(5, min_first_confidence=0.6)).tokens == ()


def test_a_text_of_one_token_is_no_more_work() -> None:
    session = SuffixDrafter().open(INFO, 1000)
    session.observe(Committed((1,) * 200))
    weighed: list[int] = []
    follow = session._follow

    def counting(parts: Any, node: Any, count: int, limits: Any) -> Any:
        weighed.append(count)
        return follow(parts, node, count, limits)

    session._follow = counting
    assert session.propose(Budget(6), WARP, NOISE).tokens == (1,) * 6
    assert len(weighed) <= 8
    assert max(weighed) == 6


@given(st.lists(st.integers(0, 1), min_size=30, max_size=90), st.integers(1, 3), st.integers(6, 18))
def test_of_many_matches_some_are_weighed(text: list[int], period: int, max_depth: int) -> None:
    """A text that ends in a circle has a match for every length, against a scan of some of them."""
    text += (text[:period] * 18)[:18]
    drafter = SuffixDrafter(max_depth=max_depth)
    scan, tail, budget = Scan(drafter, [text]), tuple(text), Budget(6)
    differ: list[int] = []  # the longest length of each set of places, the longest first
    for m in range(max_depth, 0, -1):
        if not differ or scan.ends(tail[-m:]) != scan.ends(tail[-differ[-1] :]):
            differ.append(m)
    most = 8 if len(differ) <= 12 else 4
    evenly = [round(i * (len(differ) - 1) / (most - 1)) for i in range(most)]
    weighed = differ if len(differ) <= 8 else [differ[i] for i in evenly]
    found = [scan.path(tail[-m:], min(m, 6), budget) for m in weighed]
    expected = max(found, key=lambda one: one[0])
    draft = propose(drafter, [text], budget)
    assert (draft.tokens, draft.parents, draft.confidence) == expected[1:]


def test_of_equals_the_newest_is_copied() -> None:
    assert propose(SuffixDrafter(), [[1, 2, 1, 3, 1]], Budget(1)).tokens == (3,)


@pytest.mark.parametrize("mode", ["path", "tree"])
def test_it_keeps_the_contract(mode: Any) -> None:
    rule = TreeVerifier() if mode == "tree" else None
    check_drafter(SuffixDrafter(mode=mode), verifier=rule, text_alone=True)
    check_drafter(SuffixDrafter(mode=mode, factor=3, min_probability=0.01), verifier=rule)


@pytest.mark.parametrize("mode", ["path", "tree"])
def test_a_store_that_is_only_read_keeps_it_too(mode: Any) -> None:
    store = PastOutputs()
    store.add([1, 2, 0, 1, 2, 1, 0])
    drafter = SuffixDrafter(mode=mode, store=store, learn=False)
    check_drafter(drafter, verifier=TreeVerifier() if mode == "tree" else None, text_alone=True)
    assert len(store) == 7


def test_what_each_mode_needs() -> None:
    path, tree = SuffixDrafter(), SuffixDrafter(mode="tree")
    assert (path.needs, tree.needs) == (frozenset(), {Need.TREE})
    assert (traits_of(path).default_verifier, traits_of(tree).default_verifier) == ("token", "tree")


def test_outputs_are_learnt_when_they_end_and_prompts_are_not() -> None:
    target = markov(8, 0, scale=4.0)
    store = PastOutputs()
    drafter = SuffixDrafter(store=store)
    first = run(target, [1, 2, 3], drafter, max_tokens=40)
    assert len(store) == 40
    second = run(target, [1, 2, 3], drafter, max_tokens=40)
    assert first.tokens == second.tokens == run(target, [1, 2, 3], max_tokens=40).tokens
    assert len(second.rounds) < len(first.rounds)
    run(target, [1, 2, 3], SuffixDrafter(store=store, learn=False), max_tokens=40)
    assert len(store) == 80


def test_unless_a_store_is_given_a_request_knows_nothing_of_others() -> None:
    drafter = SuffixDrafter()
    session = drafter.open(INFO, 100)
    for part in ((1,), (5, 6, 7)):
        session.observe(Committed(part))
    session.close()
    assert propose(drafter, [[5, 6]], Budget(3)).tokens == ()


def test_a_store_by_its_path_outlives_the_drafter(tmp_path: Path) -> None:
    path = tmp_path / "outputs"
    session = SuffixDrafter(store=str(path)).open(INFO, 100)
    for part in ((1,), (5, 6, 7), (8,)):
        session.observe(Committed(part))
    session.close()
    again = SuffixDrafter(store=path)
    assert propose(again, [[5, 6]], Budget(3)).tokens == (7, 8)
    with pytest.raises(InvalidInput, match="holds token 8"):
        again.open(TargetView(TargetInfo("small", 8)), 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "forest"}, "'path' or 'tree'"),
        ({"max_depth": 0}, "max_depth"),
        ({"factor": -1}, "factor"),
        ({"min_probability": 2}, "min_probability"),
        ({"max_nodes": 0}, "max_nodes"),
        ({"learn": 1}, "learn"),
        ({"store": 3}, "store must be a PastOutputs or a path"),
        ({"store": PastOutputs(max_depth=8)}, "that of the store is 8"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SuffixDrafter(**options)
