"""What a drafter may use of a live target, in addition to the values that describe it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.core.target import SkipSet, TargetInfo


class TargetLayers(Protocol):
    """The target's own layers on one sequence, for drafters that need `Need.LAYERS`.

    A draft runs some of the layers on the last committed token and on drafted ones. It reads the
    target's own keys and values of the committed tokens. Those that it computes are written after
    the end of the cache, where the target's next pass overwrites them, so the target's state does
    not change. A pass that scores a chain reuses rows that were run here: it resumes each after the
    leading layers that were run in full.
    """

    @property
    def num_layers(self) -> int:
        """The layers of the target."""
        ...

    def start(self, skip: SkipSet) -> None:
        """Start again at the committed tokens, skipping `skip`; what was run before is discarded.

        Raises:
            InvalidInput: `skip` names a layer that the target does not have.
        """
        ...

    def run(self, tokens: Sequence[int]) -> Tensor:
        """Append tokens; the logits `[V]` after the last, laid out as in `Scores`.

        The first token after a `start` is the last committed one, which is not cached yet.
        """
        ...

    def replay(self, start: int, tokens: Sequence[int], skip: SkipSet) -> Tensor:
        """The logits `[len(tokens), V]` that a draft would have computed after committed tokens.

        `tokens` are those from position `start` on. They see the target's own keys of the tokens
        before, and of themselves what the layers left by `skip` compute. Discards what was started.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TargetView:
    """The target as seen by a drafter that opens a session on one sequence.

    Args:
        info: what the target reports about itself.
        layers: its own layers on that sequence; None if it does not give `Need.LAYERS`.
        embed: from token ids `[n]` to their embeddings `[n, hidden]`, scaled as in the model,
            without positions; None if it does not give `Need.EMBEDDING`.
        head: from states `[n, hidden]` after the final norm to logits `[n, V]`; None if it does not
            give `Need.HEAD`. Neither function has gradients.

    Example:
        >>> TargetView(TargetInfo("toy", vocab_size=8)).info.vocab_size
        8
    """

    info: TargetInfo
    layers: TargetLayers | None = None
    embed: Callable[[Tensor], Tensor] | None = None
    head: Callable[[Tensor], Tensor] | None = None
