"""The methods that are worth trying, the most promising first."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.generate.drafts import LEAVES
from paceline.workbench.workload import Item
from paceline.workbench.workload.methods import DraftSource, Method, parse_methods

TREE = ",".join(["tree", *(f"{name}={value}" for name, value in LEAVES.items())])
"""One path with leaves beside it: the tree shape that gains most with a small draft model."""

WITH_DRAFT_MODEL = (
    f"{TREE},k=auto",
    "model,k=auto",
    "ngram+model,k=auto",
    f"{TREE},k=5",
    "model,k=5",
    "ngram+model,k=5",
)

ALONE = (
    "ngram,k=auto",
    "suffix,k=auto",
    "recycling,k=auto",
    "ngram+recycling,k=auto",
    "ngram,k=5",
    "recycling,k=6",
    "ngram+recycling,k=6",
    'hybrid,drafters=["ngram","recycling"],k=6',
    "lookahead,k=auto",
    "suffix,k=8",
    "lookahead,k=4",
    "jacobi,k=auto",
)

BROUGHT = {"references": "reference", "prediction": "predicted-output"}
"""Settings that may come with a prompt, and the drafter that requires each."""


def candidates(
    items: Sequence[Item], draft: DraftSource | None, *, layer_skip: bool = False
) -> list[Method]:
    """Every method to try, plain decoding first and the most promising next.

    Args:
        items: the prompts; a drafter that needs references or a prediction is tried if each of them
            has one.
        draft: the draft model, if there is one.
        layer_skip: whether layers were tuned for the target, without which it never pays.

    Example:
        >>> [method.name for method in candidates([], None)][:2]
        ['none', 'ngram,k=auto']
    """
    brought = [
        f"{drafter},k=auto"
        for what, drafter in BROUGHT.items()
        if items and all(what in item.drafting for item in items)
    ]
    texts = [*brought, *ALONE]
    if draft is not None:
        # N-grams are among the first six here too, because the draft model may be too slow.
        first, rest = WITH_DRAFT_MODEL[:3], WITH_DRAFT_MODEL[3:]
        texts = [*brought, *first, ALONE[0], *rest, *ALONE[1:]]
    if layer_skip:
        texts.append("layer-skip,k=auto")
    return parse_methods(texts, draft, prompts_bring=True)
