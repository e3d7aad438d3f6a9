"""Greedy answers with every built-in drafter, against `generate` of transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from paceline.core.protocols import Drafter, Target
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights
from tests.rigged import run
from tests.tiny_models import build, tokens_of

PROMPT = tokens_of(5) * 2
"""It repeats itself, so that n-grams are found."""

COUNT = 10
"""Tokens of an answer: with the prompt more than any window of the tiny models holds."""


def generated(model: Any, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """transformers' own greedy tokens."""
    inputs = torch.tensor([list(prompt)])
    options = {"do_sample": False, "max_new_tokens": count, "use_cache": True}
    output = model.generate(inputs, attention_mask=torch.ones_like(inputs), **options)
    return tuple(output[0, len(prompt) :].tolist())


@cache
def unrelated() -> CachedTarget:
    """A draft model that is hardly ever right: other random weights, the same vocabulary."""
    model = build("qwen3", num_hidden_layers=1)
    return CachedTarget(from_weights(model.state_dict(), model.config, dtype=torch.float32))


DRAFTERS: dict[str, Callable[[Target], Drafter]] = {
    "none": lambda target: NoDrafter(),
    "ngram": lambda target: NgramDrafter(),
    "model, unrelated": lambda target: ModelDrafter(unrelated()),
    "model, the target": ModelDrafter,
}
"""From the target to each built-in drafter; a draft model is never right, or always."""


def assert_greedy(target: Target, answer: Sequence[int], drafter: str, k: int) -> None:
    """The answer to `PROMPT` with a built-in drafter is `answer`, in the rounds it should take.

    Args:
        target: what decodes, in float32.
        answer: `COUNT` tokens of transformers.
        drafter: its name in `DRAFTERS`.
        k: the draft length.
    """
    found = run(target, PROMPT, DRAFTERS[drafter](target), k=k, max_tokens=COUNT)
    assert found.tokens == tuple(answer)
    if drafter == "none" or k == 0:
        assert len(found.rounds) == COUNT
    elif drafter == "model, the target":
        assert len(found.rounds) == math.ceil(COUNT / (k + 1))
    elif drafter == "model, unrelated":
        assert len(found.rounds) > math.ceil(COUNT / (k + 1)), "no draft token was wrong"
