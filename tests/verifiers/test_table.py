"""Every registered rule on every kind of draft that it takes, by enumeration.

The table is made from the registered plug-ins: a new rule is in it at once. An exact rule
has to give p to 1e-10, a lossy one has to be off, and what a rule does not take is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.drafts import Budget, Draft, Scheme
from paceline.core.protocols import Verifier
from paceline.engine.contract import check_draft
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.sampling.noise import SeededNoise
from tests.rigged import Line, markov
from tests.rounds import (
    emitted_law,
    joint_law,
    largest_difference,
    target_law,
)
from tests.trees import CHAINS, EMPTY, TREES, Shape, levels, table, tree

EXACT = 1e-10


def rules() -> dict[str, Verifier]:
    """The rules of the package by their own name, with default settings; aliases once."""
    points = plugins.points("verifier").values()
    ours = [point.load()() for point in points if point.value.startswith("paceline.")]
    return {rule.name: rule for rule in ours}


RULES = rules()


class Case(NamedTuple):
    rule: str
    scheme: Scheme
    shape: str


def shapes(scheme: Scheme) -> dict[str, Shape]:
    return EMPTY | CHAINS | ({} if scheme is Scheme.SINGLE else TREES)


def takes(rule: Verifier, case: Case) -> bool:
    return case.scheme in rule.schemes and not (rule.needs_chain and case.shape in TREES)


def cases() -> Iterator[Case]:
    for name, scheme in itertools.product(RULES, Scheme):
        for shape in shapes(scheme):
            yield Case(name, scheme, shape)


TAKEN = [case for case in cases() if takes(RULES[case.rule], case)]
REFUSED = [case for case in cases() if not takes(RULES[case.rule], case)]


def ident(case: Case) -> str:
    return "-".join(case)


def difference(case: Case, seed: int, vocab: int, zeros: float) -> float:
    shape = shapes(case.scheme)[case.shape]
    length = levels(shape) + 1
    p, q = (table(s, length, vocab, zeros) for s in (seed, seed + 1))
    if RULES[case.rule].couples:
        # The tokens follow from the shared noise, which a draft of the tests does not see.
        drawn = tree(q, shape, case.scheme)(SeededNoise(seed))
        found = emitted_law(RULES[case.rule].verify, p, lambda noise: drawn)
    else:
        found = emitted_law(RULES[case.rule].verify, p, tree(q, shape, case.scheme))
    return largest_difference(joint_law(found, p, length), target_law(p, length))


def size(case: Case) -> int:
    """A vocabulary that is enumerated in well under a second."""
    nodes = 0 if case.scheme is Scheme.CHOSEN else len(shapes(case.scheme)[case.shape])
    return 4 if nodes <= 2 else 3 if nodes <= 4 else 2


@pytest.mark.parametrize("case", [c for c in TAKEN if RULES[c.rule].exact], ids=ident)
def test_an_exact_rule_gives_the_law_of_the_target(case: Case) -> None:
    assert difference(case, 1, size(case), 0.0) < EXACT
    assert difference(case, 5, size(case), 0.3) < EXACT


@pytest.mark.parametrize(
    "case", [c for c in TAKEN if not RULES[c.rule].exact and c.shape != "nothing"], ids=ident
)
def test_a_lossy_rule_does_not(case: Case) -> None:
    assert max(difference(case, seed, size(case), 0.0) for seed in (1, 3)) > 1e-3


@pytest.mark.parametrize("case", REFUSED, ids=ident)
def test_a_rule_refuses_the_rest(case: Case) -> None:
    shape = shapes(case.scheme)[case.shape]
    draft = Draft((0,) * len(shape), shape, scheme=case.scheme)
    with pytest.raises(InvalidInput, match="does not take"):
        check_draft(draft, Budget(8), Line(lambda *_: ()), RULES[case.rule], markov(4, 0))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(
        [c for c in TAKEN if RULES[c.rule].exact and len(shapes(c.scheme)[c.shape]) < 4]
    ),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 0.7]),
)
def test_exact_with_any_laws(case: Case, seed: int, zeros: float) -> None:
    assert difference(case, seed, min(3, size(case)), zeros) < EXACT


def test_the_table_has_every_rule_and_every_scheme() -> None:
    assert {case.rule for case in TAKEN} == set(RULES)
    assert {case.scheme for case in TAKEN} == set(Scheme)
    aliases = {
        name: point.load().name
        for name, point in plugins.points("verifier").items()
        if point.load().name != name
    }
    assert aliases == {"hsd": "block", "greedy-tree": "naive"}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_what_it_is(name: str) -> None:
    rule: Any = RULES[name]
    assert plugins.find("verifier", name).factory is type(rule)
    assert isinstance(rule.exact, bool)
    assert isinstance(rule.couples, bool)
    assert rule.schemes <= set(Scheme)
    assert rule.needs_chain == (rule.schemes == {Scheme.SINGLE})
