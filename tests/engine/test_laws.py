"""The law of what the engine yields, with every sampling option: exactly, and by chi-square.

The oracle works the options out by other means (tests/reference.py) on a table of known laws.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from scipy import stats

from paceline.core.protocols import Drafter, Verifier
from paceline.core.sampling import SamplingParams
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from tests.lossy import correction_from_target
from tests.reference import reference_law
from tests.rigged import Branches, Line, Soft, assert_same_law, law_of_run, markov, run

VOCAB = 4
PROMPT = (1, 2, 1)
MODEL = markov(VOCAB, 21, scale=1.5)

OPTIONS = {
    "plain": {},
    "temperature": {"temperature": 0.5},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.3},
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": -0.9},
    "bias and bans": {"logit_bias": {0: 1.5, 3: -1.0}, "banned_token_ids": frozenset({2})},
    "allowed": {"allowed_token_ids": frozenset({0, 1, 3})},
    "truncated": {"temperature": 0.8, "top_k": 3, "top_p": 0.9},
    "everything": {
        "temperature": 1.3,
        "top_k": 4,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "logit_bias": {2: 0.7},
    },
}


def params_of(name: str) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, **OPTIONS[name]})  # type: ignore[arg-type]


def soft(text: tuple[int, ...]) -> torch.Tensor:
    """A law that is not the target's, with a zero, and mass where the target may have none."""
    weights = torch.arange(1, VOCAB + 1, dtype=torch.float64).roll(text[-1])
    weights[(2 * text[-1] + 1) % VOCAB] = 0
    return weights / weights.sum()


DRAFTERS: dict[str, Drafter] = {
    "soft": Soft(soft),
    "draft model": ModelDrafter(markov(VOCAB, 22, scale=1.5)),
    "own options": ModelDrafter(MODEL, params=SamplingParams(temperature=0.5, top_k=3)),
    "greedy draft": ModelDrafter(MODEL, params=SamplingParams()),
    "point masses": Line(
        lambda text, number, k: [(text[-1] + i + number) % VOCAB for i in range(k)]
    ),
    "ngram": NgramDrafter(max_ngram=2),
}


def expected(params: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
    """The joint law of the first tokens, worked out token by token."""
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        joint = {
            (*answer, token): share * float(mass)
            for answer, share in joint.items()
            for token, mass in enumerate(
                reference_law(params, PROMPT, answer, MODEL._law((*PROMPT, *answer)).log())
            )
            if mass > 0
        }
    return joint


@pytest.mark.parametrize("options", OPTIONS)
def test_the_joint_law_of_three_tokens_is_exact(options: str) -> None:
    """Every outcome of drafts, tests and draws, over one to three rounds.

    (transformers #32867 and #47932, vLLM #18902 and #42744.)
    """
    params = params_of(options)
    oracle = expected(params, 3)
    for drafter in DRAFTERS.values():
        found = law_of_run(MODEL, PROMPT, drafter, params=params, k=2, max_tokens=3)
        assert_same_law(found, oracle, atol=1e-12)


def test_lengths_of_drafts_and_rounds_do_not_matter() -> None:
    """k = 1 with a drafter that is mostly wrong was the worst case (openvino.genai #4190)."""
    params = params_of("top-k")
    for k, length in itertools.product((1, 2, 3), (1, 2, 4)):
        found = law_of_run(
            MODEL, PROMPT, DRAFTERS["point masses"], params=params, k=k, max_tokens=length
        )
        assert_same_law(found, expected(params, length), atol=1e-12)


@pytest.mark.parametrize("vocab_size", [2, 3, 5, 9])
@pytest.mark.parametrize("options", ["plain", "top-k", "repetition"])
def test_a_draft_model_with_another_vocabulary_keeps_the_law(vocab_size: int, options: str) -> None:
    """Smaller: tokens it does not know come in the text. Larger: it may not propose them.

    (transformers #45307.)
    """
    params = params_of(options)
    drafter = ModelDrafter(markov(vocab_size, 23))
    found = law_of_run(MODEL, PROMPT, drafter, params=params, k=2, max_tokens=3)
    assert_same_law(found, expected(params, 3), atol=1e-12)


@pytest.mark.parametrize("options", ["top-p", "everything"])
def test_the_law_of_a_tree_is_exact_under_the_rule_that_takes_trees(options: str) -> None:
    """Tree drafts bent the law elsewhere (EAGLE #50)."""
    params = params_of(options)
    branches = Branches((*PROMPT, 0, 3, 2, 1), VOCAB, 1)
    found = law_of_run(
        MODEL, PROMPT, branches, params=params, k=2, max_tokens=3, verifier=CouplingVerifier()
    )
    assert_same_law(found, expected(params, 3), atol=1e-12)


class FromTarget:
    """A wrong rule, to see that the comparison would notice."""

    name = "from target"
    exact = False
    couples = False
    schemes = CouplingVerifier.schemes
    needs_chain = True

    def verify(self, draft: Any, p: Any, noise: Any, position: int) -> Any:
        if not len(draft):
            return CouplingVerifier().verify(draft, p, noise, position)
        return correction_from_target(draft, p, noise, position)


def test_a_wrong_rule_would_be_noticed() -> None:
    params = params_of("plain")
    found = law_of_run(
        MODEL, PROMPT, DRAFTERS["soft"], params=params, k=1, max_tokens=2, verifier=FromTarget()
    )
    with pytest.raises(AssertionError):
        assert_same_law(found, expected(params, 2), atol=1e-3)


def p_value(counts: Counter[tuple[int, ...]], oracle: dict[tuple[int, ...], float]) -> float:
    """Of a chi-square test; cells with fewer than five expected draws are pooled."""
    n = counts.total()
    assert counts.keys() <= oracle.keys()
    large = [tokens for tokens, share in oracle.items() if n * share >= 5]
    observed = [counts[tokens] for tokens in large]
    masses = [n * oracle[tokens] for tokens in large]
    if len(large) < len(oracle):
        observed.append(n - sum(observed))
        masses.append(n - sum(masses))
    return float(stats.chisquare(observed, masses).pvalue)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        ("draft model", TokenVerifier()),
        ("point masses", TokenVerifier()),
        ("draft model", CouplingVerifier()),
    ],
    ids=["soft", "one-hot", "coupled"],
)
@pytest.mark.parametrize("options", ["truncated", "everything"])
def test_two_tokens_drawn_with_seeds_pass_a_chi_square_test(
    drafter: str, rule: Verifier, options: str
) -> None:
    """n = 1,000 seeds, from 0; 6 tests, each with a false-alarm rate of 1e-4.

    Here the noise is that of generation, where the tests above enumerate.
    """
    params = params_of(options)
    counts = Counter(
        run(
            MODEL,
            PROMPT,
            DRAFTERS[drafter],
            verifier=rule,
            params=params,
            k=2,
            max_tokens=2,
            seed=seed,
        ).tokens
        for seed in range(1000)
    )
    assert p_value(counts, expected(params, 2)) > 1e-4


def test_the_chi_square_test_notices_a_law_that_is_somewhat_off() -> None:
    """Counts that fit temperature .8 exactly, held against temperature 1: seen at n = 1,000."""
    oracle, off = (expected(SamplingParams(temperature=t), 2) for t in (1.0, 0.8))
    counts = Counter({tokens: round(1000 * share) for tokens, share in off.items()})
    assert p_value(counts, oracle) < 1e-4
