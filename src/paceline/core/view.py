"""What a drafter may use of a live target, beside the values that describe it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.core.target import SkipSet, TargetInfo


class TargetLayers(Protocol):
    """The target's own layers on one sequence, for drafters that need `Need.LAYERS`.

    A draft runs some of the layers on the last committed token and on drafted ones. It reads the
    target's own keys and values of the committed tokens; those that it makes lie after the end,
    where the next pass of the target writes over them, so that nothing of the target changes. A
    pass that scores a chain resumes rows that were run here after the layers that they have
    been through as a whole.
    """

    @property
    def num_layers(self) -> int:
        """The layers of the target."""
        ...

    def start(self, skip: SkipSet) -> None:
        """Begin at the committed tokens again, leaving out `skip`; what was run is forgotten.

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
        """The logits `[len(tokens), V]` after committed tokens, as a draft would have had them.

        `tokens` are those from the position `start` on; they see the target's own keys of the
        tokens before and what `skip` leaves of their own. Ends what was started.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TargetView:
    """The target as a drafter sees it that opens a session on one sequence.

    Args:
        info: what the target tells of itself.
        layers: its own layers on that sequence; None where it does not give `Need.LAYERS`.
        embed: from token ids `[n]` to what its embedding makes of them, `[n, hidden]`, scaled as in
            the model, without positions; None where it does not give `Need.EMBEDDING`.
        head: from states `[n, hidden]` after the final norm to logits `[n, V]`; None where it does
            not give `Need.HEAD`. Neither has gradients.

    Example:
        >>> TargetView(TargetInfo("toy", vocab_size=8)).info.vocab_size
        8
    """

    info: TargetInfo
    layers: TargetLayers | None = None
    embed: Callable[[Tensor], Tensor] | None = None
    head: Callable[[Tensor], Tensor] | None = None
