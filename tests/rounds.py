"""One round of a rule, exactly: the joint law of what it emits, against the target's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.testing.law import output_law

Tokens = tuple[int, ...]
Law = Callable[[Tokens], Tensor]
"""From the tokens of the round so far to the law `[V]` of the next."""
Rule = Callable[[Draft, Callable[[int], Tensor], Noise, int], Verdict]
"""What `Verifier.verify` is; the lossy rules are plain functions."""
Drafting = Callable[[Noise], Draft]


def law(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64)


# Target and draft, small enough to enumerate. The last pair is the worked example of block
# verification (Sun et al., 2403.10444).
A = law(0.3, 0.4, 0.3), law(0.6, 0.3, 0.1)
B = law(0.5, 0.25, 0.125, 0.125), law(0.1, 0.2, 0.3, 0.4)
PAIR = law(1 / 3, 2 / 3), law(2 / 3, 1 / 3)


def chain(q: Law, gamma: int) -> Drafting:
    """An honest draft of gamma tokens."""

    def draft(noise: Noise) -> Draft:
        tokens: Tokens = ()
        laws: list[Tensor] = []
        for position in range(gamma):
            laws.append(q(tokens))
            tokens += (noise.sample(laws[-1], position, Purpose.DRAFT),)
        return Draft(tokens, probs=tuple(laws))

    return draft


def play(rule: Rule, p: Law, drafting: Drafting, noise: Noise) -> Tokens:
    """The tokens that one round emits."""
    draft = drafting(noise)

    def behind(node: int) -> Tensor:
        path = () if node == ROOT else draft.path(node)
        return p(tuple(draft.tokens[i] for i in path))

    verdict = rule(draft, behind, noise, 0)
    return (*(draft.tokens[node] for node in verdict.path), verdict.token)


def emitted_law(rule: Rule, p: Law, drafting: Drafting) -> dict[Tokens, float]:
    """The exact law of what a round emits: 1 to gamma + 1 tokens."""
    return output_law(lambda noise: play(rule, p, drafting, noise))


def joint_law(emitted: Mapping[Tokens, float], p: Law, length: int) -> dict[Tokens, float]:
    """The law of the first `length` tokens, where the target goes on behind what was emitted."""
    joint: dict[Tokens, float] = {}
    for tokens in itertools.product(range(len(p(()))), repeat=length):
        joint[tokens] = sum(
            emitted.get(tokens[:n], 0.0) * product_law(p, tokens, n) for n in range(1, length + 1)
        )
    return joint


def product_law(p: Law, tokens: Tokens, start: int = 0) -> float:
    """The target's probability of tokens[start:] behind tokens[:start]."""
    probability = 1.0
    for i in range(start, len(tokens)):
        probability *= float(p(tokens[:i])[tokens[i]])
    return probability


def target_law(p: Law, length: int) -> dict[Tokens, float]:
    return {
        tokens: product_law(p, tokens)
        for tokens in itertools.product(range(len(p(()))), repeat=length)
    }


def first_token(emitted: Mapping[Tokens, float], vocab_size: int) -> list[float]:
    """The law of the first token that a round emits."""
    shares = [0.0] * vocab_size
    for tokens, probability in emitted.items():
        shares[tokens[0]] += probability
    return shares


def always(p: Tensor) -> Law:
    return lambda tokens: p


def largest_difference(one: Mapping[Any, float], two: Mapping[Any, float]) -> float:
    return max(abs(one.get(key, 0.0) - two.get(key, 0.0)) for key in one.keys() | two.keys())
