"""Rules in the engine: the joint law of the answer over rounds of trees, and greedy answers.

The table of rules is made from the registered plug-ins, as in tests/verifiers/test_table.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import ROOT, Budget, Draft, Scheme
from paceline.core.protocols import Drafter, Noise, Verifier, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.core.view import TargetView
from paceline.drafters.none import NoDrafter
from paceline.errors import ContractViolation
from paceline.generate import plugins
from paceline.sampling.siblings import draw_siblings
from tests.rigged import assert_same_law, law_of_run, markov, run

VOCAB = 3
PROMPT = (1, 2)
MODEL = markov(VOCAB, 21, scale=1.5)
SAMPLING = SamplingParams(temperature=0.8)


def soft(text: tuple[int, ...], vocab_size: int = VOCAB) -> Tensor:
    """A law that is not the target's."""
    weights = torch.arange(1, vocab_size + 1, dtype=torch.float64).roll(text[-1])
    return weights / weights.sum()


@dataclass(frozen=True)
class SoftTree:
    """Draws `widths[i]` children for the first node of level i, as far as the budget goes."""

    scheme: Scheme
    widths: tuple[int, ...] = (2, 2)

    name: ClassVar[str] = "soft tree"
    needs: ClassVar[frozenset[str]] = frozenset()

    def open(self, target: TargetView, capacity: int) -> SoftTreeSession:
        return SoftTreeSession(self, target.info.vocab_size)


class SoftTreeSession:
    def __init__(self, drafter: SoftTree, vocab_size: int) -> None:
        self._drafter, self._vocab_size = drafter, vocab_size
        self._text: tuple[int, ...] = ()

    def observe(self, committed: Committed) -> None:
        self._text += committed.tokens

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        text, node = self._text, ROOT
        tokens: list[int] = []
        parents: list[int] = []
        laws: list[Tensor | None] = []
        for width in self._drafter.widths[: budget.num_draft_tokens]:
            q = soft(text, self._vocab_size)
            drawn = draw_siblings(q, width, self._drafter.scheme, noise, len(text))
            first = len(tokens)
            tokens += drawn.tokens
            parents += [node] * len(drawn.tokens)
            laws += drawn.probs
            node, text = first, (*text, drawn.tokens[0])
        return Draft(tuple(tokens), tuple(parents), tuple(laws), self._drafter.scheme)

    def close(self) -> None:
        pass


def rules() -> dict[str, Verifier]:
    points = plugins.points("verifier").values()
    ours = [point.load()() for point in points if point.value.startswith("paceline.")]
    return {rule.name: rule for rule in ours}


RULES = rules()
PAIRS = [
    (name, scheme)
    for name, scheme in itertools.product(RULES, Scheme)
    if scheme in RULES[name].schemes
]


def drafter(scheme: Scheme) -> SoftTree:
    return SoftTree(scheme, (1, 1) if scheme is Scheme.SINGLE else (2, 2))


# Drafts that race for the noise of the target cannot be enumerated: under `coupling` the chosen.
ENUMERATED = [
    (name, scheme)
    for name, scheme in PAIRS
    if RULES[name].exact and (not RULES[name].couples or scheme is Scheme.CHOSEN)
]


@pytest.mark.parametrize(("name", "scheme"), ENUMERATED)
def test_the_joint_law_of_an_answer_is_that_of_plain_decoding(name: str, scheme: Scheme) -> None:
    rule = RULES[name]
    # Over one level of three tokens, over two levels of two, and with rounds to follow.
    for vocab_size, length in ((3, 2), (2, 3)):
        model = markov(vocab_size, 21, scale=1.5)
        found, plain = (
            law_of_run(
                model, (1, 0), drafting, params=SAMPLING, k=2, max_tokens=length, verifier=rule
            )
            for drafting in (drafter(scheme), NoDrafter())
        )
        assert_same_law(found, plain, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in RULES if not RULES[name].exact])
def test_a_lossy_rule_is_seen(name: str) -> None:
    found, plain = (
        law_of_run(MODEL, PROMPT, drafting, params=SAMPLING, k=1, max_tokens=2, verifier=rule)
        for drafting, rule in ((drafter(Scheme.SINGLE), RULES[name]), (None, RULES["token"]))
    )
    distance = 0.5 * sum(
        abs(found.get(key, 0.0) - plain.get(key, 0.0)) for key in found.keys() | plain.keys()
    )
    assert distance > 0.02


@pytest.mark.parametrize(("name", "scheme"), PAIRS)
def test_at_temperature_0_every_rule_is_greedy(name: str, scheme: Scheme) -> None:
    """Drafts that are drawn, at a target that is not: 12 seeds of each."""
    plain = run(MODEL, PROMPT, max_tokens=12)
    drafting: Drafter = drafter(scheme)
    accepted = 0
    for seed in range(12):
        found = run(MODEL, PROMPT, drafting, k=3, seed=seed, max_tokens=12, verifier=RULES[name])
        assert found.tokens == plain.tokens
        accepted += sum(r.num_accepted_tokens for r in found.rounds)
    assert accepted > 0


def test_with_seeds_the_answers_of_all_rules_are_finished_and_of_the_targets_support() -> None:
    sampling = SamplingParams(temperature=1.0, top_k=2)
    for (name, scheme), seed in itertools.product(PAIRS, range(3)):
        found = run(
            MODEL, PROMPT, drafter(scheme), k=2, seed=seed, max_tokens=9, params=sampling,
            verifier=RULES[name],
        )  # fmt: skip
        assert len(found.tokens) == 9
        text = PROMPT
        for token in found.tokens:
            law = MODEL._law(text)
            assert token in law.topk(2).indices.tolist() or not RULES[name].exact
            text += (token,)


@pytest.mark.parametrize(
    ("parents", "probs", "scheme", "message"),
    [
        ((ROOT, ROOT), None, Scheme.SINGLE, "several children of one node"),
        ((ROOT, ROOT), (soft((0,)), None), Scheme.CHOSEN, "gave laws of tokens"),
    ],
)
def test_a_scheme_that_does_not_say_what_the_draft_is_is_refused(
    parents: tuple[int, ...], probs: tuple[Tensor | None, ...] | None, scheme: Scheme, message: str
) -> None:
    class Wrong(SoftTreeSession):
        def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
            return Draft((0, 1), parents, probs, scheme)

    class Drafting(SoftTree):
        def open(self, target: TargetView, capacity: int) -> SoftTreeSession:
            return Wrong(self, target.info.vocab_size)

    with pytest.raises(ContractViolation, match=message):
        run(MODEL, PROMPT, Drafting(scheme), max_tokens=4, verifier=RULES["tree"])
