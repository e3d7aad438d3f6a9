"""The rules that are not exact: what they accept, and the wrong law that each has, exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose, Verifier
from paceline.core.sampling import SamplingParams
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.verifiers.distance import DistanceVerifier
from paceline.verifiers.lenience import LenienceVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.top_beta import TopBetaVerifier, near_the_top
from paceline.verifiers.top_k import TopKVerifier
from paceline.verifiers.typical import TypicalVerifier, typical_threshold
from tests.rounds import (
    A,
    Rule,
    always,
    chain,
    emitted_law,
    first_token,
    largest_difference,
    law,
    play,
)
from tests.trees import table

P, Q = A


def distance(found: list[float], p: Tensor) -> float:
    return 0.5 * sum(abs(a - b) for a, b in zip(found, p.tolist(), strict=True))


def first(rule: Rule, p: Tensor = P, q: Tensor = Q) -> list[float]:
    return first_token(emitted_law(rule, always(p), chain(always(q), 1)), len(p))


# ---------------------------------------------------------------- typical


@pytest.mark.parametrize(
    ("p", "threshold"),
    [
        (law(0.9, 0.05, 0.05), 0.09),
        (law(0.25, 0.25, 0.25, 0.25), 0.0750),
        (torch.full((100,), 0.01, dtype=torch.float64), 0.0030),
    ],
    ids=["sure", "uniform of 4", "uniform of 100"],
)
def test_the_typical_threshold_has_the_known_values(p: Tensor, threshold: float) -> None:
    assert typical_threshold(p, 0.09, 0.3) == pytest.approx(threshold, abs=5e-6)


def test_typical_gives_the_drafters_law_where_all_pass() -> None:
    """On A all three tokens pass, so what comes out is q: TV(p, q) = .3."""
    found = first(TypicalVerifier().verify)
    assert found == pytest.approx(Q.tolist(), abs=1e-12)
    assert distance(found, P) == pytest.approx(0.3, abs=1e-12)


def test_typical_draws_from_p_where_the_draft_fails() -> None:
    """The threshold .35 lets token 1 pass alone: .3 of the drafts, and .4 of the other draws."""
    found = first(TypicalVerifier(epsilon=0.35, delta=10.0).verify)
    assert found == pytest.approx([0.7 * 0.3, 0.3 + 0.7 * 0.4, 0.7 * 0.3], abs=1e-12)
    assert distance(found, P) == pytest.approx(0.18, abs=1e-12)


def test_the_longest_path_that_passes_is_taken_and_ties_go_to_the_more_probable() -> None:
    p = law(0.5, 0.3, 0.2)
    parents = (ROOT, ROOT, 0, 1, 3)
    longest = Draft((0, 1, 2, 1, 1), parents, scheme=Scheme.CHOSEN)
    rule = TypicalVerifier()
    assert rule.verify(longest, lambda node: p, SeededNoise(0), 0).path == (1, 3, 4)
    tie = Draft((1, 0, 1, 1), (ROOT, ROOT, 0, 1), scheme=Scheme.CHOSEN)
    assert rule.verify(tie, lambda node: p, SeededNoise(0), 0).path == (1, 3)
    strict = TypicalVerifier(epsilon=0.4, delta=10.0)
    assert strict.verify(longest, lambda node: p, SeededNoise(0), 0).path == (0,)


# ---------------------------------------------------------------- lenience


def test_lenience_of_a_half_accepts_all_of_a_and_gives_q() -> None:
    emitted = emitted_law(LenienceVerifier(0.5).verify, always(P), chain(always(Q), 1))
    assert sum(share for tokens, share in emitted.items() if len(tokens) == 2) == pytest.approx(1)
    found = first_token(emitted, 3)
    assert found == pytest.approx(Q.tolist(), abs=1e-12)
    assert max(a / b for a, b in zip(found, P.tolist(), strict=True)) == pytest.approx(2, abs=1e-12)


@given(st.integers(0, 2**32), st.sampled_from([1.0, 0.8, 0.5, 0.3, 0.1]))
def test_lenience_has_its_formula_and_its_bound(seed: int, lenience: float) -> None:
    p, q = table(seed, 1, 4, 0.3)(()), table(seed + 1, 1, 4, 0.3)(())
    emitted = emitted_law(LenienceVerifier(lenience).verify, always(p), chain(always(q), 1))
    accepted = sum(share for tokens, share in emitted.items() if len(tokens) == 2)
    assert accepted == pytest.approx(float(torch.minimum(p / lenience, q).sum()), abs=1e-12)
    for value, mass in zip(first_token(emitted, 4), p.tolist(), strict=True):
        assert value <= mass / lenience + 1e-12


def test_lenience_of_one_is_token_verification() -> None:
    p, q = table(3, 4, 3), table(4, 4, 3)
    for seed in range(30):
        one, two = (
            play(rule.verify, p, chain(q, 3), SeededNoise(seed))
            for rule in (LenienceVerifier(1.0), TokenVerifier())
        )
        assert one == two


# ---------------------------------------------------------------- top-beta


@given(st.integers(0, 2**32), st.integers(0, 3), st.floats(0, 10))
def test_top_one_is_greedy_decoding(seed: int, gamma: int, tau: float) -> None:
    p, q = table(seed, gamma + 1, 4), table(seed + 1, gamma + 1, 4)
    rule = TopBetaVerifier(beta=1, tau=tau)
    for stream in range(5):
        tokens = play(rule.verify, p, chain(q, gamma), SeededNoise(seed, stream))
        assert tokens == tuple(int(p(tokens[:i]).argmax()) for i in range(len(tokens)))


def test_top_beta_accepts_near_misses_and_replaces_the_rest_by_the_best() -> None:
    """Of A two tokens tie: the first of them is among the best two, the third is replaced."""
    assert first(TopBetaVerifier(beta=2).verify) == pytest.approx([0.6, 0.4, 0.0], abs=1e-12)
    assert distance([0.6, 0.4, 0.0], P) == pytest.approx(0.3, abs=1e-12)
    # log .4 - log .3 = .288: with less leeway only the best passes.
    assert first(TopBetaVerifier(tau=0.28).verify) == pytest.approx([0, 1, 0], abs=1e-12)
    assert first(TopBetaVerifier(tau=0.29).verify) == pytest.approx(Q.tolist(), abs=1e-12)
    assert near_the_top(law(0.4, 0.3, 0.0), 3, 1e9) == {0, 1}
    verdict = TopBetaVerifier(tau=1e9).verify(Draft((2,)), lambda _: law(0.4, 0.6, 0.0), NONE, 0)
    assert verdict == Verdict((), 1)  # what has no mass never passes


class NoNoise:
    """Refuses to decide anything."""

    def accept(self, probability: float, position: int) -> bool:
        raise AssertionError

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        raise AssertionError

    race = sample  # type: ignore[assignment]


NONE = NoNoise()

# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize(
    "rule",
    [
        TypicalVerifier(),
        LenienceVerifier(),
        TopBetaVerifier(),
        TopKVerifier(),
        DistanceVerifier(),
    ],
    ids=lambda rule: rule.name,
)
def test_at_temperature_0_they_are_greedy(rule: Verifier) -> None:
    assert not rule.exact
    point = torch.eye(3, dtype=torch.float64)

    def p(tokens: tuple[int, ...]) -> Tensor:
        return point[(2 * len(tokens) + sum(tokens)) % 3]

    for tokens in itertools.product(range(3), repeat=3):
        emitted = emitted_law(rule.verify, p, lambda noise: Draft(tokens))  # noqa: B023
        ((found, share),) = emitted.items()
        assert share == 1
        assert found == tuple(int(p(found[:i]).argmax()) for i in range(len(found)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TypicalVerifier(epsilon=1.5), "epsilon must be a finite number"),
        (lambda: TypicalVerifier(delta=-1), "delta must be a finite number"),
        (lambda: LenienceVerifier(0), "lenience must be above 0"),
        (lambda: LenienceVerifier(2), "at most 1"),
        (lambda: TopBetaVerifier(beta=0), "beta must be at least 1"),
        (lambda: TopBetaVerifier(tau=math.nan), "tau must be a finite number"),
        (lambda: LenienceVerifier("much"), "lenience must be a number"),
        (lambda: TopKVerifier(0), "k must be at least 1"),
        (lambda: TopKVerifier(2.5), "k must be a whole number"),
        (lambda: DistanceVerifier(-1), "epsilon must be at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()  # type: ignore[operator]


# ---------------------------------------------------------------- top-k and distance


@given(st.integers(0, 2**32), st.integers(0, 3))
def test_the_narrowest_criteria_of_blockwise_decoding_are_greedy(seed: int, gamma: int) -> None:
    """One token passes: the best (top 1), or those at distance 0 of it."""
    p, q = table(seed, gamma + 1, 4), table(seed + 1, gamma + 1, 4)
    for rule in (TopKVerifier(1), DistanceVerifier(0)):
        for stream in range(5):
            tokens = play(rule.verify, p, chain(q, gamma), SeededNoise(seed, stream))
            assert tokens == tuple(int(p(tokens[:i]).argmax()) for i in range(len(tokens)))


def prefix_law(
    p: Callable[[tuple[int, ...]], Tensor], tokens: tuple[int, ...], node: int
) -> Tensor:
    """The target's law after a node of a chain."""
    return p(tokens[: node + 1])


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 3))
def test_the_longest_prefix_that_passes_is_accepted(seed: int, k: int, epsilon: int) -> None:
    """Stern et al., sections 5.1 and 5.2, token by token on every chain of three."""
    p = table(seed, 4, 4, 0.2)

    def passes(rule: str, token: int, law: Tensor) -> bool:
        order = sorted(range(4), key=lambda other: (-float(law[other]), other))
        near = abs(token - order[0]) <= epsilon
        return float(law[token]) > 0 and (token in order[:k] if rule == "top-k" else near)

    rules = {"top-k": TopKVerifier(k), "distance": DistanceVerifier(epsilon)}
    for tokens in itertools.product(range(4), repeat=3):
        for name, rule in rules.items():
            length = 0
            while length < 3 and passes(name, tokens[length], p(tokens[:length])):
                length += 1
            laws = partial(prefix_law, p, tokens)
            verdict = rule.verify(Draft(tokens), laws, NONE, 0)
            best = int(p(tokens[:length]).argmax())
            assert verdict == Verdict(tuple(range(length)), best)


def test_what_the_criteria_give_on_a_known_pair() -> None:
    """p = (.3, .4, .3): the best two are 1 and 0, and both neighbours of 1 are at distance 1."""
    assert first(TopKVerifier(2).verify) == pytest.approx([0.6, 0.4, 0.0], abs=1e-12)
    assert first(DistanceVerifier(1).verify) == pytest.approx(Q.tolist(), abs=1e-12)
    assert distance(Q.tolist(), P) == pytest.approx(0.3, abs=1e-12)
    # A token without mass passes under neither, near as it may be.
    p = law(0.6, 0.0, 0.4)
    for rule in (TopKVerifier(3), DistanceVerifier(2)):
        assert rule.verify(Draft((1,)), lambda _: p, NONE, 0) == Verdict((), 0)


# ---------------------------------------------------------------- a fault of released code


def test_a_bonus_that_skips_the_temperature_is_lossy() -> None:
    """SWIFT (2410.06916): the bonus is drawn from the law at temperature 1."""
    warp = SamplingWarp(SamplingParams(temperature=0.6), [0])
    warped = warp.law(P.log())
    assert warped.tolist() == pytest.approx([0.2766, 0.4468, 0.2766], abs=5e-5)

    def skips(draft: Draft, p: object, noise: Noise, position: int) -> Verdict:
        return Verdict((), noise.sample(P, position, Purpose.TARGET))

    found = emitted_law(skips, always(warped), lambda noise: Draft())
    assert first_token(found, 3) == pytest.approx([0.3, 0.4, 0.3], abs=1e-12)
    honest = emitted_law(TokenVerifier().verify, always(warped), lambda noise: Draft())
    assert largest_difference(found, honest) > 0.02
