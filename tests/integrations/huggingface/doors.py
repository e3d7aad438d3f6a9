"""Both doors side by side: `generate` as it is, and with `speculate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.integrations.huggingface import speculate
from tests.rigged import Line, oracle
from tests.tiny_models import tiny, tokens_of

REPETITIVE = (5, 9, 7) * 3
"""A prompt that an n-gram drafter finds much in."""


def ids(*rows: Sequence[int]) -> Tensor:
    return torch.tensor(rows)


def padded(*rows: Sequence[int], pad: int = 0) -> dict[str, Tensor]:
    """Prompts of different lengths, padded on the left."""
    width = max(len(row) for row in rows)
    return {
        "input_ids": ids(*[(pad,) * (width - len(row)) + tuple(row) for row in rows]),
        "attention_mask": ids(*[(0,) * (width - len(row)) + (1,) * len(row) for row in rows]),
    }


def answer(model: Any, prompt: Sequence[int], length: int, **options: Any) -> tuple[int, ...]:
    """What `generate` answers by itself."""
    output = model.generate(ids(prompt), max_new_tokens=length, **options)
    return tuple(output[0, len(prompt) :].tolist())


def oracle_of(model: Any, prompt: Sequence[int], length: int = 24, **options: Any) -> Line:
    """A drafter that is always right."""
    return oracle((*prompt, *answer(model, prompt, length, **options)))


DRAFTERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "none": lambda family: {"drafter": "none"},
    "ngram": lambda family: {"drafter": "ngram"},
    "model": lambda family: {"draft_model": tiny(family)},
    "weak model": lambda family: {"draft_model": tiny("gpt2" if family != "gpt2" else "llama")},
}
"""From the target's family to the arguments of `speculate`."""


def same(model: Any, speculation: dict[str, Any] | None = None, **call: Any) -> Tensor:
    """Assert that both doors give the same sequences, and return them."""
    plain = model.generate(**call)
    found = model.generate(**call, custom_generate=speculate(**(speculation or {})))
    assert found.dtype == plain.dtype
    assert found.tolist() == plain.tolist()
    return found


class Recorder:
    """A streamer that writes down what is done to it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: Tensor) -> None:
        assert value.device.type == "cpu"
        self.calls.append((tuple(value.shape), value.tolist()))

    def end(self) -> None:
        self.calls.append("end")


def prompts(lengths: Iterable[int]) -> list[tuple[int, ...]]:
    return [tokens_of(length, seed=length) for length in lengths]
