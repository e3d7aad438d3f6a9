"""Known acceptance of every rule at one node, and on a tree, by enumeration of the rule itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.errors import ContractViolation, InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.testing.transport import optimal_acceptance
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.kseq import KseqVerifier, solve
from paceline.verifiers.naive import NaiveVerifier
from paceline.verifiers.rrs import RrsVerifier
from paceline.verifiers.rrsw import RrswVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.traversal import TraversalVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rounds import (
    A,
    B,
    Law,
    Rule,
    always,
    chain,
    emitted_law,
    joint_law,
    largest_difference,
    play,
    target_law,
)
from tests.trees import TREES, Shape, table, tree

IID, WITHOUT, CHOSEN = Scheme.IID, Scheme.WITHOUT_REPLACEMENT, Scheme.CHOSEN
MIXED = Scheme.MIXED
RULES: dict[str, Rule] = {
    rule.name: rule.verify
    for rule in (
        RrsVerifier(),
        RrswVerifier(),
        TreeVerifier(),
        KseqVerifier(),
        NaiveVerifier(),
        TraversalVerifier(),
        TokenVerifier(),
    )
}


def accepted(rule: str, p: Law, q: Law, shape: Shape, scheme: Scheme) -> float:
    """The expected number of accepted tokens."""
    emitted = emitted_law(RULES[rule], p, tree(q, shape, scheme))
    return sum((len(tokens) - 1) * share for tokens, share in emitted.items())


def at_one_node(rule: str, pair: tuple[Tensor, Tensor], k: int, scheme: Scheme) -> float:
    return accepted(rule, always(pair[0]), always(pair[1]), (ROOT,) * k, scheme)


TABLE = [
    # pair, k, RRS, RRSw, naive with and without replacement, K-SEQ, its rho, best with and without
    (A, 1, 0.7, 0.7, 0.33, 0.33, 0.7, 1, 0.7, 0.7),
    (A, 2, 0.82, 0.875, 0.513, 0.6783, 0.84, 1.4, 0.89, 0.992857),
    (A, 3, 0.848, 1.0, 0.6249, 1.0, 0.875, 1.75, 0.971, 1),
    (B, 1, 0.55, 0.55, None, None, 0.55, 1, 0.55, 0.55),
    (B, 2, 0.645, 0.670833, 0.32875, 0.393105, 0.658443, 1.584429, 0.69, 0.734524),
    (B, 3, 0.6805, 0.771389, 0.437625, 0.638145, 0.710003, 2.100031, 0.771, 0.94881),
]


@pytest.mark.parametrize(
    "row", TABLE, ids=[f"{'A' if r[0] is A else 'B'}, k={r[1]}" for r in TABLE]
)
def test_acceptance_at_one_node_has_the_known_values(row: tuple[object, ...]) -> None:
    pair, k, rrs, rrsw, naive_iid, naive_without, kseq, rho, best_iid, best_without = row
    close = 5e-5
    for rule, scheme, value in (
        ("rrs", IID, rrs),
        ("tree", IID, rrs),
        ("rrsw", WITHOUT, rrsw),
        ("tree", WITHOUT, rrsw),
        ("kseq", IID, kseq),
        ("naive", IID, naive_iid),
        ("naive", WITHOUT, naive_without),
        # At one level a leaf is tested as recursive rejection tests it.
        ("traversal", IID, rrs),
        ("traversal", WITHOUT, rrsw),
    ):
        if value is not None:
            assert at_one_node(rule, pair, k, scheme) == pytest.approx(value, abs=close)  # type: ignore[arg-type]
    p, q = pair  # type: ignore[misc]
    assert solve(p, q, k).rho == pytest.approx(rho, abs=1e-6)  # type: ignore[arg-type]
    assert optimal_acceptance(p, q, k, IID) == pytest.approx(best_iid, abs=1e-6)  # type: ignore[arg-type]
    assert optimal_acceptance(p, q, k, WITHOUT) == pytest.approx(best_without, abs=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize(("pair", "values"), [(A, (0.3, 0.7)), (B, (0.125, 0.25))], ids="AB")
@pytest.mark.parametrize("rule", ["tree", "rrs", "rrsw", "naive", "traversal"])
def test_chosen_children_are_accepted_with_their_mass(
    rule: str, pair: tuple[Tensor, Tensor], values: tuple[float, float]
) -> None:
    """The k most probable tokens under q; no rule can do better."""
    for k, value in enumerate(values, start=1):
        assert at_one_node(rule, pair, k, CHOSEN) == pytest.approx(value, abs=1e-12)
        assert optimal_acceptance(*pair, k, CHOSEN) == pytest.approx(value, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [
            *((rule, IID) for rule in ("rrs", "kseq", "naive")),
            *((rule, WITHOUT) for rule in ("rrsw", "naive")),
            *((rule, MIXED) for rule in ("rrs", "naive")),
        ]
    ),
    st.integers(1, 3),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.5]),
)
def test_no_rule_accepts_more_than_optimal_transport(
    rule: tuple[str, Scheme], k: int, seed: int, zeros: float
) -> None:
    p, q = table(seed, 1, 4, zeros)(()), table(seed + 1, 1, 4, zeros)(())
    bound = optimal_acceptance(p, q, k, rule[1])
    found = at_one_node(rule[0], (p, q), k, rule[1])
    assert found <= bound + 1e-12
    if rule[0] == "kseq":
        assert found >= (1 - 1 / torch.e) * bound - 1e-12
    if k == 1 and rule[0] != "naive":
        assert found == pytest.approx(bound, abs=1e-12)


def test_expected_accepted_tokens_on_a_known_tree() -> None:
    """The root has 1 and 2, node 1 has 3 and 4, node 2 has 5; distribution A at every node."""
    shape = TREES["two and one below"]
    p, q = always(A[0]), always(A[1])
    assert accepted("rrsw", p, q, shape, WITHOUT) == pytest.approx(1.61, abs=5e-3)
    assert accepted("traversal", p, q, shape, WITHOUT) == pytest.approx(1.67, abs=5e-3)


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("scheme", [IID, WITHOUT], ids=str)
def test_traversal_accepts_no_less_than_recursive_rejection_here(
    shape: str, scheme: Scheme
) -> None:
    p, q = table(31, 5, 2), table(32, 5, 2)
    by_walk = accepted("tree", p, q, TREES[shape], scheme)
    assert accepted("traversal", p, q, TREES[shape], scheme) >= by_walk - 1e-12


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["rrs", "rrsw", "tree", "kseq"]), st.integers(0, 3))
def test_on_a_chain_recursive_rejection_is_token_verification(
    seed: int, rule: str, gamma: int
) -> None:
    """Token for token, except for K-SEQ whose residual is written otherwise: its law."""
    p, q = table(seed, gamma + 1, 3, 0.3), table(seed + 1, gamma + 1, 3, 0.3)
    if rule == "kseq":
        one, two = (emitted_law(RULES[name], p, chain(q, gamma)) for name in (rule, "token"))
        assert largest_difference(one, two) < 1e-12
    else:
        for stream in range(5):
            one, two = (
                play(RULES[name], p, chain(q, gamma), SeededNoise(seed, stream))
                for name in (rule, "token")
            )
            assert one == two


@pytest.mark.parametrize("rule", ["rrs", "tree", "traversal", "naive"])
@pytest.mark.parametrize("seed", range(3))
def test_mixed_siblings_of_several_laws(rule: str, seed: int) -> None:
    """One from q, one from a law that depends on it, a chosen one; a pair below the second."""
    p, q, other = (table(seed + number, 3, 3, 0.2) for number in (41, 51, 61))

    def drafting(noise: Noise) -> Draft:
        laws: list[Tensor | None] = [q(())]
        tokens = [noise.sample(q(()), 0, Purpose.DRAFT)]
        for above in (tokens[0], None):
            path = () if above is None else (above,)
            laws.append(other(path))
            tokens.append(noise.sample(other(path), 0, Purpose.DRAFT))
        laws += [None, q((tokens[1],)), None]
        tokens += [seed, noise.sample(q((tokens[1],)), 1, Purpose.DRAFT), 2 - seed]
        parents = (ROOT, ROOT, ROOT, ROOT, 1, 1)
        return Draft(tuple(tokens), parents, tuple(laws), MIXED)

    emitted = emitted_law(RULES[rule], p, drafting)
    assert largest_difference(joint_law(emitted, p, 3), target_law(p, 3)) < 1e-12


def test_mixed_siblings_at_one_node() -> None:
    """Recursive rejection of a drawn and a chosen one: sum min(p, q), then what is left of p."""
    for p, q in (A, B):
        expected = float(p.minimum(q).sum())
        left = (p - q).clamp(min=0)
        for first in range(len(q)):
            rejected = float(q[first] - min(p[first], q[first]))
            second = next(t for t in q.argsort(descending=True).tolist() if t != first)
            expected += rejected * float(left[second] / left.sum())
        for rule in ("rrs", "tree", "traversal"):
            assert at_one_node(rule, (p, q), 2, MIXED) == pytest.approx(expected, abs=1e-12)
        assert expected <= optimal_acceptance(p, q, 2, MIXED) + 1e-12


# ---------------------------------------------------------------- equal siblings, padding, misuse


def test_equal_siblings_count_again_with_replacement() -> None:
    """Merging them would be lossy: the second draw too has to be taken out of p."""
    p, q = A

    def merged(noise: object) -> Draft:
        draft = tree(always(q), (ROOT, ROOT), IID)(noise)  # type: ignore[arg-type]
        tokens = tuple(dict.fromkeys(draft.tokens))
        return Draft(tokens, (ROOT,) * len(tokens), (q,) * len(tokens), IID)

    emitted = emitted_law(RULES["rrs"], always(p), merged)
    first = [sum(share for t, share in emitted.items() if t[0] == x) for x in range(3)]
    assert max(abs(a - b) for a, b in zip(first, p.tolist(), strict=True)) > 0.01


@pytest.mark.parametrize("rule", ["naive", "tree", "rrs", "rrsw"])
def test_equal_chosen_siblings_are_one(rule: str) -> None:
    """Both copies' children can be reached: 1 is chosen twice, with 0 and with 2 below."""
    draft = Draft((1, 1, 0, 2), (ROOT, ROOT, 0, 1), scheme=CHOSEN)
    point = torch.eye(3, dtype=torch.float64)

    def p(node: int) -> Tensor:
        return point[1] if node == ROOT else point[2]

    verdict = RULES[rule](draft, p, SeededNoise(0), 0)
    assert verdict == Verdict((1, 3), 2)


@pytest.mark.parametrize("rule", [*RULES, "coupling"])
def test_what_was_not_drafted_is_not_accepted(rule: str) -> None:
    """Padding with token 0 was accepted elsewhere where the best token was 0."""
    verify = RULES.get(rule, CouplingVerifier().verify)
    point = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    schemes = {"kseq": IID, "token": Scheme.SINGLE}
    for tokens in ((), (1,), (2, 1)):
        scheme = schemes.get(rule, CHOSEN)
        parents = tuple(range(-1, len(tokens) - 1))
        draft = Draft(tokens, parents, scheme=scheme)
        assert verify(draft, lambda node: point, SeededNoise(1), 0) == Verdict((), 0)


def test_drafts_that_cannot_have_been_drawn_are_refused() -> None:
    p, q = A
    zero = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    twice = Draft((1, 1), (ROOT, ROOT), (q, q), WITHOUT)

    class Never(SeededNoise):
        def accept(self, probability: float, position: int) -> bool:
            return False

    for rule in ("rrsw", "tree", "traversal"):
        with pytest.raises(ContractViolation, match="actually drawn from"):
            RULES[rule](twice, lambda node: p, Never(0), 0)
    for rule, scheme in (("rrs", IID), ("kseq", IID), ("traversal", IID)):
        with pytest.raises(ContractViolation):
            RULES[rule](Draft((0,), None, (zero,), scheme), lambda node: p, Never(0), 0)
    mixed = Draft((1, 2), (ROOT, ROOT), (q, zero), IID)
    with pytest.raises(ContractViolation, match="one law"):
        RULES["kseq"](mixed, lambda node: p, Never(0), 0)
    with pytest.raises(ContractViolation, match="one law"):
        RULES["kseq"](Draft((1, 2), (ROOT, ROOT), None, IID), lambda node: p, Never(0), 0)


def test_rho_of_k_seq_solves_its_equation_on_a_large_vocabulary() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = (2 * torch.randn(2, 20_000, generator=generator)).softmax(dim=-1)
    for k in (2, 4, 16):
        rho, beta = solve(p, q, k)
        assert 1 <= rho <= k
        direct = float(torch.minimum(q.double(), p.double() / rho).sum())
        assert beta == pytest.approx(direct, abs=1e-6)
        assert 1 - (1 - beta) ** k == pytest.approx(rho * beta, abs=1e-6)


def test_laws_that_share_no_token_leave_p() -> None:
    p, q = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    for rule, scheme in (("rrs", IID), ("kseq", IID), ("rrsw", WITHOUT), ("traversal", WITHOUT)):
        emitted = emitted_law(RULES[rule], always(p), tree(always(q), (ROOT, ROOT), scheme))
        assert emitted == {(0,): 1.0}


def test_optimal_transport_is_for_small_vocabularies() -> None:
    with pytest.raises(InvalidInput, match="at most 12"):
        optimal_acceptance(torch.ones(13) / 13, torch.ones(13) / 13, 2, IID)


@pytest.mark.parametrize("rule", RULES)
def test_nothing_that_is_handed_in_is_changed(rule: str) -> None:
    p, q = A
    before = p.clone(), q.clone()
    scheme = {"rrsw": WITHOUT, "token": Scheme.SINGLE}.get(rule, IID)
    shape = (ROOT, 0) if rule == "token" else TREES["a child under the second"]
    emitted_law(RULES[rule], always(p), tree(always(q), shape, scheme))
    assert torch.equal(p, before[0])
    assert torch.equal(q, before[1])
