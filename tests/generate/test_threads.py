"""One model on several threads: each gets its own answer, and none waits for a whole other one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import paceline
from paceline.generate.results import Generation
from tests.tiny_folders import model, tokenizer

DRAFTERS: list[dict[str, Any]] = [
    {"drafter": "none"},
    {"drafter": "ngram"},
    {"drafter": "model"},
    {"drafter": "ngram,model"},
    {"drafter": "tree"},
]


@pytest.fixture(scope="module")
def tiny() -> Any:
    words = tokenizer()
    return paceline.load(model(eos_token_id=words.eos_token_id), words)


@pytest.fixture(scope="module")
def draft() -> Any:
    words = tokenizer()
    return paceline.load(model(num_hidden_layers=1, eos_token_id=words.eos_token_id), words)


def test_answers_on_four_threads_are_those_of_one(tiny: Any, draft: Any) -> None:
    """They share the target, and the draft model (llama.cpp #28286); some are several samples."""

    def answer(number: int) -> list[tuple[int, ...]]:
        options = {**DRAFTERS[number % len(DRAFTERS)], "verify": "coupling", "max_tokens": 10}
        if "model" in options["drafter"] or options["drafter"] == "tree":
            options["draft_model"] = draft
        letters = "abcdefgh"[number % 8] * (3 + number)
        found = tiny.generate(
            letters, n=1 + number % 3, temperature=1.0, seed=number, num_draft_tokens=3, **options
        )
        return [item.token_ids for item in found]

    expected = [answer(number) for number in range(15)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(answer, range(15))) == expected
    for one in (tiny, draft):
        assert one.target.prefixes.num_bytes == 0, "kept while several samples need it"


def test_an_answer_that_is_not_finished_holds_up_no_other_thread(tiny: Any) -> None:
    options = {"drafter": "ngram", "max_tokens": 12, "ignore_eos": True}
    expected = tiny.generate("the stop", **options)
    stream = tiny.stream("the stop", **options)
    first = next(stream)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(tiny.generate, "another", **options).result(timeout=60)
    assert len(other.token_ids) == 12
    *_, last = [first, *stream]
    assert isinstance(last, Generation)
    assert last.token_ids == expected.token_ids
