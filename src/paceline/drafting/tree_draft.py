"""A tree drawn level by level, from whatever gives the logits after its nodes.

A draft model and a draft head differ only in how they get those logits: what is drawn, when, and
from which law is the same, and it is here.

Sources: SpecInfer (2305.09781) and RSD (2402.14160) for sampled trees, EAGLE-2 (2406.16858) for
chosen ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme
from paceline.core.protocols import Noise, Steps, Warp
from paceline.drafting.model import Stop
from paceline.drafting.tree import DraftTree, Growth
from paceline.errors import NoTokenLeft
from paceline.sampling.siblings import Siblings, draw_siblings, most_probable

Follow = Callable[[DraftTree, Sequence[int]], Steps[Sequence[Tensor]]]
"""From the tree so far and some nodes of its last level to the logits `[V]` after each node."""


def draw_tree(
    start: Callable[[], Steps[Tensor]],
    follow: Follow,
    *,
    growth: Growth,
    depth: int,
    scheme: Scheme,
    position: int,
    warp: Warp,
    noise: Noise,
    stop: Stop,
    min_first_confidence: float = 0.0,
) -> Steps[Draft]:
    """Draw a tree, level by level, the children of each node from the law that goes with them.

    Which nodes get children, and how many, never depends on a token that was drawn there (rule 2 of
    `protocols`). At temperature 0 children are chosen, and the beliefs that `growth` and `stop`
    look at are the softmax of the logits.

    Args:
        start: the logits `[V]` after the committed tokens.
        follow: see `Follow`; not asked after the last level.
        growth: which nodes get children.
        depth: the maximum number of levels, at least 1.
        scheme: how children are drawn; `CHOSEN` if `warp` is greedy.
        position: of the first level, absolute.
        warp, noise: see `protocols.DraftSession.propose`.
        stop: when to end a branch early.
        min_first_confidence: see `Budget`; applies to chosen children.
    """
    tree, nodes = DraftTree(), [ROOT]
    rows: Sequence[Tensor] = [(yield from start())]
    for level in range(depth):
        known = [
            (node, _Belief(warp, row, tree.path_tokens(node)))
            for node, row in zip(nodes, rows, strict=True)
        ]
        known = [item for item in known if item[1].law is not None]
        known = [item for item in known if not stop.before(item[1].belief)]
        counts = growth.counts(
            tree, [node for node, _ in known], [b.belief for _, b in known], depth - level
        )
        new: list[int] = []
        for (node, belief), count in zip(known, counts, strict=True):
            if count:
                siblings = belief.children(count, scheme, noise, position + level)
                new += tree.add(node, siblings, belief.belief)
        if scheme is Scheme.CHOSEN and max(tree.beliefs, default=0.0) < min_first_confidence:
            return Draft()
        nodes = [n for n in growth.frontier(tree, new) if not stop.after(tree.confidence(n))]
        if not nodes or level + 1 == depth:
            break
        rows = yield from follow(tree, nodes)
    return tree.draft(growth.kept(tree), scheme)


class _Belief:
    """What is taken to follow a node.

    Attributes:
        law: q; None where the sampling options leave the drafter nothing to say.
        belief: the probability of every token: q, or greedily the softmax of the logits.
    """

    def __init__(self, warp: Warp, logits: Tensor, path: Sequence[int]) -> None:
        try:
            self.law: Tensor | None = warp.law(logits, path)
        except NoTokenLeft:
            self.law = None
        self._is_greedy = warp.is_greedy
        self.belief = logits if self.law is None else self.law
        if self._is_greedy:
            self.belief = logits.softmax(dim=-1)

    def children(self, count: int, scheme: Scheme, noise: Noise, position: int) -> Siblings:
        """The children of the node."""
        assert self.law is not None
        if not self._is_greedy:
            return draw_siblings(self.law, count, scheme, noise, position)
        # The sampling options may ban the most probable tokens: the law knows what is left.
        first = most_probable(self.law, 1)
        others = [token for token in most_probable(self.belief, count) if token not in first]
        tokens = (*first, *others)[:count]
        return Siblings(tokens, (None,) * len(tokens), scheme)
