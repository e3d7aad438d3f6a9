"""Several drafters beside one sequence: who drafts, what each hears, and that no law bends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.core.drafts import Budget
from paceline.core.passes import drive
from paceline.core.protocols import Drafter, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Scores, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.cascade import CascadeDrafter, plan
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.errors import ContractViolation, InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.testing import check_drafter
from paceline.testing.table import TableTarget
from tests.rigged import Line, markov

INFO = TargetView(TargetInfo("table", vocab_size=8))
WARP = SamplingWarp(SamplingParams())


def line(name: str, *tokens: int) -> Line:
    """Drafts the same tokens always."""

    class Named(Line):
        pass

    Named.name = name  # type: ignore[misc]
    return Named(lambda text, number, k: tokens)


def session_of(*drafters: Drafter, prompt: tuple[int, ...] = (1, 2)) -> Any:
    session = CascadeDrafter(drafters).open(INFO, 100)
    session.observe(Committed(prompt))
    return session


def drafted(session: Any, budget: Budget) -> tuple[str | None, tuple[int, ...]]:
    draft = drive(session.propose(budget, WARP, SeededNoise(0)))
    return draft.drafter, draft.tokens


def test_the_first_that_has_something() -> None:
    session = session_of(line("one"), line("two", 5, 6), line("three", 7))
    assert drafted(session, Budget(4)) == ("two", (5, 6))
    assert drafted(session_of(line("one")), Budget(4)) == (None, ())


def test_the_one_that_is_asked_for_and_its_fallback() -> None:
    session = session_of(line("one"), line("two", 5, 6), line("three", 7, 7, 7))
    assert drafted(session, Budget(4, drafter="three")) == ("three", (7, 7, 7))
    assert drafted(session, Budget(4, drafter="one")) == (None, ())
    asked = Budget(4, drafter="one", fallback=Budget(2, drafter="three"))
    assert drafted(session, asked) == ("three", (7, 7))
    asked = Budget(0, drafter="two", fallback=Budget(1))
    assert drafted(session, asked) == ("two", (5,))
    with pytest.raises(ContractViolation, match="asked for drafter 'four'; there are one, two"):
        drafted(session, Budget(4, drafter="four"))


def test_a_length_of_zero_asks_nobody() -> None:
    assert list(plan(Budget(0, fallback=Budget(0)), ("one", "two"))) == []


def test_a_draft_model_reads_the_text_when_it_is_asked() -> None:
    target = markov(8, 0)
    prefilled: list[tuple[int, ...]] = []

    class Watched(TableTarget):
        def score(self, work: Sequence[Work]) -> list[Scores]:
            prefilled.extend(tuple(i.tokens)[: i.num_rows - i.num_scored] for i in work)
            return super().score(work)

    model = Watched(target._law, vocab_size=8)
    text = tuple(i % 8 for i in range(40))
    session = session_of(NgramDrafter(), ModelDrafter(model), prompt=text)
    assert drafted(session, Budget(3))[0] == "ngram"
    later = tuple(i * i % 8 for i in range(30))
    session.observe(Committed(later))
    assert not prefilled
    alone = ModelDrafter(model).open(INFO, 100)
    alone.observe(Committed((*text, *later)))
    assert not prefilled
    ours = drive(session.propose(Budget(3, drafter="model"), WARP, SeededNoise(0)))
    assert sum(map(len, prefilled)) == 69
    assert ours.tokens == drive(alone.propose(Budget(3), WARP, SeededNoise(0))).tokens
    session.observe(Committed(text[:30]))
    prefilled.clear()
    drive(session.propose(Budget(3, drafter="model"), WARP, SeededNoise(0)))
    # The committed tokens that were drafted last are in the cache already.
    assert 24 <= sum(map(len, prefilled)) <= 30


def test_the_sessions_are_closed_also_where_one_cannot_open_or_close() -> None:
    first, last = line("one"), line("three")

    class Refusing(Line):
        name = "two"

        def open(self, target: TargetView, capacity: int) -> Any:
            raise InvalidInput("no")

    with pytest.raises(InvalidInput, match="no"):
        CascadeDrafter((first, Refusing(lambda *_: ()), last)).open(INFO, 10)
    assert (first.log.opened, first.log.closed) == (1, 1)
    session_of(first, last).close()
    assert (first.log.closed, last.log.closed) == (2, 1)


def test_needs_and_rule_are_those_of_the_parts() -> None:
    class Branching(Line):
        name = "branching"
        needs = frozenset({"tree"})
        default_verifier = "coupling"

    cascade = CascadeDrafter((NgramDrafter(), Branching(lambda *_: ())))
    assert (cascade.names, cascade.needs) == (("ngram", "branching"), {"tree"})
    assert cascade.default_verifier == "coupling"
    assert CascadeDrafter((NgramDrafter(),)).default_verifier == "token"


@pytest.mark.parametrize("drafters", [(), (NgramDrafter(), NgramDrafter(4))], ids=["none", "same"])
def test_what_is_no_cascade(drafters: Any) -> None:
    with pytest.raises(InvalidInput, match="drafters of different names"):
        CascadeDrafter(drafters)


def test_it_keeps_the_contract_of_drafters() -> None:
    check_drafter(CascadeDrafter((NgramDrafter(min_ngram=2), ModelDrafter(markov(4, 1)))))
