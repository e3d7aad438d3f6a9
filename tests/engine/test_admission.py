"""Drafts cut to what a pass over all sequences is worth: exact, by every outcome of the noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Budget, Draft, Scheme
from paceline.core.events import Failed, Round
from paceline.core.protocols import Noise, Purpose, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.core.view import TargetView
from paceline.drafters.none import NoDrafter
from paceline.engine.admission import Admission, can_be_cut
from paceline.engine.loop import Engine, Request
from paceline.errors import InvalidInput
from paceline.testing.law import output_law
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier
from tests.economics.test_admission import best_of_all
from tests.rigged import assert_same_law, markov

Text = tuple[int, ...]


@dataclass(frozen=True)
class Foreseeing:
    """Draws from a law, and says before each draw how sure it is of it.

    Args:
        law: the text so far -> q `[V]`.
        sure: the text so far -> the confidence in the next token.
    """

    law: Callable[[Text], Tensor]
    sure: Callable[[Text], float]
    length: int = 2
    foresees: bool = True

    name: ClassVar[str] = "foreseeing"
    needs: ClassVar[frozenset[str]] = frozenset()

    def open(self, target: TargetView, capacity: int) -> ForeseeingSession:
        return ForeseeingSession(self)


class ForeseeingSession:
    def __init__(self, drafter: Foreseeing) -> None:
        self._drafter = drafter
        self._text: Text = ()

    def observe(self, committed: Committed) -> None:
        self._text += committed.tokens

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        own, text = self._drafter, self._text
        laws: list[Tensor] = []
        sure: list[float] = []
        for _ in range(min(own.length, budget.num_draft_tokens)):
            sure.append(own.sure(text))
            laws.append(own.law(text))
            text += (noise.sample(laws[-1], len(text), Purpose.DRAFT),)
        tokens = text[len(self._text) :]
        return Draft(tokens, None, tuple(laws), confidence=tuple(sure), is_foreseen=own.foresees)

    def close(self) -> None:
        pass


def told(
    target: TableTarget,
    prompts: Sequence[Text],
    drafter: Any,
    noise: Noise,
    admission: Admission | None,
    *,
    max_tokens: int = 2,
    lengths: list[int] | None = None,
) -> tuple[Text, ...]:
    """The answers of sequences that are decoded together."""
    engine = Engine(target, admission=admission)
    for prompt in prompts:
        engine.add(
            Request(
                prompt=prompt,
                drafter=drafter,
                controller=FixedController(2),
                verifier=TokenVerifier(),
                noise=noise,
                params=SamplingParams(temperature=1.0),
                max_tokens=max_tokens,
            )
        )
    answers: dict[int, Text] = dict.fromkeys(range(len(prompts)), ())
    while engine.is_busy:
        for event in engine.step():
            assert not isinstance(event, Failed)
            if isinstance(event, Round):
                answers[event.id] += event.tokens
                if lengths is not None:
                    lengths.append(event.num_draft_tokens)
    return tuple(answers.values())


P, Q = (torch.tensor(law, dtype=torch.float64) for law in ([0.7, 0.3], [0.5, 0.5]))
PAPER = {1: 1.0, 2: 2.0, 3: 1 / 0.45}
"""The seconds of passes in the paper's example of what is not allowed."""


def hindsight(text: Text) -> float:
    """Sure of the first token, and of the second one only after token 0."""
    return 0.8 if len(text) == 1 else 0.9 if text[-1] == 0 else 0.01


class BestOfAll(Admission):
    """What the paper warns of: the cut with the most tokens a second, all confidences known."""

    def cut(self, drafts: Sequence[Draft], *, other_rows: int) -> list[Draft]:
        counts = best_of_all([draft.confidence or () for draft in drafts], self.passes_per_second)
        return [draft.first(count) for draft, count in zip(drafts, counts, strict=True)]


@pytest.mark.parametrize(
    ("admission", "law"), [(Admission(PAPER), [0.7, 0.3]), (BestOfAll(PAPER), [0.85, 0.15])]
)
def test_the_cut_keeps_the_law_where_the_best_cut_does_not(
    admission: Admission, law: list[float]
) -> None:
    """DSpark's example: p = (.7, .3), q = (.5, .5), and the cut drops what is token 1."""
    drafter = Foreseeing(lambda text: Q, hindsight)

    def first(noise: Noise) -> int:
        (answer,) = told(TableTarget(P), [(0,)], drafter, noise, admission, max_tokens=3)
        return answer[0]

    found = output_law(first)
    assert [found[token] for token in (0, 1)] == pytest.approx(law, abs=1e-12)


def test_sequences_together_have_the_law_of_each_alone() -> None:
    """Confidences that follow from the tokens, so that drafts of all lengths are cut."""
    table = markov(2, 1, order=1)
    q = torch.tensor([[0.6, 0.4], [0.25, 0.75]], dtype=torch.float64)
    drafter = Foreseeing(lambda text: q[text[-1]], lambda text: 0.9 if sum(text) % 2 else 0.35)
    prompts, lengths = [(0,), (1, 1)], list[int]()
    admission = Admission({1: 1.0, 2: 1.15, 3: 1.4, 4: 1.7, 5: 2.1, 6: 2.6})
    found = output_law(
        lambda noise: told(table, prompts, drafter, noise, admission, lengths=lengths)
    )
    expected = output_law(lambda noise: told(table, prompts, NoDrafter(), noise, None))
    assert_same_law(found, expected)
    assert {0, 1} <= set(lengths)


def test_what_may_be_cut() -> None:
    laws, sure = (Q, Q), (0.9, 0.2)
    assert can_be_cut(Draft((0, 1), confidence=sure))
    assert can_be_cut(Draft((0, 1), probs=laws, confidence=sure, is_foreseen=True))
    assert not can_be_cut(Draft((0, 1), probs=laws, confidence=sure))
    assert not can_be_cut(Draft((0, 1)))
    tree = Draft((0, 1), (-1, -1), scheme=Scheme.CHOSEN, confidence=sure)
    assert not can_be_cut(tree)


def test_drafts_that_drew_what_they_are_sure_of_stay_whole() -> None:
    drawn = Draft((0, 1), probs=(Q, Q), confidence=(0.9, 0.01))
    chosen = Draft((0, 1), confidence=(0.9, 0.01))
    tree = Draft((0, 1, 1), (-1, -1, 0), scheme=Scheme.CHOSEN, confidence=(0.5, 0.2, 0.9))
    found = Admission({1: 1.0, 20: 20.0}).cut([drawn, chosen, tree, Draft()], other_rows=3)
    assert found[0] is drawn
    assert found[2] is tree
    assert found[1].tokens == (0,)
    assert found[1].confidence == (0.9,)


@pytest.mark.parametrize("seconds", [{}, {0: 1.0}, {1: 0.0}, {1: float("inf")}, {2: float("nan")}])
def test_times_that_make_no_sense_are_refused(seconds: Any) -> None:
    with pytest.raises(InvalidInput, match="admission takes the seconds of a pass, above 0"):
        Admission(seconds)
