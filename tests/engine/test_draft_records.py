"""The drafts that a request keeps: what the rule saw and decided of them, against the laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import ROOT
from paceline.core.events import DraftRecord, Round, to_json
from paceline.core.protocols import Drafter, Verifier
from paceline.core.sampling import SamplingParams
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.engine.loop import decode
from paceline.engine.request import Request
from paceline.sampling.noise import SeededNoise
from paceline.testing.table import TableTarget
from paceline.verifiers.block import BlockVerifier
from paceline.verifiers.rrsw import RrswVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import flip, markov, run

VOCAB = 7
PROMPT = (1, 2, 1, 2)
SAMPLED = SamplingParams(temperature=1.0)
TARGET, DRAFT = markov(VOCAB, 0), markov(VOCAB, 1, scale=1.0)

CASES: dict[str, tuple[Callable[[], Drafter], Verifier, SamplingParams]] = {
    "nothing drafted": (NoDrafter, TokenVerifier(), SAMPLED),
    "n-grams, greedy": (NgramDrafter, TokenVerifier(), SamplingParams()),
    "n-grams, sampled": (NgramDrafter, TokenVerifier(), SAMPLED),
    "a chain, greedy": (lambda: ModelDrafter(DRAFT), TokenVerifier(), SamplingParams()),
    "a chain, sampled": (lambda: ModelDrafter(DRAFT), TokenVerifier(), SAMPLED),
    "a chain in one block": (lambda: ModelDrafter(DRAFT), BlockVerifier(), SAMPLED),
    "a tree, greedy": (
        lambda: TreeDrafter(DRAFT, max_nodes=6, top_k=2),
        TreeVerifier(),
        SamplingParams(),
    ),
    "a tree, sampled": (
        lambda: TreeDrafter(DRAFT, max_nodes=6, top_k=2, children="sampled"),
        RrswVerifier(),
        SAMPLED,
    ),
}


def law(model: TableTarget, text: Sequence[int], params: SamplingParams) -> Tensor:
    found = model._law(tuple(text))
    if params.is_greedy:
        return torch.nn.functional.one_hot(found.argmax(), VOCAB).to(found)
    return found


def assert_record(found: Round, before: Sequence[int], params: SamplingParams) -> DraftRecord:
    """What a record says is what the tables say, and agrees with the counts of its round."""
    draft = found.draft
    assert draft is not None
    n = len(draft.tokens)
    assert len(draft.parents) == len(draft.p) == len(draft.q) == n == found.num_draft_tokens
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        text = (*before, *(draft.tokens[i] for i in paths[parent]))
        paths[node] = (*paths[parent], node)
        if (p := draft.p[node]) is not None:
            assert p == pytest.approx(float(law(TARGET, text, params)[token]), abs=1e-12)
        if (q := draft.q[node]) is not None:
            assert q == pytest.approx(float(law(DRAFT, text, params)[token]), abs=1e-12)
    assert draft.path == (paths[draft.path[-1]] if draft.path else ())
    block = (*(draft.tokens[node] for node in draft.path), draft.token)
    assert found.tokens == block[: len(found.tokens)]
    assert found.num_accepted_tokens == min(len(draft.path), len(found.tokens))
    return draft


@pytest.mark.parametrize("name", CASES)
def test_a_record_is_what_the_laws_and_the_round_say(name: str) -> None:
    drafter, verifier, params = CASES[name]
    refused = drafted = 0
    for seed in range(5):
        options: dict[str, Any] = {"params": params, "verifier": verifier, "seed": seed}
        found = run(TARGET, PROMPT, drafter(), max_tokens=24, keep_draft=True, **options)
        text = list(PROMPT)
        for event in found.rounds:
            draft = assert_record(event, text, params)
            text += event.tokens
            drafted += len(draft.tokens)
            refused += len(draft.tokens) - len(draft.path)
            # A rule reads the distribution after every accepted token, and at the start.
            seen = (ROOT, *draft.path)
            for node, parent in enumerate(draft.parents):
                assert parent not in seen or draft.p[node] is not None
        bare = run(TARGET, PROMPT, drafter(), max_tokens=24, **options)
        assert bare.tokens == found.tokens, "looking at the draft changed the answer"
        assert all(event.draft is None for event in bare.rounds)
    assert (drafted > 0) == (name != "nothing drafted")
    assert (refused > 0) == (name != "nothing drafted")


def test_the_token_rule_refuses_only_where_the_draft_is_likelier() -> None:
    """Accepted with probability min(1, p/q): certain where p is at least q."""
    certain = tested = 0
    for seed in range(20):
        options: dict[str, Any] = {"params": SAMPLED, "seed": seed, "keep_draft": True}
        for event in run(TARGET, PROMPT, ModelDrafter(DRAFT), max_tokens=30, **options).rounds:
            assert event.draft is not None
            for node, (p, q) in enumerate(zip(event.draft.p, event.draft.q, strict=True)):
                if p is None:
                    assert node > len(event.draft.path), "a tested token without its probability"
                    continue
                assert q is not None
                tested += 1
                if p >= q:
                    certain += 1
                    assert node in event.draft.path
    assert 0 < certain < tested


def test_tokens_after_a_refusal_were_never_looked_at() -> None:
    """A processor runs where a rule asks, and nowhere else for the record's sake."""
    plain = run(TARGET, PROMPT, max_tokens=12)
    drafter = flip((*PROMPT, *plain.tokens), VOCAB, 1)
    asked: list[tuple[int, ...]] = []

    def processor(tokens: Sequence[int], logits: Tensor) -> Tensor:
        asked.append(tuple(tokens))
        return logits

    runs = []
    for keep in (False, True):
        asked.clear()
        found = run(TARGET, PROMPT, drafter, max_tokens=12, keep_draft=keep, processors=[processor])
        runs.append((found.tokens, list(asked)))
    assert runs[0] == runs[1]
    draft = found.rounds[0].draft
    assert draft is not None
    assert draft.path == (0,)
    assert draft.p == (1.0, 0.0, None, None)
    assert draft.q == (None,) * 4
    assert draft.token == plain.tokens[1]


def test_each_request_of_a_batch_keeps_its_own_or_none() -> None:
    requests = [
        Request(
            prompt=PROMPT[number:],
            drafter=drafter(),
            controller=FixedController(3),
            verifier=verifier,
            noise=SeededNoise(number),
            params=params,
            max_tokens=9 + number,
            keep_draft=number != 2,
        )
        for number, (drafter, verifier, params) in enumerate(list(CASES.values())[1:5])
    ]
    texts = [list(request.prompt) for request in requests]
    for event in decode(TARGET, requests):
        if not isinstance(event, Round):
            continue
        if event.id == 2:
            assert event.draft is None
        else:
            assert_record(event, texts[event.id], requests[event.id].params)
        texts[event.id] += event.tokens
    assert all(len(text) > 9 for text in texts)


def test_a_stop_cuts_the_tokens_and_not_the_record() -> None:
    plain = run(TARGET, PROMPT, max_tokens=12)
    drafter = flip((*PROMPT, *plain.tokens), VOCAB, 4)
    stop = frozenset({plain.tokens[1]})
    found = run(TARGET, PROMPT, drafter, max_tokens=12, keep_draft=True, stop_token_ids=stop)
    draft = found.rounds[0].draft
    assert draft is not None
    end = plain.tokens.index(plain.tokens[1]) + 1
    assert found.tokens == plain.tokens[:end]
    assert draft.path == (0, 1, 2, 3)
    assert draft.tokens == plain.tokens[:4]
    assert draft.token == plain.tokens[4]


def test_the_json_of_a_round_holds_the_record() -> None:
    found = run(TARGET, PROMPT, NgramDrafter(), k=2, max_tokens=3, keep_draft=True)
    draft = found.rounds[0].draft
    assert draft is not None
    assert to_json(found.rounds[0])["draft"] == {
        "tokens": list(draft.tokens),
        "parents": [-1, 0],
        "path": list(draft.path),
        "token": draft.token,
        "p": list(draft.p),
        "q": [None, None],
    }
