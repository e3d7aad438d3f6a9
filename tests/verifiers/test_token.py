"""Token verification keeps the law of the target, and the faults of others show.

The oracle is enumeration: the rule itself is run for every outcome of its noise (testing/law.py).
"""

from __future__ import annotations

import bisect
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.drafts import ROOT, Draft
from paceline.core.protocols import Noise, Purpose
from paceline.errors import ContractViolation
from paceline.verifiers.token import TokenVerifier, acceptance_probability, residual
from tests import lossy
from tests.rounds import (
    PAIR,
    A,
    B,
    Drafting,
    Law,
    Rule,
    Tokens,
    always,
    chain,
    emitted_law,
    first_token,
    joint_law,
    largest_difference,
    law,
    play,
    target_law,
)

verify = TokenVerifier().verify

# ---------------------------------------------------------------- the law of the output is p

VOCABULARY = {1: 4, 2: 3, 3: 3, 4: 2, 5: 2, 6: 2}
"""By draft length: the vocabulary, small where there are many outcomes."""


def tables(gamma: int) -> st.SearchStrategy[Tensor]:
    """Laws by position and by the token before: `[gamma + 1, V, V]`, with zeros and one-hots."""
    vocab = VOCABULARY[gamma]

    def build(seed: int, zeros: float) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = gamma + 1, vocab, vocab
        weights = torch.rand(shape, generator=generator, dtype=torch.float64)
        weights *= torch.rand(shape, generator=generator) >= zeros
        # Where every weight fell away, one token takes all.
        weights[..., seed % vocab] += weights.sum(dim=-1) == 0
        return weights / weights.sum(dim=-1, keepdim=True)

    return st.builds(build, st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.7]))


def by_position(table: Tensor) -> Law:
    return lambda tokens: table[len(tokens), tokens[-1] if tokens else 0]


def mixed(q: Law, points: list[int | None]) -> Drafting:
    """A chain of which some tokens are drawn and some chosen."""

    def draft(noise: Noise) -> Draft:
        tokens: Tokens = ()
        laws: list[Tensor | None] = []
        for position, point in enumerate(points):
            laws.append(q(tokens) if point is None else None)
            token = point
            if token is None:
                token = noise.sample(q(tokens), position, Purpose.DRAFT)
            tokens += (token,)
        return Draft(tokens, probs=tuple(laws))

    return draft


@pytest.mark.parametrize(
    ("gamma", "examples"), [(1, 200), (2, 100), (3, 40), (4, 40), (5, 20), (6, 15)]
)
def test_the_joint_law_of_the_output_is_the_targets(gamma: int, examples: int) -> None:
    tokens = range(VOCABULARY[gamma])
    point = st.sampled_from([None] * 6 + [*tokens])  # most are drawn, some are chosen

    @settings(max_examples=examples)
    @given(tables(gamma), tables(gamma), st.lists(point, min_size=gamma, max_size=gamma))
    def holds(p_table: Tensor, q_table: Tensor, points: list[int | None]) -> None:
        p, q = by_position(p_table), by_position(q_table)
        emitted = emitted_law(verify, p, mixed(q, points))
        found = joint_law(emitted, p, gamma + 1)
        assert largest_difference(found, target_law(p, gamma + 1)) < 1e-12

    holds()


def test_an_empty_draft_yields_one_token_of_the_target() -> None:
    p, _ = A
    emitted = emitted_law(verify, always(p), lambda noise: Draft())
    assert emitted == {(token,): float(p[token]) for token in range(3)}


def test_stopping_after_a_kept_token_keeps_the_law() -> None:
    """The drafted length may depend on tokens that are kept.

    (As in Draft & Verify, 2309.08168; DSpark, 2607.05147, section 3.2.2, says why.)
    """
    p, q = A

    def draft(noise: Noise) -> Draft:
        full = chain(always(q), 3)(noise)
        kept = next((i + 1 for i, token in enumerate(full.tokens) if q[token] < 0.5), 3)
        assert full.probs is not None
        return Draft(full.tokens[:kept], probs=full.probs[:kept])

    found = joint_law(emitted_law(verify, always(p), draft), always(p), 4)
    assert largest_difference(found, target_law(always(p), 4)) < 1e-12


# ---------------------------------------------------------------- acceptance and residual

laws = st.lists(st.integers(0, 5), min_size=2, max_size=6).filter(any)


@given(laws, laws, st.data())
def test_the_residual_is_a_distribution_and_has_what_the_acceptance_lacks(
    p_weights: list[int], q_weights: list[int], data: st.DataObject
) -> None:
    size = min(len(p_weights), len(q_weights))
    p, q = (torch.tensor(w[:size], dtype=torch.float64) for w in (p_weights, q_weights))
    if not (p.any() and q.any()):
        return
    p, q = p / p.sum(), q / q.sum()
    token = data.draw(st.sampled_from(q.nonzero().flatten().tolist()))
    left = residual(p, q, token)
    assert (left >= 0).all()
    assert left.sum() > 0
    rejected = sum(
        float(q[x]) * (1 - acceptance_probability(p, q, x)) for x in range(size) if q[x] > 0
    )
    if rejected > 1e-12:
        # What is rejected is what the residual holds: sum of max(p - q, 0) = 1 - sum min(p, q).
        assert float(left.sum()) == pytest.approx(rejected, abs=1e-12)
        output = torch.minimum(p, q) + rejected * left / left.sum()
        torch.testing.assert_close(output, p, rtol=0, atol=1e-12)
    point = residual(p, None, token)
    assert (point >= 0).all()
    assert point.sum() > 0
    assert point[token] == 0 or float(p[token]) == 1


def test_the_worked_example_to_the_digit() -> None:
    q = law(0.6, 0.3, 0.1)
    p = law(0.4, 0.4, 0.2)
    acceptance = [acceptance_probability(p, q, token) for token in range(3)]
    assert acceptance == pytest.approx([2 / 3, 1, 1], abs=1e-15)
    assert sum(float(q[x]) * acceptance[x] for x in range(3)) == pytest.approx(0.8, abs=1e-15)
    left = residual(p, q, 0)
    torch.testing.assert_close(left / left.sum(), law(0, 0.5, 0.5), rtol=0, atol=1e-15)
    emitted = emitted_law(verify, always(p), chain(always(q), 1))
    assert first_token(emitted, 3) == pytest.approx([0.4, 0.4, 0.2], abs=1e-15)
    accepted = sum(value for tokens, value in emitted.items() if len(tokens) == 2)
    assert accepted == pytest.approx(0.8, abs=1e-15)


class Drawn:
    """Numbers drawn in advance: quick enough for 200,000 rounds."""

    def __init__(self, uniforms: list[float]) -> None:
        self._uniforms = iter(uniforms)

    def accept(self, probability: float, position: int) -> bool:
        return next(self._uniforms) < probability

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        cumulative = list(itertools.accumulate(law.tolist()))
        return bisect.bisect_right(cumulative, next(self._uniforms) * cumulative[-1])

    def race(self, law: Tensor, position: int) -> int:
        raise NotImplementedError


@pytest.mark.statistical
def test_the_worked_example_in_200_000_draws() -> None:
    """n = 200,000, seed 0. Each of four shares within 4 standard errors: a false alarm in 4,000."""
    n = 200_000
    q = law(0.6, 0.3, 0.1)
    p = law(0.4, 0.4, 0.2)
    noise = Drawn(np.random.default_rng(0).random(3 * n).tolist())
    draft, target = chain(always(q), 1), always(p)
    counts = [0, 0, 0]
    accepted = 0
    for _ in range(n):
        tokens = play(verify, target, draft, noise)
        counts[tokens[0]] += 1
        accepted += len(tokens) == 2
    for count, expected in zip([*counts, accepted], [0.4, 0.4, 0.2, 0.8], strict=True):
        assert abs(count / n - expected) < 4 * math.sqrt(expected * (1 - expected) / n)


def test_rounding_that_empties_the_residual_falls_back_to_the_target() -> None:
    p, _ = A
    assert torch.equal(residual(p, p.clone(), 0), p)
    point = law(0.0, 1.0)
    assert torch.equal(residual(point, None, 1), point)


def test_a_token_without_mass_is_refused() -> None:
    p, _ = A
    q = law(0.0, 0.5, 0.5)
    with pytest.raises(ContractViolation, match="actually drawn from"):
        acceptance_probability(p, q, 0)
    with pytest.raises(ContractViolation, match="actually drawn from"):
        acceptance_probability(p, torch.full((3,), torch.nan), 0)


def test_nothing_that_is_handed_in_is_changed() -> None:
    """vllm-ascend #2881: the residual of an n-gram draft zeroed the target's probabilities."""
    p, q = A
    for draft in (Draft((0, 1)), Draft((0, 1), probs=(q, q))):
        before = p.clone(), q.clone()
        emitted_law(verify, always(p), lambda noise, draft=draft: draft)  # type: ignore[misc]
        assert torch.equal(p, before[0])
        assert torch.equal(q, before[1])


# ---------------------------------------------------------------- expected length


def expected_length(emitted: dict[Tokens, float]) -> float:
    return sum(len(tokens) * probability for tokens, probability in emitted.items())


@settings(max_examples=25)
@given(st.integers(1, 6), laws, laws)
def test_the_expected_length_is_the_formula(
    gamma: int, p_weights: list[int], q_weights: list[int]
) -> None:
    size = min(len(p_weights), len(q_weights), VOCABULARY[gamma])
    p, q = (torch.tensor(w[:size], dtype=torch.float64) for w in (p_weights, q_weights))
    if not (p.any() and q.any()):
        return
    p, q = p / p.sum(), q / q.sum()
    alpha = float(torch.minimum(p, q).sum())
    formula = sum(alpha**i for i in range(gamma + 1))  # (1 - a^(g+1)) / (1 - a), a = 1 included
    found = expected_length(emitted_law(verify, always(p), chain(always(q), gamma)))
    assert found == pytest.approx(formula, abs=1e-12)


@pytest.mark.parametrize(
    ("pair", "gamma", "accepted"),
    [
        (A, 1, 0.7),
        (A, 2, 1.19),
        (A, 3, 1.533),
        (A, 4, 1.7731),
        (B, 1, 0.55),
        (PAIR, 2, 10 / 9),
    ],
)
def test_expected_accepted_tokens_of_known_pairs(
    pair: tuple[Tensor, Tensor], gamma: int, accepted: float
) -> None:
    p, q = pair
    emitted = emitted_law(verify, always(p), chain(always(q), gamma))
    assert expected_length(emitted) - 1 == pytest.approx(accepted, abs=1e-12)
    assert first_token(emitted, len(p)) == pytest.approx(p.tolist(), abs=1e-12)


# ---------------------------------------------------------------- what is lossy shows as lossy

POINTS = law(0.6, 0.4), law(0.8, 0.2)
DSPARK = law(0.7, 0.3), law(0.5, 0.5)
ARGMAX: Drafting = lambda noise: Draft((0,))  # noqa: E731
A_P, A_Q = A


@pytest.mark.parametrize(
    ("p", "rule", "drafting", "wrong"),
    [
        # Dropping a drawn token because of what it is (DSpark, 2607.05147, section 3.2.2).
        (A_P, verify, lossy.dropping(A_Q, {2}), (0.33, 0.44, 0.23)),
        (A_P, verify, lossy.dropping(A_Q, {1, 2}), (0.42, 0.26, 0.32)),
        (DSPARK[0], verify, lossy.dropping(DSPARK[1], {1}), (0.85, 0.15)),
        # Rules and drafts of released code; see tests/lossy.py.
        (A_P, verify, lossy.argmax_with_soft_law(A_Q), (0.5, 1 / 6, 1 / 3)),
        (A_P, lossy.match_and_redraw, ARGMAX, (0.51, 0.28, 0.21)),
        (
            A_P,
            lossy.match_each_path_and_redraw,
            lambda noise: lossy.two_children(0, 1),
            (0.426, 0.448, 0.126),
        ),
        (A_P, lossy.longest_beam, lambda noise: lossy.two_children(0, 1, A_Q), (0.5, 0.5, 0.0)),
        (A_P, lossy.correction_from_target, chain(always(A_Q), 1), (0.39, 0.42, 0.19)),
        (A_P, lossy.residual_of_another_context(A_Q), ARGMAX, (0.3, 0.7 / 3, 1.4 / 3)),
        # transformers #32867: greedy draft, tested with its soft probability.
        (POINTS[0], verify, lossy.argmax_with_soft_law(POINTS[1]), (0.75, 0.25)),
    ],
    ids=[
        "drop one",
        "drop two",
        "drop, DSpark",
        "argmax with soft q",
        "match and redraw",
        "match each path",
        "longest beam",
        "correction from p",
        "q of another context",
        "transformers 32867",
    ],
)
def test_a_lossy_rule_gives_its_known_wrong_law(
    p: Tensor, rule: Rule, drafting: Drafting, wrong: tuple[float, ...]
) -> None:
    found = first_token(emitted_law(rule, always(p), drafting), len(p))
    assert found == pytest.approx(wrong, abs=1e-12)
    assert 0.5 * sum(abs(a - b) for a, b in zip(found, p.tolist(), strict=True)) > 0.06


@pytest.mark.parametrize(
    ("p", "drafting"),
    [
        (POINTS[0], lambda noise: Draft((0,))),
        (POINTS[0], chain(always(POINTS[1]), 1)),
        (A_P, ARGMAX),
        (DSPARK[0], chain(always(DSPARK[1]), 1)),
    ],
    ids=[
        "point mass, transformers 32867",
        "drawn, transformers 32867",
        "point mass",
        "drawn, DSpark",
    ],
)
def test_the_honest_counterparts_keep_the_law(p: Tensor, drafting: Drafting) -> None:
    found = first_token(emitted_law(verify, always(p), drafting), len(p))
    assert found == pytest.approx(p.tolist(), abs=1e-12)


def test_dropping_a_point_mass_is_harmless() -> None:
    def drop(noise: Noise) -> Draft:
        token = noise.sample(A_Q, 0, Purpose.DRAFT)
        return Draft(() if token == 2 else (token,))

    found = joint_law(emitted_law(verify, always(A_P), drop), always(A_P), 2)
    assert largest_difference(found, target_law(always(A_P), 2)) < 1e-12


def test_one_number_for_several_tests_is_lossy() -> None:
    """Each test needs a number of its own (Leviathan et al., 2211.17192, algorithm 1)."""
    lossy_law = emitted_law(lossy.one_number_for_all, always(A_P), chain(always(A_Q), 2))
    found = joint_law(lossy_law, always(A_P), 2)
    assert largest_difference(found, target_law(always(A_P), 2)) > 0.01


def test_each_decision_is_asked_for_once_and_at_its_position() -> None:
    """A spy: one test a draft token until the first rejection, then one draw, by position."""
    calls: list[tuple[str, int, Any]] = []

    class Spy:
        def accept(self, probability: float, position: int) -> bool:
            calls.append(("accept", position, probability))
            return len(calls) < 3

        def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
            calls.append(("sample", position, purpose))
            return 1

        def race(self, law: Tensor, position: int) -> int:
            raise AssertionError

    asked: list[int] = []

    def p(node: int) -> Tensor:
        asked.append(node)
        return A_P

    draft = Draft((0, 1, 2, 0), probs=(A_Q,) * 4)
    verdict = verify(draft, p, Spy(), 10)
    assert verdict.path == (0, 1)
    assert [(kind, position) for kind, position, _ in calls] == [
        ("accept", 10),
        ("accept", 11),
        ("accept", 12),
        ("sample", 12),
    ]
    assert calls[-1][-1] is Purpose.TARGET
    assert asked == [ROOT, 0, 1]  # nothing behind the rejection is paid for
