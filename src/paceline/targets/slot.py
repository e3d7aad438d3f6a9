"""One sequence's place in a cached target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.hidden import Hidden
from paceline.targets.attention import Resume
from paceline.targets.state.protocol import State
from paceline.targets.text_head import TextHead


@dataclass(slots=True, eq=False)
class Ahead:
    """Tokens after the end of a slot, the root first, that have been through some layers.

    Args:
        layer: the first layer that was not run as a whole.
        tokens: their ids.
        states: `[n, hidden]` each; concatenated, the input of `layer`, one row per token.
    """

    layer: int
    tokens: list[int] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    def resume(
        self, tokens: Sequence[int], draft: Draft, hidden: Hidden | None = None
    ) -> Resume | None:
        """What a pass over a chain need not run again; None if it has to run everything.

        It has to if the state that enters one of the earlier layers is wanted.
        """
        if hidden is not None and any(layer < self.layer for layer in hidden.layers):
            return None
        right = 0
        for ran, token in zip(self.tokens, (*tokens, *draft.tokens), strict=False):
            if ran != token:
                break
            right += 1
        if not right or not self.layer:
            return None
        return Resume(self.layer, torch.cat(self.states)[:right])


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence's place: its state, and what was put after its end.

    Args:
        capacity: the most tokens.
        state: what the model keeps of it.
        scored: the committed tokens and the draft of the last `score`, whose rows are pending.
        ahead: what a drafter has run through the target's layers since.
        head: the tokens of the text that a cut head lacks; None if the head is whole.
        text: the committed tokens, to run again where a state falls short.
        prefixes: the names of the chunks of its text that it shares with others, see
            `prefixes.PrefixStore`.
    """

    capacity: int
    state: State
    scored: tuple[Sequence[int], Draft] | None = None
    ahead: Ahead | None = None
    head: TextHead | None = None
    text: list[int] = field(default_factory=list)
    prefixes: list[bytes] = field(default_factory=list)

    def append(self, tokens: Sequence[int]) -> None:
        """Record tokens that were committed."""
        self.text += tokens
        if self.head is not None:
            self.head.append(tokens)

    def cut(self, length: int) -> None:
        """Record that the tokens from `length` on are forgotten."""
        del self.text[length:]
        self.prefixes.clear()
        if self.head is not None:
            self.head.cut(length)

    def forget(self) -> None:
        """Drop the record of everything after the end."""
        self.scored = self.ahead = None
