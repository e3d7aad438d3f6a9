"""Captured sequences of a toy language in which every token says which one follows."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from paceline.core.hidden import HiddenStates
from paceline.train.data import Dataset
from paceline.train.store import Captured, Store

VOCAB = 12
ROWS = torch.eye(VOCAB)
"""The output head: a state is the logits."""

SURE = 8.0
"""The target's logit of what follows; the others have 0."""


def follows(token: int) -> int:
    """The language: 5 is prime to 12, so all tokens come up."""
    return (token + 5) % VOCAB


def sequence(first: int, length: int = 20, num_prompt_tokens: int = 3) -> Captured:
    """A text of the target with its own states, which say nothing but the next token."""
    tokens = [first]
    while len(tokens) < length:
        tokens.append(follows(tokens[-1]))
    return captured(torch.tensor(tokens, dtype=torch.int32), num_prompt_tokens)


def captured(tokens: Tensor, num_prompt_tokens: int) -> Captured:
    states = torch.zeros(len(tokens) - 1, VOCAB)
    states[torch.arange(len(tokens) - 1), tokens[1:].long()] = SURE
    return Captured(tokens, num_prompt_tokens, HiddenStates({}, states))


def dataset(folder: Path, count: int = 40, **shape: int) -> Dataset:
    """Texts that begin with each token in turn, in two shards."""
    store = Store(folder)
    texts = [sequence(number % VOCAB, **shape) for number in range(count)]
    for part in (texts[: count // 2], texts[count // 2 :]):
        store.append(part, {})
    return Dataset(store)
