"""Honest drafts of any shape and scheme, for enumeration: which tokens, drawn from which laws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme
from paceline.core.protocols import Noise
from paceline.sampling.siblings import draw_siblings
from tests.rounds import Drafting, Law, Tokens

Shape = tuple[int, ...]
"""The parent of each node, as in `Draft.parents`; the children of one node are neighbours."""

CHAINS: dict[str, Shape] = {f"chain of {n}": tuple(range(-1, n - 1)) for n in (1, 2, 3, 4)}
TREES: dict[str, Shape] = {
    "two children": (-1, -1),
    "three children": (-1, -1, -1),
    "a child under the second": (-1, -1, 1),
    "pairs below the first": (-1, -1, 0, 0),
    "two and one below": (-1, -1, 0, 0, 1),
    "pairs on three levels": (-1, -1, 0, 0, 2, 2),
    "two pairs below": (-1, -1, 0, 0, 1, 1),
}
EMPTY: dict[str, Shape] = {"nothing": ()}


def tree(q: Law, shape: Shape, scheme: Scheme) -> Drafting:
    """Draws the children of every node from q behind its path, under the scheme.

    Where the law has fewer tokens than the shape has children, those and what is below are left
    out.
    """

    def draft(noise: Noise) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        laws: list[Tensor | None] = []
        paths: dict[int, Tokens] = {ROOT: ()}
        place = {ROOT: ROOT}  # from the node of the shape to that of the draft
        for parent in dict.fromkeys(shape):
            if parent not in place:
                continue
            wanted = [node for node, above in enumerate(shape) if above == parent]
            path = paths[parent]
            drawn = draw_siblings(q(path), len(wanted), scheme, noise, len(path))
            for node, token, law in zip(wanted, drawn.tokens, drawn.probs, strict=False):
                place[node], paths[node] = len(tokens), (*path, token)
                tokens.append(token)
                parents.append(place[parent])
                laws.append(law)
        return Draft(tuple(tokens), tuple(parents), tuple(laws), scheme)

    return draft


def table(seed: int, depth: int, vocab: int, zeros: float = 0.0) -> Law:
    """Laws by position and by the token before, with zeros and one-hots among them."""
    generator = torch.Generator().manual_seed(seed)
    size = depth, vocab, vocab
    weights = torch.rand(size, generator=generator, dtype=torch.float64) + 0.02
    weights *= torch.rand(size, generator=generator) >= zeros
    weights[..., seed % vocab] += weights.sum(dim=-1) == 0
    laws = weights / weights.sum(dim=-1, keepdim=True)

    def law(tokens: Sequence[int]) -> Tensor:
        return laws[len(tokens), tokens[-1] if tokens else 0]

    return law


def levels(shape: Shape) -> int:
    """The number of tokens on the longest path."""
    return Draft((0,) * len(shape), shape).max_path_length
