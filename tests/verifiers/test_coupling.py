"""Coupling: the same seed, the same tokens, whatever the drafter; and how often races agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme
from paceline.core.protocols import Noise, Purpose
from paceline.sampling.noise import CoupledNoise, SeededNoise
from paceline.testing.law import output_law
from paceline.verifiers.coupling import CouplingVerifier
from tests.rounds import A, B, always, emitted_law, joint_law, largest_difference, target_law

verify = CouplingVerifier().verify


def match_probability(p: Tensor, q: Tensor) -> float:
    """sum_j 1 / sum_i max(p_i / p_j, q_i / q_j) (Daliri et al., 2408.07978)."""
    return sum(1 / float(torch.maximum(p / p[j], q / q[j]).sum()) for j in range(len(p)))


@pytest.mark.parametrize(("pair", "value"), [(A, 2 / 3), (B, 0.498846)])
def test_the_closed_form_has_the_known_values_within_its_bounds(
    pair: tuple[Tensor, Tensor], value: float
) -> None:
    p, q = pair
    distance = 0.5 * float((p - q).abs().sum())
    found = match_probability(p, q)
    assert found == pytest.approx(value, abs=5e-7)
    assert (1 - distance) / (1 + distance) <= found <= 1 - distance


@pytest.mark.statistical
@pytest.mark.parametrize("pair", [A, B], ids="AB")
def test_races_agree_as_often_as_the_closed_form_says(pair: tuple[Tensor, Tensor]) -> None:
    """n = 10,000 positions, seed 1; 4.5 standard errors: a false alarm in 150,000."""
    n = 10_000
    noise = SeededNoise(1)
    agreed = sum(noise.race(pair[0], i) == noise.race(pair[1], i) for i in range(n))
    expected = match_probability(*pair)
    assert abs(agreed / n - expected) < 4.5 * math.sqrt(expected * (1 - expected) / n)


def random_laws(seed: int, vocab_size: int) -> Tensor:
    """One law for each position and token before, `[8, V, V]`, with zeros."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(8, vocab_size, vocab_size, generator=generator, dtype=torch.float64)
    weights *= torch.rand(weights.shape, generator=generator) > 0.3
    weights[..., 0] += 0.01
    return weights / weights.sum(dim=-1, keepdim=True)


def generate(laws: Tensor, drafts: Sequence[Draft], noise: Noise) -> list[int]:
    """Eight tokens in rounds; the drafts are cut to fit."""
    text: list[int] = []
    for draft in [*drafts, *[Draft()] * 8]:
        before = list(text)

        def p(node: int, draft: Draft = draft, before: list[int] = before) -> Tensor:
            path = [] if node == ROOT else [draft.tokens[i] for i in draft.path(node)]
            tokens = before + path
            return laws[min(len(tokens), 7), tokens[-1] if tokens else 0]

        verdict = verify(draft, p, noise, len(text))
        text += [*(draft.tokens[node] for node in verdict.path), verdict.token]
    return text[:8]


trees = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-1, 2)), max_size=4
).map(  # parents before children
    lambda nodes: Draft(
        tuple(token for token, _ in nodes),
        parents=tuple(min(parent, i - 1) for i, (_, parent) in enumerate(nodes)),
        scheme=Scheme.CHOSEN,
    )
)


@settings(max_examples=60)
@given(st.integers(0, 2**64 - 1), st.lists(trees, max_size=4), st.integers(0, 100))
def test_the_tokens_are_the_same_whatever_is_drafted(
    seed: int, drafts: list[Draft], laws_seed: int
) -> None:
    laws = random_laws(laws_seed, 4)
    plain = generate(laws, [], SeededNoise(seed))
    assert generate(laws, drafts, SeededNoise(seed)) == plain


def test_a_right_draft_is_accepted_in_full() -> None:
    laws = random_laws(0, 4)
    plain = generate(laws, [], SeededNoise(5))
    draft = Draft(tuple(plain[:5]))
    verdict = verify(
        draft,
        lambda node: laws[node + 1, draft.tokens[node] if node >= 0 else 0],
        SeededNoise(5),
        0,
    )
    assert verdict.path == (0, 1, 2, 3, 4)
    assert verdict.token == plain[5]


@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
def test_the_law_of_the_output_is_the_targets(gamma: int) -> None:
    p, _ = A
    emitted = emitted_law(verify, always(p), lambda noise: Draft((1,) * gamma))
    found = joint_law(emitted, always(p), gamma + 1)
    assert largest_difference(found, target_law(always(p), gamma + 1)) < 1e-12


def acceptance(p: Tensor, q: Tensor, k: int, *, replace: bool) -> float:
    """The exact probability that the target's token is one of k siblings drawn from q."""

    def run(noise: Noise) -> bool:
        left, tokens = q.clone(), []
        for _ in range(k):
            tokens.append(noise.sample(left, 0, Purpose.DRAFT))
            if not replace:
                left[tokens[-1]] = 0
        scheme = Scheme.IID if replace else Scheme.WITHOUT_REPLACEMENT
        draft = Draft(tuple(tokens), parents=(ROOT,) * k, probs=(q,) * k, scheme=scheme)
        return bool(verify(draft, lambda node: p, noise, 0).path)

    return output_law(run).get(True, 0.0)


@pytest.mark.parametrize(
    ("pair", "k", "with_replacement", "without"),
    [
        (A, 1, 0.33, 0.33),
        (A, 2, 0.513, 0.6783),
        (A, 3, 0.6249, 1.0),
        (B, 2, 0.32875, 0.393105),
        (B, 3, 0.437625, 0.638145),
    ],
)
def test_siblings_drawn_without_the_shared_noise_are_accepted_as_in_the_naive_rule(
    pair: tuple[Tensor, Tensor], k: int, with_replacement: float, without: float
) -> None:
    """One target sample, accepted where it is a child (SpecInfer, 2305.09781, naive sampling)."""
    assert acceptance(*pair, k, replace=True) == pytest.approx(with_replacement, abs=5e-5)
    assert acceptance(*pair, k, replace=False) == pytest.approx(without, abs=5e-5)


@pytest.mark.parametrize(("pair", "expected"), [(A, (0.3, 0.7)), (B, (0.125, 0.25))], ids="AB")
def test_chosen_children_are_accepted_as_often_as_the_target_says(
    pair: tuple[Tensor, Tensor], expected: tuple[float, float]
) -> None:
    """The k most probable tokens under q: point masses, tested against one target sample."""
    p, q = pair
    for k, value in enumerate(expected, start=1):
        draft = Draft(tuple(q.topk(k).indices.tolist()), parents=(ROOT,) * k, scheme=Scheme.CHOSEN)
        emitted = emitted_law(verify, always(p), lambda noise, draft=draft: draft)  # type: ignore[misc]
        accepted = sum(share for tokens, share in emitted.items() if len(tokens) == 2)
        assert accepted == pytest.approx(value, abs=1e-12)


def test_a_drafter_that_samples_shares_the_noise() -> None:
    noise = SeededNoise(3)
    coupled = CoupledNoise(noise)
    p, q = A
    for position in range(50):
        assert coupled.sample(q, position, Purpose.DRAFT) == noise.race(q, position)
        assert coupled.sample(p, position, Purpose.DRAFT) == noise.race(p, position)
    assert coupled.accept(1.0, 0)
    assert not coupled.accept(0.0, 0)
