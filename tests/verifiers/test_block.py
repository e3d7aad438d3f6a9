"""Block verification: known lengths, the identities that it is part of, and HSD beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.sampling.noise import SeededNoise
from paceline.verifiers.block import BlockVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.traversal import TraversalVerifier
from tests.rounds import (
    PAIR,
    A,
    Law,
    Rule,
    Tokens,
    always,
    chain,
    emitted_law,
    joint_law,
    largest_difference,
    play,
    target_law,
)
from tests.trees import table

block, token, traversal = (
    rule.verify for rule in (BlockVerifier(), TokenVerifier(), TraversalVerifier())
)


def expected_accepted(rule: Rule, p: Law, q: Law, gamma: int) -> float:
    emitted = emitted_law(rule, p, chain(q, gamma))
    return sum((len(tokens) - 1) * share for tokens, share in emitted.items())


@pytest.mark.parametrize(
    ("pair", "gamma", "by_token", "by_block"),
    [
        (A, 1, 0.7, 0.7),
        (A, 2, 1.19, 1.25),
        (A, 3, 1.533, 1.704),
        (A, 4, 1.7731, 2.0887),
        (PAIR, 2, 10 / 9, 11 / 9),
    ],
)
def test_expected_accepted_tokens_of_known_pairs(
    pair: tuple[Tensor, Tensor], gamma: int, by_token: float, by_block: float
) -> None:
    p, q = always(pair[0]), always(pair[1])
    assert expected_accepted(token, p, q, gamma) == pytest.approx(by_token, abs=1e-12)
    assert expected_accepted(block, p, q, gamma) == pytest.approx(by_block, abs=1e-12)


def test_the_full_information_bound_is_not_reached() -> None:
    """sum over l of sum min(p^l, q^l) is 12/9 for the worked pair; no rule gets there."""
    p, q = PAIR
    bound = 0.0
    for length in (1, 2):
        for tokens in itertools.product(range(2), repeat=length):
            joint = [float(law[list(tokens)].prod()) for law in (p, q)]
            bound += min(joint)
    assert bound == pytest.approx(12 / 9, abs=1e-12)
    assert expected_accepted(block, always(p), always(q), 2) < bound


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.4]), st.integers(1, 3))
def test_the_number_of_accepted_tokens_has_the_law_of_the_weights(
    seed: int, zeros: float, gamma: int
) -> None:
    """P(at least l are accepted | the first l) = p_l, and never less than token by token."""
    p, q = table(seed, gamma + 1, 2, zeros), table(seed + 1, gamma + 1, 2, zeros)
    accepted = 0.0
    for length in range(1, gamma + 1):
        for tokens in itertools.product(range(2), repeat=length):
            weight = drawn = 1.0
            for i, x in enumerate(tokens):
                mass = float(q(tokens[:i])[x])
                drawn *= mass
                if mass > 0:
                    weight = min(1.0, weight * float(p(tokens[:i])[x]) / mass)
            accepted += drawn * weight
    assert expected_accepted(block, p, q, gamma) == pytest.approx(accepted, abs=1e-12)
    assert accepted >= expected_accepted(token, p, q, gamma) - 1e-12


@given(st.integers(0, 2**32), st.integers(0, 4))
@settings(max_examples=50, deadline=None)
def test_on_a_chain_block_and_traversal_are_one_rule_token_for_token(seed: int, gamma: int) -> None:
    p, q = table(seed, gamma + 1, 4, 0.3), table(seed + 1, gamma + 1, 4, 0.3)
    for stream in range(10):
        one, two = (
            play(rule, p, chain(q, gamma), SeededNoise(seed, stream)) for rule in (block, traversal)
        )
        assert one == two


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_one_draft_token_is_verified_as_by_token_verification(seed: int) -> None:
    p, q = table(seed, 2, 4, 0.3), table(seed + 1, 2, 4, 0.3)
    for stream in range(10):
        one, two = (
            play(rule, p, chain(q, 1), SeededNoise(seed, stream)) for rule in (block, token)
        )
        assert one == two


def test_point_masses_are_accepted_as_often_as_token_by_token() -> None:
    """A point mass leaves nothing to make up for, so a greedy draft gains nothing."""
    p = table(4, 4, 3)
    for tokens in itertools.product(range(3), repeat=3):
        draft = Draft(tokens)
        one, two = (emitted_law(rule, p, lambda noise: draft) for rule in (block, token))  # noqa: B023
        assert sum(len(t) * share for t, share in one.items()) == pytest.approx(
            sum(len(t) * share for t, share in two.items()), abs=1e-12
        )


def test_nothing_behind_a_token_without_a_chance_is_paid_for() -> None:
    asked: list[int] = []

    def behind(node: int) -> Tensor:
        asked.append(node)
        return torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)

    verdict = block(Draft((0, 1, 0, 0)), behind, SeededNoise(0), 0)
    assert verdict == Verdict((0,), 0)
    assert set(asked) == {ROOT, 0}


# ---------------------------------------------------------------- Hierarchical Speculative Decoding


@dataclass(frozen=True)
class Hsd:
    """HSD as published (2601.05724): a backward scan with joint ratios, written from its formulas.

    Args:
        capped: whether the ratio starts again behind its largest value above 1.
    """

    capped: bool = True

    def ratio(self, ratios: list[float], t: int) -> float:
        """r* of the first t tokens."""
        product = 1.0
        products = [1.0]
        for value in ratios[:t]:
            product *= value
            products.append(product)
        m = max(range(t), key=products.__getitem__) if t and self.capped else 0
        start = products[m] if products[m] > 1 else 1.0
        return products[t] / start

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        gamma = len(draft)
        laws = [p(node - 1 if node else ROOT) for node in range(gamma + 1)]
        drafted = [draft.law(node) for node in range(gamma)]
        ratios = [
            float(laws[i][x]) / float(drafted[i][x])  # type: ignore[index]
            for i, x in enumerate(draft.tokens)
        ]
        for length in range(gamma, -1, -1):
            if length == gamma:
                if noise.accept(min(1.0, self.ratio(ratios, gamma)), position + gamma - 1):
                    law = laws[gamma]
                    break
                continue
            q = drafted[length]
            assert q is not None
            children = torch.tensor(
                [
                    self.ratio([*ratios[:length], float(laws[length][v]) / float(q[v])], length + 1)
                    for v in range(len(q))
                ],
                dtype=torch.float64,
            )
            law = (q * (children - 1)).clamp(min=0)
            lacking = float((q * (1 - children)).clamp(min=0).sum())
            h = float(law.sum()) / lacking if lacking > 0 else 1.0
            if length == 0 or noise.accept(min(1.0, h), position + length - 1):
                break
        return Verdict(tuple(range(length)), noise.sample(law, position + length, Purpose.TARGET))


@pytest.mark.parametrize("seed", range(6))
def test_hsd_is_block_verification(seed: int) -> None:
    """Six random models, V = 3, gamma = 3: the law of what a round emits is the same."""
    p, q = table(10 + seed, 4, 3), table(20 + seed, 4, 3)
    one, two = (emitted_law(rule, p, chain(q, 3)) for rule in (block, Hsd().verify))
    assert largest_difference(one, two) < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_hsd_without_its_cap_accepts_more_and_is_lossy(seed: int) -> None:
    p, q = table(10 + seed, 3, 3), table(20 + seed, 3, 3)
    lossy = Hsd(capped=False).verify
    assert expected_accepted(lossy, p, q, 2) > expected_accepted(block, p, q, 2) + 1e-3
    found = joint_law(emitted_law(lossy, p, chain(q, 2)), p, 3)
    assert largest_difference(found, target_law(p, 3)) > 1e-3


def test_a_tokens_path_is_a_prefix() -> None:
    tokens: Tokens = (0, 1, 2)
    p, q = A
    for seed in range(50):
        verdict = block(Draft(tokens, probs=(q, q, q)), lambda node: p, SeededNoise(seed), 0)
        assert verdict.path == tuple(range(len(verdict.path)))
