"""What a request wants to know of a round beyond its tokens, and the laws that it is read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Verdict
from paceline.core.events import DraftRecord
from paceline.engine.request import Request
from paceline.sampling.warp import SamplingWarp


class Laws:
    """The target's law after each node, computed when a rule first asks for it."""

    def __init__(self, warp: SamplingWarp, logits: Tensor, draft: Draft, keep: bool) -> None:
        self._warp, self._logits, self._draft, self._keep = warp, logits, draft, keep
        self._laws: dict[int, Tensor] = {}
        self._processed: dict[int, Tensor] = {}

    def __call__(self, node: int) -> Tensor:
        """The law `[V]` after a node; `ROOT` is the last committed token."""
        if node not in self._laws:
            path = [self._draft.tokens[i] for i in self._draft.path(node)]
            processed = self._warp.process(self._logits[node + 1], path)
            if self._keep:
                self._processed[node] = processed
            self._laws[node] = self._warp.law_of(processed)
        return self._laws[node]

    def asked_for(self, node: int) -> Tensor | None:
        """The law after a node if a rule asked for it; a processor is not run for this."""
        return self._laws.get(node)

    def scores(self, nodes: Sequence[int]) -> Tensor:
        """The processed scores after the nodes, `[len(nodes), V]`."""
        for node in nodes:
            self(node)  # a rule need not have asked for it
        return torch.stack([self._warp.scores_of(self._processed[node]) for node in nodes])


def diagnostics(
    request: Request,
    logits: Tensor,
    laws: Laws,
    draft: Draft,
    verdict: Verdict,
    tokens: Sequence[int],
) -> dict[str, Any]:
    """The fields of the round's event that `request` asks for.

    Args:
        request: says what is wanted.
        logits: of the root and the nodes, `[1 + n, V]`.
        laws: what the rule read.
        draft, verdict: the draft and what the rule decided.
        tokens: what became final, at most the path and one more.
    """
    nodes = (ROOT, *verdict.path)[: len(tokens)]  # the parents of the tokens
    rows = [node + 1 for node in nodes]
    found: dict[str, Any] = {}
    if request.keep_logits:
        found["logits"] = logits[rows]
    if request.keep_scores:
        found["scores"] = laws.scores(nodes)
    if request.logprobs is not None:
        logprobs = logits[rows].log_softmax(dim=-1)
        found["logprobs"] = tuple(
            float(row[token]) for row, token in zip(logprobs, tokens, strict=True)
        )
        values, ids = logprobs.topk(request.logprobs, dim=-1)
        found["top_logprobs"] = tuple(
            tuple(zip(row_ids, row, strict=True))
            for row_ids, row in zip(ids.tolist(), values.tolist(), strict=True)
        )
    if request.keep_draft:
        found["draft"] = record(draft, verdict, laws)
    return found


def record(draft: Draft, verdict: Verdict, laws: Laws) -> DraftRecord:
    """The draft with what the rule saw of it, and what it decided."""
    assert draft.parents is not None
    return DraftRecord(
        tokens=draft.tokens,
        parents=draft.parents,
        path=tuple(verdict.path),
        token=verdict.token,
        p=tuple(
            _probability(laws.asked_for(parent), token)
            for token, parent in zip(draft.tokens, draft.parents, strict=True)
        ),
        q=tuple(_probability(draft.law(node), token) for node, token in enumerate(draft.tokens)),
    )


def _probability(law: Tensor | None, token: int) -> float | None:
    # In float32 a probability may round to a little above 1.
    return None if law is None else min(float(law[token]), 1.0)
