"""The laws of the draws, by enumeration, against formulas worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paceline.core.drafts import Scheme
from paceline.errors import ContractViolation
from paceline.sampling.noise import CoupledNoise, SeededNoise, exponentials
from paceline.sampling.siblings import (
    draw_independent,
    draw_siblings,
    draw_without_replacement,
    most_probable,
)
from paceline.testing.law import output_law
from tests.rounds import A, B, law

weights = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)


@given(weights, st.integers(0, 3))
def test_independent_draws_have_the_product_law(values: list[int], k: int) -> None:
    q = torch.tensor(values, dtype=torch.float64) / sum(values)
    found = output_law(lambda noise: draw_independent(q, k, noise, 0))
    for tokens in itertools.product(range(len(q)), repeat=k):
        expected = math.prod(float(q[token]) for token in tokens)
        assert found.get(tokens, 0.0) == pytest.approx(expected, abs=1e-12)


@given(weights, st.integers(1, 4))
def test_draws_without_replacement_have_the_law_of_plackett_and_luce(
    values: list[int], k: int
) -> None:
    """q(x1) q(x2) / (1 - q(x1)) ..., until k or all tokens with mass are drawn."""
    q = torch.tensor(values, dtype=torch.float64) / sum(values)
    support = q.nonzero().flatten().tolist()
    found = output_law(lambda noise: draw_without_replacement(q, k, noise, 0))
    expected = {}
    for tokens in itertools.permutations(support, min(k, len(support))):
        probability, left = 1.0, sum(values)
        for token in tokens:
            probability *= values[token] / left
            left -= values[token]
        expected[tokens] = probability
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.statistical
def test_it_is_the_law_of_gumbel_top_k() -> None:
    """n = 5,000 races, seed 0: a chi-square test with a false-alarm rate of 1e-4."""
    n, q = 5000, B[1]
    expected = output_law(lambda noise: draw_without_replacement(q, 2, noise, 0))
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.rand(n, len(q), generator=generator, dtype=torch.float64)
    gumbel = q.log() - (-uniforms.log()).log()
    pairs = [tuple(row) for row in gumbel.topk(2).indices.tolist()]
    counts = [pairs.count(pair) for pair in expected]
    assert stats.chisquare(counts, [n * share for share in expected.values()]).pvalue > 1e-4


def test_under_coupling_it_is_the_top_k_of_the_targets_own_race() -> None:
    q = B[1]
    for position in range(50):
        noise = SeededNoise(3)
        drawn = draw_without_replacement(q, 3, CoupledNoise(noise), position)
        assert drawn[0] == noise.race(q, position)
        left = q.clone()
        for token in drawn:
            assert noise.race(left, position) == token
            left[token] = 0
    times = torch.from_numpy(exponentials(7, torch.arange(4).numpy())) / q
    assert len(set(times.tolist())) == 4  # a race has an order, and so a top-k


@given(weights, st.integers(0, 5))
def test_the_most_probable_tokens(values: list[int], k: int) -> None:
    q = torch.tensor(values, dtype=torch.float64)
    ranked = sorted((i for i, v in enumerate(values) if v), key=lambda i: (-values[i], i))
    assert most_probable(q, k) == tuple(ranked[:k])


def test_the_most_probable_tokens_of_a_large_vocabulary() -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.rand(5000, generator=generator)
    assert most_probable(q, 40) == tuple(q.topk(40).indices.tolist())
    assert most_probable(torch.ones(1000), 3) == (0, 1, 2)


def test_every_scheme_gives_what_a_draft_needs() -> None:
    q = A[1]
    for scheme in Scheme:
        drawn = draw_siblings(q, 2, scheme, SeededNoise(1), 0)
        assert drawn.scheme is scheme
        assert len(drawn.tokens) == len(drawn.probs) == (1 if scheme is Scheme.SINGLE else 2)
        chosen = {Scheme.CHOSEN: (0, 1), Scheme.MIXED: (1,)}.get(scheme, ())
        for number, entry in enumerate(drawn.probs):
            assert entry is (None if number in chosen else q)
    assert draw_siblings(q, 2, Scheme.CHOSEN, SeededNoise(1), 0).tokens == (0, 1)
    assert draw_siblings(q, 0, Scheme.SINGLE, SeededNoise(1), 0).tokens == ()


def test_mixed_siblings_are_one_that_is_drawn_and_the_most_probable_others() -> None:
    q = law(0.2, 0.5, 0.0, 0.3)
    found = output_law(lambda noise: draw_siblings(q, 3, Scheme.MIXED, noise, 0).tokens)
    assert found == pytest.approx({(0, 1, 3): 0.2, (1, 3, 0): 0.5, (3, 1, 0): 0.3})
    few = draw_siblings(q, 9, Scheme.MIXED, SeededNoise(0), 0)
    assert len(few.tokens) == len(few.probs) == 3, "as many as have mass"
    assert few.probs == (q, None, None)
    assert draw_siblings(q, 0, Scheme.MIXED, SeededNoise(0), 0).probs == ()


def test_q_is_not_changed_and_a_law_without_mass_is_refused() -> None:
    q = law(0.6, 0.4)
    before = q.clone()
    assert sorted(draw_without_replacement(q, 5, SeededNoise(0), 0)) == [0, 1]
    assert torch.equal(q, before)
    assert draw_without_replacement(law(0.0, 1.0), 3, SeededNoise(0), 0) == (1,)
    with pytest.raises(ContractViolation, match="positive sum"):
        draw_without_replacement(torch.zeros(3), 1, SeededNoise(0), 0)
