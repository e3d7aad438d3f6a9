"""Teacher forcing: the logits after every token of a text, in a few long passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Target, Work

ROWS = 64
"""Rows per pass. With a vocabulary of 152,000 their logits take 39 MB."""


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
