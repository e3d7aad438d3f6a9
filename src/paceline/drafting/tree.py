"""A draft tree as it grows, level by level, and the rules by which it grows.

A rule says which new nodes get children, and how many, *before* these are drawn. What it looks at
are laws and the tokens above. So every token that is drawn is submitted, as exactness demands; only
tokens that were chosen without chance are pruned at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme
from paceline.drafting.tree_growth import allocate, best, level_width
from paceline.drafting.tree_shape import TreeShape
from paceline.sampling.siblings import Siblings


class DraftTree:
    """The nodes so far, in draw order: level by level, siblings together.

    Attributes:
        tokens, parents: as in `Draft`.
        laws: the law q that drew each token; None for a point mass.
        beliefs: the probability of each token, as the draft model has it; of chosen siblings at
            most that of the one before.
        scores: the product of the beliefs along the path.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.laws: list[Tensor | None] = []
        self.beliefs: list[float] = []
        self.scores: list[float] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, siblings: Siblings, belief: Tensor) -> list[int]:
        """Append the children of a node; returns their places.

        Args:
            parent: their parent.
            siblings: as they were drawn.
            belief: the probability of every token, `[V]`.
        """
        first, most = len(self), 1.0
        for token, law in zip(siblings.tokens, siblings.probs, strict=True):
            own = float(belief[token])
            if siblings.scheme is Scheme.CHOSEN:
                # One that the sampling options ban may be more probable than those chosen before
                # it, but it will not be accepted.
                own = most = min(own, most)
            self.tokens.append(token)
            self.parents.append(parent)
            self.laws.append(law)
            self.beliefs.append(own)
            self.scores.append(self.score(parent) * self.beliefs[-1])
        return list(range(first, len(self)))

    def score(self, node: int) -> float:
        """The probability of the path to a node; 1 for the root."""
        return 1.0 if node == ROOT else self.scores[node]

    def is_repeat(self, node: int) -> bool:
        """Whether a sibling before it, of independent ones, is the same token.

        It can never be accepted once the first was rejected, so it needs no children.
        """
        return any(
            self.tokens[other] == self.tokens[node] and self.parents[other] == self.parents[node]
            for other in range(node)
        )

    def path(self, node: int) -> list[int]:
        """The nodes from the first level to `node`; empty for the root."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """The tokens on the way to a node, its own included."""
        return [self.tokens[i] for i in self.path(node)]

    def confidence(self, node: int) -> list[float]:
        """The beliefs on the way to a node, its own included."""
        return [self.beliefs[i] for i in self.path(node)]

    def above(self, nodes: Sequence[int]) -> tuple[list[int], Draft, list[int]]:
        """What a draft model has to be fed to know what follows `nodes`.

        Returns:
            The tokens of the path that all of `nodes` lie on or below; the tree below it that
            leads to them; and the places of `nodes` in that tree, `ROOT` for the end of the path.
        """
        paths = [self.path(node) for node in nodes]
        shared = [
            level[0] for level in zip(*paths, strict=False) if all(i == level[0] for i in level)
        ]
        kept = sorted({i for path in paths for i in path[len(shared) :]})
        place = {node: number for number, node in enumerate(kept)}
        place[shared[-1] if shared else ROOT] = ROOT
        part = Draft(
            tuple(self.tokens[i] for i in kept), tuple(place[self.parents[i]] for i in kept)
        )
        return [self.tokens[i] for i in shared], part, [place[node] for node in nodes]

    def draft(self, kept: Sequence[int], scheme: Scheme) -> Draft:
        """The nodes `kept`, in rising order with the parent of each, as a draft."""
        place = {node: number for number, node in enumerate(kept)} | {ROOT: ROOT}
        laws = tuple(self.laws[i] for i in kept)
        return Draft(
            tuple(self.tokens[i] for i in kept),
            parents=tuple(place[self.parents[i]] for i in kept),
            probs=None if all(law is None for law in laws) else laws,
            scheme=scheme,
            confidence=tuple(self.beliefs[i] for i in kept),
        )


class Growth(Protocol):
    """A rule by which a tree grows."""

    def frontier(self, tree: DraftTree, new: Sequence[int]) -> list[int]:
        """Which of the new nodes, one level, may get children."""
        ...

    def counts(
        self, tree: DraftTree, nodes: Sequence[int], beliefs: Sequence[Tensor], levels: int
    ) -> list[int]:
        """How many children each of `nodes` gets.

        Args:
            tree: so far.
            nodes: a frontier.
            beliefs: the probability `[V]` of every next token at each.
            levels: how many levels may follow, this one included.
        """
        ...

    def kept(self, tree: DraftTree) -> list[int]:
        """The nodes to submit; all of them where any was drawn by chance."""
        ...


class ShapedGrowth:
    """A shape that is known from the start.

    Args:
        shape: within the budget.
    """

    def __init__(self, shape: TreeShape) -> None:
        self._shape = shape
        self._places = {ROOT: ROOT}

    def frontier(self, tree: DraftTree, new: Sequence[int]) -> list[int]:
        """See `Growth.frontier`."""
        drawn: dict[int, int] = {}
        for node in new:
            parent = tree.parents[node]
            rank = drawn.get(parent, 0)
            drawn[parent] = rank + 1
            self._places[node] = self._shape.children(self._places[parent])[rank]
        return [node for node in new if self._shape.children(self._places[node])]

    def counts(
        self, tree: DraftTree, nodes: Sequence[int], beliefs: Sequence[Tensor], levels: int
    ) -> list[int]:
        """See `Growth.counts`."""
        return [len(self._shape.children(self._places[node])) for node in nodes]

    def kept(self, tree: DraftTree) -> list[int]:
        """See `Growth.kept`."""
        return list(range(len(tree)))


class BestFirstGrowth:
    """EAGLE-2: expand the most probable nodes of each level, keep the best of all.

    For children that are chosen without chance: what is pruned is no sample.

    Args:
        top_k: children of a node that is expanded.
        max_nodes: nodes that are submitted.
        width: nodes that are expanded on a level.
    """

    def __init__(self, top_k: int, max_nodes: int, width: int) -> None:
        self._top_k, self._max_nodes, self._width = top_k, max_nodes, width

    def frontier(self, tree: DraftTree, new: Sequence[int]) -> list[int]:
        """See `Growth.frontier`."""
        # A node that would be pruned now stays pruned: nodes are only added.
        kept = set(self.kept(tree))
        new = [node for node in new if node in kept]
        return [new[place] for place in best([tree.scores[node] for node in new], self._width)]

    def counts(
        self, tree: DraftTree, nodes: Sequence[int], beliefs: Sequence[Tensor], levels: int
    ) -> list[int]:
        """See `Growth.counts`."""
        return [min(self._top_k, self._max_nodes)] * len(nodes)

    def kept(self, tree: DraftTree) -> list[int]:
        """See `Growth.kept`. Scores fall along a path, so a node is kept with its ancestors."""
        return best(tree.scores, self._max_nodes)


class ForesightGrowth:
    """The dynamic shape for children that are drawn: nothing is drawn that is not submitted.

    Each level gets an even share of the nodes that are left, at most `top_k`, and they go to the
    parents whose next draws promise most (`math.tree_growth.allocate`).

    Args:
        top_k: the most nodes of a level.
        max_nodes: the nodes in all.
        width: the most nodes of a level that get children.
    """

    def __init__(self, top_k: int, max_nodes: int, width: int) -> None:
        self._top_k, self._max_nodes, self._width = top_k, max_nodes, width

    def frontier(self, tree: DraftTree, new: Sequence[int]) -> list[int]:
        """See `Growth.frontier`."""
        new = [node for node in new if not tree.is_repeat(node)]
        return [new[place] for place in best([tree.scores[node] for node in new], self._width)]

    def counts(
        self, tree: DraftTree, nodes: Sequence[int], beliefs: Sequence[Tensor], levels: int
    ) -> list[int]:
        """See `Growth.counts`."""
        width = level_width(self._max_nodes - len(tree), levels, self._top_k)
        rows = [belief.topk(min(max(width, 1), len(belief))).values.tolist() for belief in beliefs]
        return allocate([tree.score(node) for node in nodes], rows, width)

    def kept(self, tree: DraftTree) -> list[int]:
        """See `Growth.kept`."""
        return list(range(len(tree)))
