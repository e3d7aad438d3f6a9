"""Chains and trees from the logits of a head, for each kind of head: laws, rows, budgets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from paceline.controllers.confidence import ConfidenceController
from paceline.core.drafts import Budget, Draft, Scheme
from paceline.core.passes import drive
from paceline.core.protocols import Steps, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.head import AnyHeadDrafter
from paceline.drafters.hybrid import HybridDrafter
from paceline.drafters.medusa import MedusaDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafting.heads.contract import Level
from paceline.drafting.heads.vocabulary import check_token_ids, spread
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.testing import check_drafter
from paceline.testing.table import TableTarget
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.traversal import TraversalVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import assert_same_law, law_of_run, run
from tests.scripted_heads import (
    KINDS,
    OneShotHead,
    RecurrentHead,
    ScriptedDrafter,
    SequentialHead,
    cut,
    scripted_table,
)

WARM = SamplingParams(temperature=1.0)
RULES: dict[str, Verifier] = {
    "token": TokenVerifier(),
    "tree": TreeVerifier(),
    "traversal": TraversalVerifier(),
    "coupling": CouplingVerifier(),
}
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"shape": "chain"},
    "dynamic": {"max_nodes": 3, "top_k": 2},
    "static": {"shape": "static", "paths": [[0], [1], [0, 0]]},
    "sequoia": {"shape": "sequoia", "acceptance": [0.5, 0.3], "max_nodes": 3},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shape", "children", "rule"),
    [
        ("chain", "sampled", "token"),
        ("dynamic", "sampled", "tree"),
        ("dynamic", "independent", "traversal"),
        ("static", "chosen", "tree"),
        ("static", "sampled", "coupling"),
        ("sequoia", "sampled", "traversal"),
    ],
)
def test_its_contract_and_the_law_of_the_output(
    kind: str, shape: str, children: Any, rule: str
) -> None:
    """All outcomes of the noise: q is what drew, nothing drawn is dropped, the output is p's."""
    drafter = ScriptedDrafter(KINDS[kind], children=children, **SHAPES[shape])
    check_drafter(
        drafter,
        target=scripted_table(max_length=20),
        params=WARM,
        verifier=RULES[rule],
        text_alone=True,
    )


@pytest.mark.parametrize("shape", ["chain", "dynamic"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_vocabulary_keeps_the_law(kind: str, shape: str) -> None:
    """Tokens that the head does not have come from the target alone."""
    drafter = ScriptedDrafter(cut(KINDS[kind], [0, 2]), **SHAPES[shape])
    rule = RULES["token" if shape == "chain" else "tree"]
    options: dict[str, Any] = {"params": WARM, "max_tokens": 3}
    plain = law_of_run(scripted_table(), (2, 1), None, **options)
    found = law_of_run(scripted_table(), (2, 1), drafter, k=2, verifier=rule, **options)
    assert_same_law(found, plain)
    assert any(1 in tokens for tokens in found)


@pytest.mark.parametrize("mix", [CascadeDrafter, HybridDrafter])
@pytest.mark.parametrize("kind", KINDS)
def test_beside_n_grams_it_reads_all_rows_and_keeps_the_law(kind: str, mix: Any) -> None:
    """The recurrent head itself asserts that each token stands beside the state before it."""
    drafter = mix((NgramDrafter(max_ngram=1), ScriptedDrafter(KINDS[kind], max_nodes=3)))
    options: dict[str, Any] = {"params": WARM, "max_tokens": 3}
    plain = law_of_run(scripted_table(), (0, 1, 0), None, **options)
    rule = TreeVerifier()
    found = law_of_run(scripted_table(), (0, 1, 0), drafter, k=2, verifier=rule, **options)
    assert_same_law(found, plain)


def test_rows_come_in_parts_and_with_their_tokens() -> None:
    log: list[tuple[int, ...]] = []
    head, table = RecurrentHead(log=log), scripted_table()
    prompt = (0, 2, 1, 1, 0, 2, 2)
    found = run(
        table,
        prompt,
        ScriptedDrafter(head),
        verifier=TreeVerifier(),
        params=WARM,
        max_tokens=8,
        prefill_rows=3,
    )
    assert tuple(token for part in log for token in part) == (*prompt, *found.tokens)[1:]
    assert [len(part) for part in log[:2]] == [3, 3]


def proposal(
    head: Any,
    budget: Budget,
    prompt: tuple[int, ...] = (0, 1, 2),
    *,
    seed: int = 0,
    temperature: float = 1.0,
    **settings: Any,
) -> Draft:
    table = scripted_table()
    session = ScriptedDrafter(head, **settings).open(table.view(table.open(30)), 30)
    hidden = (
        table._hidden([prompt[:end] for end in range(1, len(prompt))], next(iter(head.needs)))
        if len(prompt) > 1
        else None
    )
    session.observe(Committed(prompt, hidden=hidden))
    warp = SamplingWarp(SamplingParams(temperature=temperature), prompt)
    return drive(session.propose(budget, warp, SeededNoise(seed)))


def test_one_product_a_level_serves_all_siblings() -> None:
    asked = []

    class Counting(SequentialHead):
        def open(self, target: Any, capacity: int) -> Any:
            state = super().open(target, capacity)
            follow = state.follow
            state.follow = lambda parents, tokens: (  # type: ignore[method-assign]
                asked.append(len(tokens)),
                follow(parents, tokens),
            )[1]
            return state

    draft = proposal(Counting(), Budget(3), shape="static", branching=[2, 2, 1])
    assert asked == [2, 4]
    assert len(draft) == 2 + 4 + 4


@pytest.mark.parametrize("shape", ["chain", "dynamic", "static"])
def test_budgets_and_levels_bound_the_draft(shape: str) -> None:
    settings = SHAPES[shape]
    head = OneShotHead(levels=2)
    assert proposal(head, Budget(9), **settings).max_path_length == 2
    assert proposal(head, Budget(1), **settings).max_path_length == 1
    assert len(proposal(head, Budget(2, max_nodes=1), **settings)) == 1
    assert len(proposal(head, Budget(2, max_nodes=0), **settings)) == 0
    assert len(proposal(head, Budget(0), **settings)) == 0


class Foreseeing(SequentialHead):
    """Says how sure it is of a place by the tokens before it."""

    @staticmethod
    def sure(path: tuple[int, ...]) -> float:
        return (0.9, 0.3, 0.6)[sum(path) % 3]

    def open(self, target: Any, capacity: int) -> Any:
        inner, sure = super().open(target, capacity), self.sure

        class State:
            observe, close = inner.observe, inner.close
            path: tuple[int, ...] = ()

            def start(self, levels: int) -> Steps[Level]:
                self.path = ()
                level = yield from inner.start(levels)
                return Level(level.logits, torch.tensor([sure(())]))

            def follow(self, parents: Any, tokens: Any) -> Steps[Level]:
                self.path += tuple(tokens[:1])
                level = yield from inner.follow(parents, tokens)
                return Level(level.logits, torch.tensor([sure(self.path)] * len(tokens)))

        return State()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_head_foresees_ends_a_chain_before_the_draw(temperature: float) -> None:
    """The confidences are its own, of each place by the tokens before."""
    drafted = set()
    for seed, prompt in enumerate([(0, 1, 2), (2, 2, 1), (1, 1), (0, 2)]):
        options: dict[str, Any] = {"prompt": prompt, "seed": seed, "temperature": temperature}
        whole = proposal(Foreseeing(), Budget(4), shape="chain", **options)
        sure = [Foreseeing.sure(whole.tokens[:place]) for place in range(len(whole))]
        assert whole.is_foreseen
        assert whole.confidence == pytest.approx(sure)
        below = [place for place, one in enumerate(sure) if one < 0.5]
        found = proposal(Foreseeing(), Budget(4, min_confidence=0.5), shape="chain", **options)
        assert found.tokens == whole.tokens[: below[0] if below else None]
        products = [math.prod(sure[: place + 1]) for place in range(4)]
        low = [place for place, one in enumerate(products) if one < 0.6]
        cut = proposal(Foreseeing(), Budget(4, min_path_confidence=0.6), shape="chain", **options)
        assert cut.tokens == whole.tokens[: low[0] if low else None]
        drafted |= {len(found), len(cut)}
    assert len(drafted) > 1


def test_what_a_head_foresees_keeps_the_contract_and_the_law() -> None:
    """Its own confidence decides how long drafts are, in every outcome of the noise."""
    options: dict[str, Any] = {"params": WARM, "max_tokens": 3}
    drafter = ScriptedDrafter(Foreseeing(), shape="chain")
    check_drafter(drafter, target=scripted_table(max_length=20), params=WARM, text_alone=True)
    plain = law_of_run(scripted_table(), (2, 1), None, **options)
    controller = ConfidenceController(2, threshold=0.5)
    found = law_of_run(scripted_table(), (2, 1), drafter, controller=controller, **options)
    assert_same_law(found, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_one_token_has_no_state_yet(kind: str) -> None:
    assert len(proposal(KINDS[kind], Budget(2), prompt=(1,))) == 0
    drafter = ScriptedDrafter(KINDS[kind])
    found = run(scripted_table(), (1,), drafter, verifier=TreeVerifier(), max_tokens=6)
    assert found.tokens == run(scripted_table(), (1,), max_tokens=6).tokens
    assert any(r.num_draft_tokens for r in found.rounds[1:])


def test_the_kinds_of_drafts_follow_from_the_shape() -> None:
    chain, tree = (ScriptedDrafter(OneShotHead(), shape=shape) for shape in ("chain", "dynamic"))
    assert (chain.default_verifier, tree.default_verifier) == ("token", "tree")
    assert chain.drafts.schemes == {Scheme.SINGLE}
    assert tree.drafts.schemes == {Scheme.WITHOUT_REPLACEMENT}
    assert tree.greedy_drafts.schemes == {Scheme.CHOSEN}
    assert "tree" in tree.needs
    assert "tree" not in chain.needs


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="shape must be one of chain, dynamic"):
        ScriptedDrafter(OneShotHead(), shape="line")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="drafts with a head; it was given 'heads/medusa'"):
        ScriptedDrafter("heads/medusa")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'medusa' does not draft with scripted, which is a hea"):
        MedusaDrafter(OneShotHead())
    assert AnyHeadDrafter(OneShotHead()).head == OneShotHead()
    with pytest.raises(InvalidInput, match="paths goes with the shape 'static'"):
        ScriptedDrafter(OneShotHead(), paths=[[0]])


def test_a_target_without_states_is_refused() -> None:
    table = TableTarget(torch.tensor([0.5, 0.5]))
    with pytest.raises(InvalidInput, match="needs hidden states final of the target"):
        run(table, (0, 1), ScriptedDrafter(OneShotHead(vocab_size=2)), max_tokens=3)


def test_a_vocabulary_is_spread_and_checked() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    spread_rows = spread(rows, torch.tensor([2, 0]), 3)
    inf = torch.inf
    assert spread_rows.tolist() == [[2.0, -inf, 1.0], [4.0, -inf, 3.0]]
    assert spread_rows.dtype is torch.float32
    assert spread(rows.double(), None, 3).tolist() == [[1.0, 2.0, -inf], [3.0, 4.0, -inf]]
    assert spread(rows.float(), None, 1).tolist() == [[1.0], [3.0]]
    with pytest.raises(InvalidInput, match="proposes token 3, which its target does not have"):
        check_token_ids("it", torch.tensor([0, 3]), 3)
    with pytest.raises(InvalidInput, match="proposes token -1"):
        check_token_ids("it", torch.tensor([0, -1]), None)
    with pytest.raises(InvalidInput, match="names a token twice"):
        check_token_ids("it", torch.tensor([1, 1]), 3)
