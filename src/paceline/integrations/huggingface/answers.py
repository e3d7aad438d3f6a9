"""The results of a call: a fold over the engine's events, by row and by column."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from paceline.core.events import Event, Finished, FinishReason, Round
from paceline.core.target import TargetInfo

log = logging.getLogger("paceline")


class Answers:
    """The answers of all rows so far, passed to a streamer column by column.

    Args:
        ids: the padded prompts `[B, n]`.
        pad: fills the rows that end before others; None if there is only one row.
        streamer: takes `put` for the prompts, for each column of tokens `[B]`, and then `end`.
    """

    def __init__(self, ids: Tensor, pad: int | None, streamer: Any = None) -> None:
        self._ids, self._pad, self._streamer = ids, pad, streamer
        self.tokens: list[list[int]] = [[] for _ in ids]
        self.reasons: list[FinishReason | None] = [None for _ in ids]
        self._tensors: dict[str, list[list[Tensor]]] = {
            name: [[] for _ in ids] for name in ("logits", "scores")
        }
        self._streamed = 0

    def take(self, event: Event) -> None:
        """Take in an event."""
        if isinstance(event, Round):
            self.tokens[event.id] += event.tokens
            for name, rows in self._tensors.items():
                if (tensor := getattr(event, name)) is not None:
                    rows[event.id] += tensor.unbind()
        elif isinstance(event, Finished):
            self.reasons[event.id] = event.reason
        if self._streamer is not None:
            self._stream()

    def sequences(self) -> Tensor:
        """Prompts and answers `[B, n + longest answer]`, padded on the right."""
        longest = max(len(row) for row in self.tokens)
        answers = [self._column_of(row) for row in range(longest)]
        return torch.cat([self._ids, torch.stack(answers, dim=1).to(self._ids.device)], dim=1)

    def columns(self, name: str) -> tuple[Tensor, ...]:
        """The "logits" or the "scores" of each column, `[B, V]`, float32."""
        longest = max(len(row) for row in self.tokens)
        rows = self._tensors[name]
        ended = _certain(self._pad, rows[0][0])
        return tuple(
            torch.stack([row[n] if n < len(row) else ended for row in rows]).to(
                self._ids.device, torch.float32
            )
            for n in range(longest)
        )

    def warn_of_context(self, info: TargetInfo, max_tokens: int | None) -> None:
        """Warn if the context ended an answer before the requested length."""
        short = [
            len(row)
            for row, reason in zip(self.tokens, self.reasons, strict=True)
            if reason is FinishReason.LENGTH and len(row) != max_tokens
        ]
        if short:
            log.warning(
                "%s takes %d tokens, prompt and answer together; the answer ends there, after %d",
                info.name,
                info.max_length,
                min(short),
            )

    def _column_of(self, number: int) -> Tensor:
        tokens = [row[number] if number < len(row) else self._pad for row in self.tokens]
        return torch.tensor(tokens, dtype=self._ids.dtype)

    def _stream(self) -> None:
        """Pass on the complete columns: every row has its token or has ended."""
        lengths = [len(row) for row in self.tokens]
        going = [n for n, reason in zip(lengths, self.reasons, strict=True) if reason is None]
        complete = min(going, default=max(lengths))
        for number in range(self._streamed, complete):
            self._streamer.put(self._column_of(number))
        self._streamed = max(self._streamed, complete)


def _certain(token: int | None, like: Tensor) -> Tensor:
    """Scores `[V]` under which the token is certain, so that its log-probability is 0."""
    scores = torch.full_like(like, -torch.inf)
    if token is not None and token < len(scores):
        scores[token] = 0
    return scores
