"""The captured sequences as one data set: for training, and held out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import InvalidInput
from paceline.train.store import Captured, Shard, Store

HELD_OUT_EVERY = 16
"""One of this many sequences is held out."""


class Dataset:
    """The sequences of all shards.

    Every 16th is held out; of fewer than 32, every other.

    Args:
        store: at least two sequences.
        tokens: how many tokens of its answers to take; the last answer is kept whole. None is all.
        sequences: how many of the first sequences to take; None is all.

    Raises:
        InvalidInput: there are fewer sequences.
    """

    def __init__(
        self, store: Store, *, tokens: int | None = None, sequences: int | None = None
    ) -> None:
        self._places: list[tuple[Shard, int]] = []
        left = tokens
        for shard in store:
            for place, (_, length) in enumerate(shard.lengths):
                if left is None or left > 0:
                    self._places.append((shard, place))
                left = None if left is None else left - length
        self._places = self._places[:sequences]
        if len(self) < 2:
            raise InvalidInput(
                f"{len(self)} sequences were captured, and training needs at least 2: one to learn "
                "from and one held out; give more prompts, tokens or minutes"
            )
        every = HELD_OUT_EVERY if len(self) >= 2 * HELD_OUT_EVERY else 2
        self.held_out = range(every - 1, len(self), every)
        self.training = [n for n in range(len(self)) if n not in self.held_out]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Captured:
        shard, place = self._places[number]
        return shard[place]

    def about(self) -> dict[str, int]:
        """Its size, in numbers."""
        lengths = [shard.lengths[place] for shard, place in self._places]
        return {
            "num_sequences": len(self),
            "num_prompt_tokens": sum(prompt for prompt, _ in lengths),
            "num_answer_tokens": sum(answer for _, answer in lengths),
        }

    def num_answer_tokens(self, number: int) -> int:
        """The length of an answer; reads nothing."""
        shard, place = self._places[number]
        return shard.lengths[place][1]

    def answers(self, numbers: Iterable[int]) -> Iterator[Tensor]:
        """The answers of some sequences."""
        for number in numbers:
            one = self[number]
            yield one.tokens[one.num_prompt_tokens :].long()


def batches(data: Dataset, tokens: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """The training sequences of an epoch, in batches of about this many answer tokens.

    The order follows from seed and epoch alone: that is all that has to be kept of it.
    """
    order = torch.randperm(
        len(data.training),
        generator=torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**64),
    )
    batch: list[int] = []
    size = 0
    for place in order.tolist():
        number = data.training[place]
        batch.append(number)
        size += data.num_answer_tokens(number)
        if size >= tokens:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The tokens that a drafter can propose.

    Args:
        ids: ascending; None is every token of the target.
        size: the number of them.
        coverage: the share of the tokens of held-out answers that are among them. Acceptance cannot
            exceed it.
    """

    ids: Tensor | None
    size: int
    coverage: float

    def places(self, tokens: Tensor) -> Tensor:
        """Where tokens stand in it; -1 for those that it lacks."""
        if self.ids is None:
            return tokens
        at = torch.searchsorted(self.ids, tokens).clamp(max=len(self.ids) - 1)
        return torch.where(self.ids[at] == tokens, at, -1)


def vocabulary(
    data: Dataset, size: int | None, vocab_size: int, always: Sequence[int] = ()
) -> Vocabulary:
    """The most frequent tokens of the training answers (FR-Spec, Zhao et al. 2502.14856).

    Args:
        data: the answers.
        size: how many; None is all.
        vocab_size: of the target.
        always: tokens that are in it in any case: those that end an answer.
    """
    if size is None or size >= vocab_size:
        return Vocabulary(None, vocab_size, 1.0)
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for answer in data.answers(data.training):
        counts += torch.bincount(answer, minlength=vocab_size)
    wanted = [token for token in always if 0 <= token < vocab_size][:size]
    counts[wanted] = torch.iinfo(torch.long).max
    # Of equally frequent ones the lower id, which in most tokenizers is the more frequent token.
    ids = counts.argsort(descending=True, stable=True)[:size].sort().values
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[ids] = True
    inside = total = 0
    for answer in data.answers(data.held_out):
        inside += int(known[answer].sum())
        total += len(answer)
    return Vocabulary(ids, len(ids), inside / total if total else 0.0)
