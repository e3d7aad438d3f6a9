"""Teacher forcing: the logits after every token of a text, in a few long passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import prefill
from paceline.core.protocols import Target, Work
from paceline.core.view import TargetView

ROWS = 64
"""Rows per pass. With a vocabulary of 152,000 their logits take 39 MB."""


def read_states(
    target: Target, tokens: Sequence[int], hidden: Hidden
) -> tuple[HiddenStates | None, TargetView]:
    """The hidden states of a text, and the target as a drafter sees it.

    Args:
        target: a model that gives these states.
        tokens: the whole text.
        hidden: the states wanted.

    Returns:
        One row for every token but the last, which no pass has to see; None for a single token.
    """
    slot = target.open(max(1, len(tokens) - 1))
    try:
        view = target.view(slot)
        if len(tokens) < 2:
            return None, view
        (scores,) = target.score([Work(slot, tokens[:-1], logits=False, hidden=hidden)])
        return scores.hidden, view
    finally:
        target.close(slot)


def teacher_forced(
    target: Target, tokens: Sequence[int], first: int, *, rows: int = ROWS
) -> Iterator[Tensor]:
    """The logits after the tokens before each of `tokens[first:]`, in blocks `[n, V]`.

    Args:
        target: any model; its own limit of rows per pass is respected.
        tokens: the whole text.
        first: the position of the first row, at least 1.
        rows: the most rows of a block.
    """
    most = target.info.max_draft_tokens
    rows = rows if most is None else min(rows, most + 1)
    slot = target.open(len(tokens) - 1)  # the last token is only predicted
    try:
        if first > 1:
            prefill(target, slot, tokens[: first - 1])
        for start in range(first - 1, len(tokens) - 1, rows):
            root, *rest = tokens[start : min(start + rows, len(tokens) - 1)]
            draft = Draft(tuple(rest))
            (scores,) = target.score([Work(slot, [root], draft)])
            target.commit(slot, range(len(draft)))
            yield scores.logits
    finally:
        target.close(slot)
