"""REST over a small corpus, against a scan of its documents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.drafts import Budget, Draft, Scheme
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need, TargetInfo
from paceline.core.traits import traits_of
from paceline.core.view import TargetView
from paceline.drafters.retrieval import RetrievalDrafter
from paceline.drafting.stores.corpus import Corpus
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.testing.drafters import check_drafter
from paceline.verifiers.tree import TreeVerifier

INFO = TargetView(TargetInfo("table", vocab_size=10))
DOCUMENTS = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [2, 3, 4, 7], [8, 2]]


def propose(drafter: RetrievalDrafter, text: list[int], budget: Budget) -> Draft:
    session = drafter.open(INFO, 1000)
    session.observe(Committed(tuple(text[:1])))
    for token in text[1:]:
        session.observe(Committed((token,)))
    return session.propose(budget, SamplingWarp(SamplingParams()), SeededNoise(0))


def paths(draft: Draft) -> list[tuple[int, ...]]:
    return [tuple(draft.tokens[i] for i in draft.path(node)) for node in range(len(draft))]


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=16), max_size=4),
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
    st.integers(1, 2),
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(1, 8),
)
def test_the_tree_is_what_a_scan_finds(
    documents: list[list[int]],
    text: list[int],
    min_match: int,
    more: int,
    depth: int,
    max_nodes: int,
) -> None:
    drafter = RetrievalDrafter(
        Corpus.of(documents),
        mode="tree",
        min_match=min_match,
        max_match=min_match + more,
        max_continuation=4,
        max_nodes=max_nodes,
    )
    draft = propose(drafter, text, Budget(depth))
    counts: Counter[tuple[int, ...]] = Counter()
    total = 0
    for n in range(min(min_match + more, len(text)), min_match - 1, -1):
        for document in documents:
            for i in range(len(document) - n + 1):
                if document[i : i + n] == text[-n:]:
                    total += 1
                    behind = document[i + n : i + n + min(depth, 4)]
                    counts.update(tuple(behind[: j + 1]) for j in range(len(behind)))
        if total:
            break
    best = sorted(counts, key=lambda path: (-counts[path], len(path), path))[:max_nodes]
    assert paths(draft) == best
    assert (draft.confidence or ()) == tuple(
        counts[path] / (counts[path[:-1]] if len(path) > 1 else total) for path in best
    )
    assert draft.probs is None


def test_trees_and_paths() -> None:
    tree = propose(RetrievalDrafter(Corpus.of(DOCUMENTS), mode="tree"), [2, 3], Budget(5))
    assert tree.scheme is Scheme.CHOSEN
    assert paths(tree) == [(4,), (5,), (4, 7), (5, 6)]
    path = propose(RetrievalDrafter(Corpus.of(DOCUMENTS)), [2, 3], Budget(5))
    assert (path.tokens, path.is_chain) == ((4, 7), True)
    assert path.confidence == (2 / 3, 1 / 2)
    longer = propose(RetrievalDrafter(Corpus.of(DOCUMENTS)), [1, 2, 3, 5], Budget(5))
    assert longer.tokens == (6,)
    assert propose(RetrievalDrafter(Corpus.of(DOCUMENTS)), [9, 8], Budget(5)).tokens == ()


def test_the_budget_bounds_nodes_and_confidence() -> None:
    tree = RetrievalDrafter(Corpus.of(DOCUMENTS), mode="tree")
    assert len(propose(tree, [2, 3], Budget(5, max_nodes=2))) == 2
    assert propose(tree, [2, 3], Budget(1)).tokens == (4, 5)
    assert paths(propose(tree, [2, 3], Budget(5, min_confidence=0.5))) == [(4,), (5,), (4, 7)]
    path = RetrievalDrafter(Corpus.of(DOCUMENTS))
    assert propose(path, [2, 3], Budget(5, min_first_confidence=0.7)).tokens == ()
    assert propose(path, [2, 3], Budget(5, max_nodes=1)).tokens == (4,)


@pytest.mark.parametrize("mode", ["path", "tree"])
def test_it_keeps_the_contract(mode: Any) -> None:
    corpus = Corpus.of([[1, 2, 0, 1, 1, 2], [2, 2, 1, 2, 0, 0], [0, 1, 2, 1]])
    drafter = RetrievalDrafter(corpus, mode=mode, min_match=1)
    rule = TreeVerifier() if mode == "tree" else None
    check_drafter(drafter, verifier=rule, text_alone=True)
    assert drafter.needs == (frozenset({Need.TREE}) if mode == "tree" else frozenset())
    assert traits_of(drafter).default_verifier == ("tree" if mode == "tree" else "token")


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Corpus.of(DOCUMENTS, {"tokenizer": "tiny", "fingerprint": "ab"}).write(path)
    assert RetrievalDrafter(path, tokenizer_fingerprint="ab").corpus.highest == 8
    assert RetrievalDrafter(str(path)).corpus.highest == 8
    with pytest.raises(InvalidInput, match="built with the tokenizer of tiny, and the target has"):
        RetrievalDrafter(path, tokenizer_fingerprint="cd")
    with pytest.raises(InvalidInput, match="holds token 8; the vocabulary of small is 0 to 7"):
        RetrievalDrafter(path).open(TargetView(TargetInfo("small", 8)), 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "forest"}, "'path' or 'tree'"),
        ({"min_match": 0}, "min_match"),
        ({"max_match": 1}, "max_match must be at least 2"),
        ({"max_match": 32}, "max_match"),
        ({"max_match": 20, "max_continuation": 13}, "max_continuation must be at least 1 and at m"),
        ({"max_places": 0}, "max_places"),
        ({"max_nodes": 0}, "max_nodes"),
        ({"datastore": 3}, "datastore must be a path or a Corpus"),
        ({"datastore": "no such file"}, "cannot read the datastore no such file"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RetrievalDrafter(**{"datastore": Corpus.of([]), **options})
