"""Forms of answers: what may follow, against a fresh matcher and against the form itself."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from llguidance import LLMatcher

from paceline.core.sampling import SamplingParams
from paceline.errors import InvalidInput
from paceline.text.grammar import GrammarTokens
from paceline.verifiers.block import BlockVerifier
from paceline.verifiers.token import TokenVerifier
from tests.rigged import Soft, assert_same_law, law_of_run, markov
from tests.tiny_tokenizers import byte_level

WORDS = byte_level()
VOCAB, END = 320, WORDS.eos_token_id
TOKENS = GrammarTokens(WORDS, VOCAB, [END])
SCHEMA = {
    "type": "object",
    "properties": {"the": {"enum": ["stop", "END", 3]}, "é": {"type": "boolean"}},
    "required": ["the"],
    "additionalProperties": False,
}


def by_replay(grammar: Any, text: list[int]) -> set[int]:
    """What a fresh matcher allows after a text."""
    matcher = LLMatcher(TOKENS.tokens, grammar.source)
    assert matcher.try_consume_tokens(text) == len(text)
    bits = matcher.compute_bitmask()
    return {token for token in range(VOCAB) if bits[token // 8] >> (token % 8) & 1}


def as_set(mask: torch.Tensor) -> set[int]:
    assert mask.shape == (VOCAB,)
    return set(mask.nonzero().flatten().tolist())


@pytest.mark.parametrize(
    "form", [{"json": SCHEMA}, {"regex": "(the|stop)( the){0,3}"}, {"json_object": True}]
)
def test_what_is_allowed_on_any_path_is_what_a_replay_allows(form: dict[str, Any]) -> None:
    """Random walks: paths ahead, back and aside in any order, then a final token or two."""
    chance, grammar = random.Random(1), TOKENS.grammar(form)
    session, text = grammar.open(), []
    for _ in range(12):
        for _ in range(4):
            path: list[int] = []
            for _ in range(chance.randint(0, 4)):
                allowed = by_replay(grammar, [*text, *path])
                assert as_set(session.allowed(path)) == allowed
                token = chance.randrange(VOCAB)
                assert session.allows(path, token) == (token in allowed)
                assert session.allows(path, END) == (END in allowed)
                ahead = sorted(allowed - {END})
                if not ahead:
                    break
                path.append(chance.choice(ahead))
        forced = session.forced()
        for number, token in enumerate(forced):
            assert by_replay(grammar, [*text, *forced[:number]]) == {token}
        step = path[: chance.randint(0, 2)]
        session.observe(step)
        text += step


def test_a_refused_path_changes_nothing_and_a_refused_answer_is_an_error() -> None:
    session = TOKENS.grammar({"regex": "[ab]{2}"}).open()
    a, c = WORDS.encode("a")[0], WORDS.encode("c")[0]
    assert bool(session.allowed([c]).all())
    assert not session.allows([c], a)
    assert session.allows([a], a)
    session.observe([a])
    with pytest.raises(InvalidInput, match="does not allow"):
        session.observe([c])


@pytest.mark.parametrize("verifier", [TokenVerifier(), BlockVerifier()])
def test_the_law_of_answers_is_p_restricted_to_the_form(verifier: Any) -> None:
    """By enumeration, against the form read by `re`: one to three letters a or b."""
    a, b, c = (WORDS.encode(letter)[0] for letter in "abc")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64).softmax(dim=-1)
    target = markov(2, seed=0)
    target.info = type(target.info)("table", VOCAB, gives=target.info.gives)
    target._law = lambda tokens: rows[tokens[-1]]

    def q(text: tuple[int, ...]) -> torch.Tensor:
        law = torch.zeros(VOCAB, dtype=torch.float64)
        law[[a, b, c]] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        return law

    def fits(text: str, *, whole: bool) -> bool:
        return bool(re.fullmatch("[ab]{1,3}" if whole else "[ab]{0,3}", text))

    expected: dict[tuple[int, ...], float] = {}

    def walk(tokens: tuple[int, ...], text: str, probability: float) -> None:
        law = rows[(c, *tokens)[-1]]
        nexts = {t: text + s for t, s in ((a, "a"), (b, "b")) if fits(text + s, whole=False)}
        if fits(text, whole=True):
            nexts[END] = text
        total = float(law[list(nexts)].sum())
        for token, longer in nexts.items():
            share = probability * float(law[token]) / total
            if token == END:
                expected[(*tokens, token)] = share
            else:
                walk((*tokens, token), longer, share)

    walk((), "", 1.0)
    found = law_of_run(
        target,
        (c,),
        Soft(q, 2),
        k=2,
        verifier=verifier,
        constraint=TOKENS.grammar({"regex": "[ab]{1,3}"}),
        params=SamplingParams(temperature=1.0),
        max_tokens=6,
        stop_token_ids=frozenset({END}),
    )
    assert_same_law(found, expected, atol=1e-9)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"json": SCHEMA, "regex": "a"},
        {"xml": True},
        {"json_object": False},
        {"json": 5},
        {"json": {"type": "strin"}},
        {"json": "{"},
        {"regex": "("},
        {"choice": []},
        {"choice": ["a", ""]},
        {"grammar": "start: nothing"},
        "json",
    ],
)
def test_a_form_that_cannot_be_followed_is_refused(form: Any) -> None:
    with pytest.raises(InvalidInput, match="structured_outputs"):
        TOKENS.grammar(form)


def test_a_model_without_an_end_token_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ends an answer"):
        GrammarTokens(WORDS, VOCAB, [])
