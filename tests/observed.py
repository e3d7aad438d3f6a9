"""Watch what a drafter drafts in a run, and ask the target itself, one plain call a question."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.core.drafts import Budget, Draft
from paceline.core.passes import drive, prefill
from paceline.core.protocols import Drafter, Noise, Target, Warp, Work
from paceline.core.target import Committed
from paceline.core.view import TargetView
from paceline.testing.table import TableTarget


@dataclass
class Step:
    """A proposal: the text before it, the draft, what the round made final, and its path."""

    text: tuple[int, ...]
    draft: Draft
    tokens: tuple[int, ...] = ()
    path: tuple[int, ...] = ()


@dataclass
class Watched:
    """A drafter whose only session is looked at."""

    inner: Drafter
    steps: list[Step] = field(default_factory=list)
    text: tuple[int, ...] = ()
    session: Any = None

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def needs(self) -> frozenset[str]:
        return self.inner.needs

    def open(self, target: TargetView, capacity: int) -> Watched:
        self.session = self.inner.open(target, capacity)
        return self

    def observe(self, committed: Committed) -> None:
        if committed.draft is not None and self.steps and committed.draft is self.steps[-1].draft:
            self.steps[-1].tokens, self.steps[-1].path = committed.tokens, committed.path
        self.text += committed.tokens
        self.session.observe(committed)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        draft: Draft = drive(self.session.propose(budget, warp, noise))
        self.steps.append(Step(self.text, draft))
        return draft

    def close(self) -> None:
        self.session.close()


def logits_behind(target: Target, text: Sequence[int]) -> Tensor:
    """The target's logits `[V]` behind a text, in a slot of its own, without any draft."""
    slot = target.open(len(text) + 1)
    try:
        prefill(target, slot, text[:-1])
        return target.score([Work(slot, [text[-1]], Draft())])[0].logits[0]
    finally:
        target.close(slot)


def argmax_behind(target: Target, text: Sequence[int]) -> int:
    return int(logits_behind(target, text).argmax())


def tokens_on(draft: Draft, node: int) -> tuple[int, ...]:
    """The tokens from the root to a node."""
    return tuple(draft.tokens[i] for i in draft.path(node))


def long_memory(vocab_size: int, *, words: int = 6, max_length: int | None = None) -> TableTarget:
    """A random law that follows from all of the text, by way of one of `words` hashes of it."""

    def law(tokens: tuple[int, ...]) -> Tensor:
        digest = hashlib.sha256(repr((tokens[-2:], sum(tokens) % words)).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
        return (2 * torch.randn(vocab_size, generator=generator, dtype=torch.float64)).softmax(-1)

    return TableTarget(law, vocab_size=vocab_size, max_length=max_length)
