"""The rounds of a drafter along captured answers, as decoding to their length makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.economics.stats import AcceptanceCounts
from paceline.train.objective import walk
from paceline.train.store import Captured


def of_decoding(trained: Any, texts: Sequence[Captured]) -> AcceptanceCounts:
    """As `replay`, but the last token is never drafted: the target gives it in any case."""
    counts = AcceptanceCounts()
    for one in texts:
        drafts = trained.drafts(one)
        offset = len(one.tokens) - 1 - len(drafts)
        text = one.tokens[offset:]
        places = torch.arange(len(drafts))[:, None] + 2 + torch.arange(drafts.shape[1])
        possible = drafts.masked_fill(places >= len(text) - 1, -1)
        counts = walk(possible, text, one.num_prompt_tokens - offset, counts)
    return counts
