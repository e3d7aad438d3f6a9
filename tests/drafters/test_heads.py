"""Heads of every kind on tiny models of many families: exact, whatever they guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.drafts import Budget
from paceline.core.hidden import Hidden
from paceline.core.passes import drive
from paceline.core.protocols import Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.hybrid import HybridDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.generate import plugins
from paceline.models.heads import load_head
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import assert_alone_as_together, assert_r0, run
from tests.tiny_head_files import HEADS
from tests.tiny_models import build, tiny, tokens_of

PROMPT = tokens_of(6) * 2
FAMILIES = ("llama", "qwen3", "gemma", "gpt2", "opt", "gemma2", "gpt_oss")
LEAN = ("llama", "qwen3", "gemma")
PLACES = [(family, "transformers") for family in FAMILIES] + [(family, "lean") for family in LEAN]
PATHS = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]


def target_of(family: str, kind: str) -> CachedTarget:
    model = tiny(family)
    if kind == "transformers":
        return CachedTarget(HFDecoder(model))
    return CachedTarget(from_weights(model.state_dict(), model.config, dtype=torch.float32))


def drafter_of(kind: str, family: str, target: CachedTarget, folder: Path, **settings: Any) -> Any:
    head = load_head(HEADS[kind](tiny(family), folder / kind), target.info)
    return plugins.find("drafter", kind).make({"head": head, **settings})


@pytest.mark.parametrize("settings", [{"shape": "chain"}, {"max_nodes": 8, "top_k": 3}], ids=str)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("family", "place"), PLACES)
def test_greedy_output_is_that_of_plain_decoding(
    tmp_path: Path, family: str, place: str, kind: str, settings: dict[str, Any]
) -> None:
    target = target_of(family, place)
    drafter = drafter_of(kind, family, target, tmp_path, **settings)
    rule = TokenVerifier() if drafter.is_chain else TreeVerifier()
    options: dict[str, Any] = {"max_tokens": 24, "keep_logits": True}
    plain = run(target, PROMPT, **options)
    found = run(target, PROMPT, drafter, verifier=rule, **options)
    assert_r0(found, plain, atol=1e-3)
    assert sum(r.num_draft_tokens for r in found.rounds) > 0


@pytest.mark.parametrize("kind", HEADS)
def test_some_guesses_are_right(tmp_path: Path, kind: str) -> None:
    """Otherwise nothing here would say much."""
    target = target_of("llama", "lean")
    drafter = drafter_of(kind, "llama", target, tmp_path, max_nodes=40, top_k=8)
    found = run(target, PROMPT, drafter, verifier=TreeVerifier(), max_tokens=60)
    assert sum(r.num_accepted_tokens for r in found.rounds) > 3


def short() -> tuple[Any, CachedTarget]:
    """A short context, for checks that run every outcome of the noise."""
    model = build("llama", max_position_embeddings=20)
    weights = from_weights(model.state_dict(), model.config, dtype=torch.float32)
    return model, CachedTarget(weights)


@pytest.mark.parametrize(
    "settings",
    [{"shape": "chain"}, {"max_nodes": 3, "top_k": 2}, {"shape": "static", "paths": PATHS[:4]}],
    ids=str,
)
@pytest.mark.parametrize("kind", HEADS)
def test_its_contract_and_the_distribution_of_the_output(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    model, target = short()
    head = load_head(HEADS[kind](model, tmp_path / kind), target.info)
    drafter = plugins.find("drafter", kind).make({"head": head, **settings})
    check_drafter(
        drafter,
        target=target,
        params=SamplingParams(temperature=1.0, top_k=2),
        verifier=TokenVerifier() if drafter.is_chain else TreeVerifier(),
        text_alone=True,
    )


@pytest.mark.parametrize("kind", HEADS)
def test_coupled_samples_are_those_of_plain_decoding(tmp_path: Path, kind: str) -> None:
    target = target_of("llama", "lean")
    drafter = drafter_of(kind, "llama", target, tmp_path, max_nodes=6)
    options: dict[str, Any] = {
        "params": SamplingParams(temperature=1.0),
        "max_tokens": 30,
        "verifier": CouplingVerifier(),
    }
    found = run(target, PROMPT, drafter, **options)
    assert found.tokens == run(target, PROMPT, **options).tokens


@pytest.mark.parametrize("kind", HEADS)
def test_a_batch_is_as_each_alone(tmp_path: Path, kind: str) -> None:
    target = target_of("llama", "lean")
    assert_alone_as_together(
        target,
        [PROMPT, PROMPT[:1], tokens_of(9, seed=3)],
        drafter_of(kind, "llama", target, tmp_path, max_nodes=6),
        k=3,
        verifier=TreeVerifier(),
        params=SamplingParams(temperature=1.0),
    )


@pytest.mark.parametrize("mix", [CascadeDrafter, HybridDrafter])
def test_several_heads_beside_n_grams(tmp_path: Path, mix: Any) -> None:
    target = target_of("llama", "lean")
    heads = [drafter_of(kind, "llama", target, tmp_path, max_nodes=5) for kind in HEADS]
    drafter = mix((NgramDrafter(), *heads))
    found = run(target, PROMPT, drafter, verifier=TreeVerifier(), max_tokens=30)
    assert found.tokens == run(target, PROMPT, max_tokens=30).tokens


def test_the_fixed_tree_has_the_nodes_of_its_paths(tmp_path: Path) -> None:
    target = target_of("llama", "lean")
    drafter = drafter_of("medusa", "llama", target, tmp_path, shape="static", paths=PATHS)
    found = run(target, PROMPT, drafter, verifier=TreeVerifier(), max_tokens=20)
    assert {r.num_draft_tokens for r in found.rounds[:4]} == {len(PATHS)}
    assert {r.max_path_length for r in found.rounds[:4]} == {3}


def test_the_dynamic_tree_has_the_most_probable_nodes_by_the_product_of_marginals(
    tmp_path: Path,
) -> None:
    """Against all paths of three levels by brute force."""
    target = target_of("llama", "lean")
    drafter = drafter_of("medusa", "llama", target, tmp_path, max_nodes=9, top_k=9)
    slot = target.open(40)
    (scores,) = target.score([Work(slot, PROMPT[:-1], logits=False, hidden=Hidden(final=True))])
    session = drafter.open(target.view(slot), 40)
    session.observe(Committed(tuple(PROMPT), hidden=scores.hidden))
    draft = drive(session.propose(Budget(3), SamplingWarp(SamplingParams()), SeededNoise(0)))
    assert scores.hidden is not None
    assert scores.hidden.final is not None
    rows = drafter.head._logits(scores.hidden.final[-1:], 3, target.view(slot))[0].softmax(dim=-1)
    products: dict[tuple[int, ...], float] = {}
    for depth in range(3):
        tops = [row.topk(9).indices.tolist() for row in rows[: depth + 1]]
        paths: list[tuple[int, ...]] = [()]
        for top in tops:
            paths = [(*path, token) for path in paths for token in top]
        for path in paths:
            value = 1.0
            for level, token in enumerate(path):
                value *= float(rows[level, token])
            products[path] = value
    best = sorted(products, key=products.__getitem__, reverse=True)[:9]
    found = {tuple(draft.tokens[i] for i in draft.path(node)) for node in range(len(draft))}
    assert found == set(best)
