"""The methods that are worth trying, the most promising first."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.generate.drafts import LEAVES
from paceline.workbench.workload import Item
from paceline.workbench.workload.methods import DraftSource, HeadSource, Method, parse_methods

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

WITH_HEAD = ("head,k=auto", "ngram+head,k=auto", "head,k=3", "ngram+head,k=3")

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
    items: Sequence[Item],
    draft: DraftSource | None,
    *,
    head: HeadSource | None = None,
    layer_skip: bool = False,
) -> list[Method]:
    """Every method to try, plain decoding first and the most promising next.

    Args:
        items: the prompts; a drafter that needs references or a prediction is tried if each of them
            has one.
        draft: the draft model, if there is one.
        head: the draft head, if there is one.
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
    first: list[str] = []
    rest: list[str] = []
    for is_there, own in ((head is not None, WITH_HEAD), (draft is not None, WITH_DRAFT_MODEL)):
        if is_there:
            half = len(own) // 2
            first, rest = [*first, *own[:half]], [*rest, *own[half:]]
    # N-grams come among the first also there: the draft model or head may be too slow.
    texts = [*brought, *first, ALONE[0], *rest, *ALONE[1:]]
    if layer_skip:
        texts.append("layer-skip,k=auto")
    return parse_methods(texts, draft, head=head, prompts_bring=True)
