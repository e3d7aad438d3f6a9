"""A draft tree that grows level by level, and the rules for its growth.

A rule decides which new nodes get children, and how many, *before* these are drawn. It looks only
at laws and at the tokens above. So every token that is drawn is submitted, as exactness requires;
only tokens that were chosen deterministically are pruned at the end.
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
        beliefs: the draft model's probability of each token; for chosen siblings at most that of
            the previous one.
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
        """Append the children of a node; returns their indices.

        Args:
            parent: their parent.
            siblings: the children, as drawn.
            belief: the draft model's probabilities, `[V]`.
        """
        first, most = len(self), 1.0
        for token, law in zip(siblings.tokens, siblings.probs, strict=True):
            own = float(belief[token])
            if siblings.scheme is Scheme.CHOSEN:
                # A token that the sampling options ban may be more probable than those chosen
                # before it, but it will not be accepted.
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
        """Whether an earlier independently drawn sibling is the same token.

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
        """The tokens on the path to a node, including its own."""
        return [self.tokens[i] for i in self.path(node)]

    def confidence(self, node: int) -> list[float]:
        """The beliefs on the path to a node, including its own."""
        return [self.beliefs[i] for i in self.path(node)]

    def above(self, nodes: Sequence[int]) -> tuple[list[int], Draft, list[int]]:
        """What to feed to a draft model to know what follows `nodes`.

        Returns:
            The tokens of the path that all of `nodes` are on or below; the tree below it that leads
            to them; and the indices of `nodes` in that tree, `ROOT` for the end of the path.
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
        """The nodes `kept`, in ascending order with the parent of each, as a draft."""
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
    """A rule for the growth of a tree."""

    def frontier(self, tree: DraftTree, new: Sequence[int]) -> list[int]:
        """Which of the new nodes (one level) may get children."""
        ...

    def counts(
        self, tree: DraftTree, nodes: Sequence[int], beliefs: Sequence[Tensor], levels: int
    ) -> list[int]:
        """How many children each of `nodes` gets.

        Args:
            tree: the tree so far.
            nodes: a frontier.
            beliefs: the probabilities `[V]` of the next token at each.
            levels: how many levels may follow, including this one.
        """
        ...

    def kept(self, tree: DraftTree) -> list[int]:
        """The nodes to submit; all of them if any was drawn at random."""
        ...


class ShapedGrowth:
    """A shape that is fixed from the start.

    Args:
        shape: the shape, within the budget.
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
    """EAGLE-2: expand the most probable nodes of each level, keep the best overall.

    For children that are chosen deterministically: what is pruned is not a sample.

    Args:
        top_k: the number of children of an expanded node.
        max_nodes: the number of nodes that are submitted.
        width: the number of nodes that are expanded on a level.
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
    """The dynamic shape for sampled children: everything that is drawn is submitted.

    Each level gets an equal share of the nodes that are left, at most `top_k`, and they go to the
    parents with the most promising next draws (`tree_growth.allocate`).

    Args:
        top_k: the maximum number of nodes of a level.
        max_nodes: the total number of nodes.
        width: the maximum number of nodes of a level that get children.
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


class BeamGrowth:
    """Beam search: of all continuations of the beams the most probable ones are the next beams.

    For children that are chosen deterministically: beams that died are not submitted, apart from
    what the living ones share with them. A beam that was ended early lives.

    Source: ReDrafter (2403.09919), section 3.2.

    Args:
        width: the number of beams.
        max_nodes: the number of nodes that are submitted: the most probable beams that fit.
    """

    def __init__(self, width: int, max_nodes: int) -> None:
        self._width, self._max_nodes = width, max_nodes
        self._dead: set[int] = set()

    def frontier(self, tree: DraftTree, new: Sequence[int]) -> list[int]:
        """See `Growth.frontier`."""
        return list(new)

    def counts(
        self, tree: DraftTree, nodes: Sequence[int], beliefs: Sequence[Tensor], levels: int
    ) -> list[int]:
        """See `Growth.counts`."""
        rows = [belief.topk(min(self._width, len(belief))).values.tolist() for belief in beliefs]
        counts = allocate([tree.score(node) for node in nodes], rows, self._width)
        if any(counts):
            self._dead |= {node for node, count in zip(nodes, counts, strict=True) if not count}
        return counts

    def kept(self, tree: DraftTree) -> list[int]:
        """See `Growth.kept`."""
        ends = set(range(len(tree))) - set(tree.parents) - self._dead
        kept: set[int] = set()
        for end in sorted(ends, key=lambda node: (-tree.scores[node], node)):
            path = tree.path(end)[: self._max_nodes]
            if len(kept | {*path}) <= self._max_nodes:
                kept |= {*path}
        return sorted(kept)
