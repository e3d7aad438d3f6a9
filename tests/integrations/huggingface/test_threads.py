"""Threads that share a model, a draft model and one `speculate`: each answers as alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from paceline.integrations.huggingface import speculate
from tests.integrations.huggingface.doors import ids
from tests.tiny_models import build, tiny

NUM_THREADS = 4
CALLS = 3
WORDS = [tuple(range(4 + 15 * i, 19 + 15 * i)) for i in range(NUM_THREADS)]
"""What each thread may say, prompt included; no two share a token."""


class Only(LogitsProcessor):
    """Lets through the tokens of one thread."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = list(tokens)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, self.tokens] = scores[:, self.tokens]
        return kept


def answer(model: Any, number: int, **options: Any) -> list[int]:
    words = WORDS[number]
    output = model.generate(
        ids(words[: 3 + 3 * number] * 2),
        max_new_tokens=16,
        logits_processor=LogitsProcessorList([Only(words)]),
        **options,
    )
    found: list[int] = output[0].tolist()
    return found


@pytest.mark.parametrize("drafter", ["ngram", "model"])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_four_threads_with_words_of_their_own(drafter: str, sampled: bool) -> None:
    """Elsewhere requests at one time drifted into one another's content (llama.cpp #28286)."""
    # Models of this test's own: the first calls, which probe them, come at one time too.
    model, draft_model = build("mistral-window"), build("llama", num_hidden_layers=1)
    options: dict[str, Any] = {"draft_model": draft_model} if drafter == "model" else {}
    speculation = speculate(drafter, num_draft_tokens=3, seed=5, **options)
    call: dict[str, Any] = {"do_sample": sampled, "custom_generate": speculation}
    found: dict[int, list[list[int]]] = {number: [] for number in range(NUM_THREADS)}
    barrier = threading.Barrier(NUM_THREADS)

    def work(number: int) -> None:
        barrier.wait()
        for _ in range(CALLS):
            found[number].append(answer(model, number, **call))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answers in found.items():
        alone = answer(model, number, **call)
        assert answers == [alone] * CALLS
        assert set(alone) <= set(WORDS[number])
        if not sampled:
            assert alone == answer(tiny("mistral-window"), number)
