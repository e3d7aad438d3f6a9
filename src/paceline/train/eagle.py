"""EAGLE-3's training: each row drafts several steps on its own output, as in decoding.

The loss of step s is the divergence of its distribution from the target's at the place that it is
about (or the cross-entropy with the recorded token), over rows whose draft lies in the answer; the
sum has weights .8^s (2503.01840, and the settings of its repository). In training the recorded
tokens are fed, the features are the head's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from paceline.core.hidden import Hidden
from paceline.economics.stats import AcceptanceCounts
from paceline.train.data import Vocabulary
from paceline.train.eagle_network import EagleNetwork, Seen
from paceline.train.objective import Loss, cross_entropy, divergence, walk
from paceline.train.store import Captured

DECAY = 0.8
"""The weight of a step's loss, relative to the step before it."""


def taps_of(num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs a head reads: 2, L // 2 and L - 3; first, middle and last of few.

    >>> taps_of(30), taps_of(2)
    ((2, 15, 27), (0, 1, 2))
    """
    usual = 2, num_layers // 2, num_layers - 3
    rising = usual[0] < usual[1] < usual[2]
    return usual if rising else tuple(sorted({0, num_layers // 2, num_layers}))


def hidden_of(num_layers: int) -> Hidden:
    """The states that a head learns from: those it reads, and the last, for the target's law."""
    return Hidden(taps_of(num_layers), final=True)


class Batch(NamedTuple):
    """Texts side by side; rows after the end of one are padding.

    Args:
        taps: `[B, T, taps * hidden]`.
        final: `[B, T, hidden]`.
        tokens: the token after each row's, `[B, T]`; -1 in padding.
        first: the first row of each text whose draft lies in the answer, `[B]`.
    """

    taps: Tensor
    final: Tensor
    tokens: Tensor
    first: Tensor

    def shifted(self, steps: int) -> Tensor:
        """The token that many places after the one that follows each row; -1 after the end."""
        return functional.pad(self.tokens[:, steps:], (0, steps), value=-1)


def batch_of(sequences: Sequence[Captured]) -> Batch:
    """The texts of some sequences, whole: a draft sees the prompt too."""
    finals = [one.hidden.final for one in sequences]
    return Batch(
        pad_sequence(
            [torch.cat([*one.hidden.layers.values()], dim=-1) for one in sequences],
            batch_first=True,
        ),
        pad_sequence([final for final in finals if final is not None], batch_first=True),
        pad_sequence(
            [one.tokens[1:].long() for one in sequences], batch_first=True, padding_value=-1
        ),
        torch.tensor([max(0, one.num_prompt_tokens - 2) for one in sequences]),
    )


@dataclass(eq=False)
class EagleObjective:
    """See `objective.Objective`.

    Args:
        module: the head.
        vocabulary: what it can propose.
        num_steps: the tokens that a row drafts in training.
        loss, temperature, precision: see `medusa.MedusaObjective`.
        write: writes the head into a folder.
    """

    module: EagleNetwork
    vocabulary: Vocabulary
    num_steps: int
    loss: Loss
    temperature: float
    precision: torch.dtype
    write: Callable[[EagleObjective, Path], None]

    def backward(self, batch: Sequence[Captured]) -> list[float]:
        """See `objective.Objective`."""
        texts, losses = batch_of(batch), []
        target = self._target(texts.final) if self.loss == "divergence" else None
        with self._fast():
            features, seen = self.module.fuse(texts.taps.to(self.precision)), Seen()
        for step in range(self.num_steps):
            with self._fast():
                features, logits, seen = self.module.step(
                    features, texts.shifted(step).clamp(min=0), seen, step
                )
            read, labels = self._labels(texts, step)
            if target is None:
                losses.append(cross_entropy(logits[read], labels))
            else:
                # What row i drafts in step s comes after token i + 1 + s: the target's row there.
                said = target[functional.pad(read, (step + 1, 0))[:, : read.shape[1]]]
                losses.append(divergence(logits[read], labels, said))
        total = sum((DECAY**step * loss for step, loss in enumerate(losses)), torch.zeros(()))
        total.backward()  # type: ignore[no-untyped-call]
        return [float(loss.detach()) for loss in losses]

    def _labels(self, texts: Batch, step: int) -> tuple[Tensor, Tensor]:
        """The rows `[B, T]` that draft a recorded token of the answer in a step, and its place."""
        drafted = texts.shifted(step + 1)
        in_answer = torch.arange(drafted.shape[1]) >= texts.first[:, None]
        read = in_answer & (drafted >= 0)
        return read, self.vocabulary.places(drafted[read])

    @torch.no_grad()
    def _target(self, final: Tensor) -> Tensor:
        with self._fast():
            rows = self.module.rows
            logits = functional.linear(final.to(rows.dtype), rows)
        return (logits.float() / self.temperature).log_softmax(dim=-1)

    @torch.no_grad()
    def replay(self, texts: Sequence[Captured]) -> AcceptanceCounts:
        """See `objective.Objective`."""
        counts = AcceptanceCounts()
        for one in texts:
            counts = walk(self.drafts(one), one.tokens, one.num_prompt_tokens, counts)
        return counts

    @torch.no_grad()
    def drafts(self, one: Captured) -> Tensor:
        """The greedy draft of every row, fed with its own tokens, `[T, steps]`."""
        text, found = batch_of([one]), []
        tokens, seen = text.tokens, Seen()
        with self._fast():
            features = self.module.fuse(text.taps.to(self.precision))
            for step in range(self.num_steps):
                features, logits, seen = self.module.step(features, tokens, seen, step)
                best = logits.argmax(dim=-1)
                tokens = best if self.vocabulary.ids is None else self.vocabulary.ids[best]
                found.append(tokens[0])
        return torch.stack(found, dim=1)

    def save(self, folder: Path) -> None:
        """See `objective.Objective`."""
        self.write(self, folder)

    def _fast(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", self.precision, enabled=self.precision is torch.bfloat16)
