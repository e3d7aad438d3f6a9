"""Heads that read features of the target, then their own: each row drafts several steps.

EAGLE-3 and MTP modules. In training the recorded tokens are fed, the features from the second step
on are the head's own, as in decoding (EAGLE-3's training-time test, 2503.01840). The loss of a step
is over the rows whose draft lies in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from paceline.train.data import Vocabulary
from paceline.train.eagle_network import Seen
from paceline.train.objective import Loss, Replayed, cross_entropy, divergence
from paceline.train.store import Captured


class Network(Protocol):
    """A head with gradients."""

    @property
    def rows(self) -> Tensor:
        """Its output rows, `[Vd, hidden]`."""
        ...

    def read(self, one: Captured) -> Tensor:
        """The states of a sequence that it reads, `[T, width]`."""
        ...

    def fuse(self, states: Tensor) -> Tensor:
        """From these states to features `[.., hidden]`."""
        ...

    def step(
        self, features: Tensor, tokens: Tensor, seen: Seen, step: int
    ) -> tuple[Tensor, Tensor, Seen]:
        """One step of a draft from every row of some texts.

        Args:
            features: of `fuse`, or of the step before, `[B, T, hidden]`.
            tokens: the token after each row's last, `[B, T]`.
            seen: of the steps before.
            step: how many there were.

        Returns:
            The features of the next step, the states `[B, T, hidden]` that go into the output rows,
            and what the next step sees.
        """
        ...


class Batch(NamedTuple):
    """Texts side by side; rows after the end of one are padding.

    Args:
        read: the states that the head reads, `[B, T, width]`.
        final: `[B, T, hidden]`.
        tokens: the token after each row's, `[B, T]`; -1 in padding.
        first: the first row of each text whose draft lies in the answer, `[B]`.
    """

    read: Tensor
    final: Tensor
    tokens: Tensor
    first: Tensor

    def shifted(self, steps: int) -> Tensor:
        """The token that many places after the one that follows each row; -1 after the end."""
        return functional.pad(self.tokens[:, steps:], (0, steps), value=-1)


def batch_of(sequences: Sequence[Captured], read: Callable[[Captured], Tensor]) -> Batch:
    """The texts of some sequences, whole: a draft sees the prompt too."""
    finals = [one.hidden.final for one in sequences]
    return Batch(
        pad_sequence([read(one) for one in sequences], batch_first=True),
        pad_sequence([final for final in finals if final is not None], batch_first=True),
        pad_sequence(
            [one.tokens[1:].long() for one in sequences], batch_first=True, padding_value=-1
        ),
        torch.tensor([max(0, one.num_prompt_tokens - 2) for one in sequences]),
    )


@dataclass(eq=False)
class FeatureObjective(Replayed):
    """See `objective.Objective`.

    Args:
        module: the head, a `Network` that is a torch module.
        vocabulary: what it can propose.
        weights: of the losses of the steps, one for each token that a row drafts in training.
        loss, temperature, precision: see `heads.HeadsObjective`.
        write: writes the head into a folder.
    """

    module: Any
    vocabulary: Vocabulary
    weights: Sequence[float]
    loss: Loss
    temperature: float
    precision: torch.dtype
    write: Callable[[Path], object]

    def backward(self, batch: Sequence[Captured]) -> list[float]:
        """See `objective.Objective`. Only rows whose loss counts have logits."""
        texts, losses = batch_of(batch, self.module.read), []
        target = _Law(self, texts) if self.loss == "divergence" else None
        with self.fast():
            features, seen = self.module.fuse(texts.read.to(self.precision)), Seen()
        for step in range(len(self.weights)):
            read, labels = self._labels(texts, step)
            with self.fast():
                features, states, seen = self.module.step(
                    features, texts.shifted(step).clamp(min=0), seen, step
                )
                logits = self.logits(states[read])
            if target is None:
                losses.append(cross_entropy(logits, labels))
            else:
                # What row i drafts in step s comes after token i + 1 + s: the target's row there.
                said = functional.pad(read, (step + 1, 0))[:, : read.shape[1]]
                losses.append(divergence(logits, labels, target.at(said)))
        pairs = zip(self.weights, losses, strict=True)
        total = sum((weight * loss for weight, loss in pairs), torch.zeros(()))
        total.backward()  # type: ignore[no-untyped-call]
        return [float(loss.detach()) for loss in losses]

    def logits(self, states: Tensor) -> Tensor:
        """The output rows on some states, `[.., Vd]`."""
        rows = self.module.rows
        return functional.linear(states.to(rows.dtype), rows)

    def _labels(self, texts: Batch, step: int) -> tuple[Tensor, Tensor]:
        """The rows `[B, T]` that draft a recorded token of the answer in a step, and its place."""
        drafted = texts.shifted(step + 1)
        in_answer = torch.arange(drafted.shape[1]) >= texts.first[:, None]
        read = in_answer & (drafted >= 0)
        return read, self.vocabulary.places(drafted[read])

    @torch.no_grad()
    def drafts(self, one: Captured) -> Tensor:
        """The greedy draft of every row, fed with its own tokens, `[T, steps]`."""
        text, found = batch_of([one], self.module.read), []
        tokens, seen = text.tokens, Seen()
        with self.fast():
            features = self.module.fuse(text.read.to(self.precision))
            for step in range(len(self.weights)):
                features, states, seen = self.module.step(features, tokens, seen, step)
                best = self.logits(states).argmax(dim=-1)
                tokens = best if self.vocabulary.ids is None else self.vocabulary.ids[best]
                found.append(tokens[0])
        return torch.stack(found, dim=1)


class _Law:
    """The target's log-probabilities over the draft vocabulary, after the rows of the answers."""

    def __init__(self, objective: FeatureObjective, texts: Batch) -> None:
        is_wanted = torch.arange(texts.final.shape[1]) >= texts.first[:, None]
        is_wanted &= texts.tokens >= 0
        with torch.no_grad(), objective.fast():
            logits = objective.logits(texts.final[is_wanted]).float()
        self._rows = (logits / objective.temperature).log_softmax(dim=-1)
        self._places = is_wanted.flatten().cumsum(0).view(is_wanted.shape) - 1

    def at(self, rows: Tensor) -> Tensor:
        """Those of some rows, a mask `[B, T]`."""
        return self._rows[self._places[rows]]
