"""Under a constraint the law is p restricted to it, whatever is drafted: by enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import Auxiliary, Draft
from paceline.core.sampling import SamplingParams
from paceline.drafters.lookahead import LookaheadDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.engine.constrained import FORCED, cut, forced_draft
from paceline.verifiers.block import BlockVerifier
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.traversal import TraversalVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import Branches, Soft, assert_same_law, law_of_run, markov, run

A, B, C, END = range(4)
SAMPLED = SamplingParams(temperature=1.0)


@dataclass(frozen=True)
class Words:
    """Answers of one or two letters A or B, and AAB."""

    def open(self) -> WordsSession:
        return WordsSession()


def follows(text: Sequence[int]) -> set[int]:
    if tuple(text[-2:]) == (A, A):
        return {B}
    if len(text) >= 2:
        return {END}
    return {A, B} | ({END} if text else set())


class WordsSession:
    def __init__(self) -> None:
        self.text: list[int] = []

    def allowed(self, path: Sequence[int]) -> Tensor:
        mask = torch.zeros(4, dtype=torch.bool)
        mask[list(follows([*self.text, *path]))] = True
        return mask

    def allows(self, path: Sequence[int], token: int) -> bool:
        return token in follows([*self.text, *path])

    def forced(self) -> Sequence[int]:
        tokens: list[int] = []
        while len(only := follows([*self.text, *tokens])) == 1 and END not in only:
            tokens += only
        return tokens

    def observe(self, tokens: Sequence[int]) -> None:
        self.text += tokens


class NeverForced(WordsSession):
    def forced(self) -> Sequence[int]:
        return ()


@dataclass(frozen=True)
class WordsUnforced:
    def open(self) -> NeverForced:
        return NeverForced()


def restricted(target: Any, prompt: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """The law of the answers, by hand."""
    found: dict[tuple[int, ...], float] = {}

    def walk(text: tuple[int, ...], probability: float) -> None:
        if text[-1:] == (END,):
            found[text] = probability
            return
        law = target._law(prompt + text)
        allowed = sorted(follows(text))
        total = float(law[allowed].sum())
        for token in allowed:
            walk((*text, token), probability * float(law[token]) / total)

    walk((), 1.0)
    return found


def q(text: tuple[int, ...]) -> Tensor:
    """A law that draws a token which the constraint forbids, too."""
    law = torch.zeros(4, dtype=torch.float64)
    law[[A if len(text) % 2 else B, C]] = torch.tensor([0.6, 0.4], dtype=torch.float64)
    return law


OPTIONS: dict[str, Any] = {
    "params": SAMPLED,
    "max_tokens": 5,
    "stop_token_ids": frozenset({END}),
}
DRAFTED = [
    (None, TokenVerifier()),
    (Soft(q, 2), TokenVerifier()),
    (Soft(q, 2), BlockVerifier()),
    (Soft(q, 2), TraversalVerifier()),
    (Branches((C, A, A, B, END), 4, 3), TreeVerifier()),
    (Branches((C, B, A, C, END), 4, 2), TreeVerifier()),
    (NgramDrafter(), TokenVerifier()),
]


@pytest.mark.parametrize("constraint", [Words(), WordsUnforced()], ids=["forced", "unforced"])
@pytest.mark.parametrize(("drafter", "verifier"), DRAFTED)
def test_the_law_is_p_restricted(drafter: Any, verifier: Any, constraint: Any) -> None:
    target, prompt = markov(4, seed=3), (C, A, A, B)
    found = law_of_run(
        target, prompt, drafter, verifier=verifier, k=2, constraint=constraint, **OPTIONS
    )
    assert_same_law(found, restricted(target, prompt))


def test_dropping_a_drawn_token_would_bend_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that `cut` must not have: the test above finds it."""

    def drops(draft: Draft, session: Any, ends: frozenset[int]) -> Draft:
        chosen = Draft(draft.tokens, draft.parents)
        length = len(cut(chosen, session, ends))
        assert draft.probs is not None
        return Draft(draft.tokens[:length], probs=draft.probs[:length])

    monkeypatch.setattr("paceline.engine.sequence.cut", drops)
    target, prompt = markov(4, seed=3), (C,)
    options = {**OPTIONS, "constraint": WordsUnforced(), "verifier": TokenVerifier(), "k": 2}
    found = law_of_run(target, prompt, Soft(q, 2), **options)
    expected = restricted(target, prompt)
    assert max(abs(found.get(text, 0) - expected.get(text, 0)) for text in expected) > 0.01


@pytest.mark.parametrize("verifier", [TreeVerifier(), CouplingVerifier()])
@pytest.mark.parametrize("drafter", [NgramDrafter(), LookaheadDrafter(), Soft(q, 2)])
def test_tokens_do_not_depend_on_drafts(drafter: Any, verifier: Any) -> None:
    """Greedily with any rule, and with seeds under the rule that couples."""
    if isinstance(drafter, Soft) and verifier.couples:
        pytest.skip("races of two laws are enumerated nowhere")
    target = markov(4, seed=5)
    for seed in range(12):
        params = SamplingParams(temperature=1.0 if verifier.couples else 0.0)
        options = {**OPTIONS, "params": params, "verifier": verifier, "seed": seed}
        prompt = (C, seed % 3, B)
        plain = run(target, prompt, constraint=Words(), **options)
        drafted = run(target, prompt, drafter, constraint=Words(), k=2, **options)
        assert drafted.tokens == plain.tokens
        assert drafted.reason == plain.reason


def test_what_is_forced_is_accepted_and_asks_no_drafter() -> None:
    session = WordsSession()
    session.observe([A, A])
    draft = forced_draft(session, room=4)
    assert draft is not None
    assert (draft.tokens, draft.drafter) == ((B,), FORCED)
    assert forced_draft(session, room=0) is None
    assert forced_draft(WordsSession(), room=4) is None
    found = run(markov(4, seed=3), (A,), constraint=Words(), **{**OPTIONS, "params": SAMPLED})
    forced = [item for item in found.rounds if item.drafter == FORCED]
    assert all(item.num_accepted_tokens == item.num_draft_tokens for item in forced)


def test_a_draft_is_cut_where_it_leaves_the_constraint() -> None:
    session = WordsSession()
    law = torch.full((4,), 0.25)
    chain = Draft((A, C, B))
    assert cut(chain, session, frozenset({END})).tokens == (A,)
    drawn = Draft((A, C, B), probs=(law, law, law), confidence=(0.9, 0.8, 0.7))
    found = cut(drawn, session, frozenset({END}))
    assert (found.tokens, found.parents, found.confidence) == ((A, C), (-1, 0), (0.9, 0.8))
    assert found.probs is not None
    assert len(found.probs) == 2
    ended = Draft((A, END, A), probs=(law, law, law))
    assert cut(ended, session, frozenset({END})).tokens == (A, END)
    whole = Draft((A, B))
    assert cut(whole, session, frozenset({END})) is whole


def test_branches_are_cut_by_themselves_and_auxiliary_rows_see_what_is_left() -> None:
    aux = Auxiliary((A,), (1,), torch.tensor([[True, True, False, True, False, True]]))
    tree = Draft((C, A, B, B), parents=(-1, -1, 0, 1), aux=aux)
    found = cut(tree, WordsSession(), frozenset({END}))
    assert (found.tokens, found.parents) == ((A, B), (-1, 0))
    assert found.aux is not None
    assert found.aux.visible.tolist() == [[True, False, False, True]]
