"""What a drafter is trained on: a loss, and its acceptance on held-out text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.economics.stats import AcceptanceCounts
from paceline.train.store import Captured

Loss = Literal["cross-entropy", "divergence"]


class Objective(Protocol):
    """A drafter in training."""

    @property
    def module(self) -> nn.Module:
        """What is trained: float32 parameters, those that are frozen being buffers."""
        ...

    def backward(self, batch: Sequence[Captured]) -> list[float]:
        """The loss at each draft position; adds the gradients of their weighted sum."""
        ...

    def replay(self, texts: Sequence[Captured]) -> AcceptanceCounts:
        """The acceptance of greedy chains along the answers, by draft position."""
        ...

    def save(self, folder: Path) -> None:
        """Write the drafter as it is now, for loading."""
        ...


class Replayed:
    """What objectives share whose drafts are chains that `walk` follows along a whole text.

    Args:
        precision: what products are computed in; parameters stay in float32.
        write: writes the drafter into a folder.
    """

    precision: torch.dtype
    write: Callable[[Path], object]

    @abstractmethod
    def drafts(self, one: Captured) -> Tensor:
        """The greedy drafts along a text, as `walk` reads them, `[T, K]`."""

    @torch.no_grad()
    def replay(self, texts: Sequence[Captured]) -> AcceptanceCounts:
        """See `Objective.replay`."""
        counts = AcceptanceCounts()
        for one in texts:
            counts = walk(self.drafts(one), one.tokens, one.num_prompt_tokens, counts)
        return counts

    def save(self, folder: Path) -> None:
        """See `Objective.save`."""
        self.write(folder)

    def fast(self) -> AbstractContextManager[object]:
        """The precision of products."""
        return torch.autocast("cpu", self.precision, enabled=self.precision is torch.bfloat16)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of -log q(label) over the rows; 0 where there are none.

    Args:
        logits: `[n, V]`.
        labels: `[n]`; rows whose label is -1 do not count.
    """
    kept = labels >= 0
    if not bool(kept.any()):
        return logits.sum() * 0.0
    return functional.cross_entropy(logits[kept].float(), labels[kept])


def divergence(logits: Tensor, labels: Tensor, target: Tensor) -> Tensor:
    """The mean of KL(p || q) over the rows; 0 where there are none.

    Args:
        logits: `[n, V]` of q.
        labels: `[n]`; rows whose label is -1 do not count.
        target: `[n, V]`, log p.
    """
    kept = labels >= 0
    if not bool(kept.any()):
        return logits.sum() * 0.0
    log_q = logits[kept].float().log_softmax(dim=-1)
    return functional.kl_div(log_q, target[kept], reduction="batchmean", log_target=True)


def walk(
    drafts: Tensor, text: Tensor, num_prompt_tokens: int, counts: AcceptanceCounts
) -> AcceptanceCounts:
    """The rounds that greedy chains would have made along an answer of the target.

    A token that was chosen without chance is accepted where, and only where, the target says it
    too. So along the target's own text the rounds are those of decoding, one by one, whether it was
    greedy or drew its tokens.

    Args:
        drafts: `[n, K]`; row i is drafted when token i is the last that a pass has seen, so its
            first token stands at i + 2. Rows for the prompt are not read, but for the last two.
        text: `[n + 1]`, prompt and answer.
        num_prompt_tokens: where the answer begins.
        counts: what came before.

    Example:
        >>> import torch
        >>> text = torch.tensor([7, 7, 1, 2, 3, 4, 5])
        >>> drafts = torch.tensor([[2, 3]] * 3 + [[5, 9]] * 3)
        >>> found = walk(drafts, text, 2, AcceptanceCounts())
        >>> found.rounds, found.drafted, found.tested, found.accepted
        (3, (3, 3), (3, 1), (2, 1))
    """
    root, end = num_prompt_tokens - 1, len(text)
    guesses, tokens = drafts.tolist(), text.tolist()
    while root < end - 1:
        guess = guesses[root - 1] if root else []
        said = tokens[root + 1 :]
        matches = [own == token for own, token in zip(guess, said, strict=False)]
        accepted = matches.index(False) if False in matches else len(matches)
        over = accepted == len(said)
        counts = counts.add(len(guess), accepted, accepted if over else None)
        root += accepted + 1
    return counts
