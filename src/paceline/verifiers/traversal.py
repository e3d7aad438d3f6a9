"""Traversal verification: leaves first, so that a path is judged as a whole.

Source: Weng et al. 2505.12398, algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.verifiers.leftover import Leftover


@dataclass(frozen=True, slots=True)
class TraversalVerifier:
    """Block verification on trees: the first path to a leaf is accepted whole or loses its leaf.

    The weight of the root is 1, that of a child min(1, weight P(x) / Q(x)). The first leaf is
    accepted, with its whole path, with probability equal to its weight. Otherwise it is deleted,
    and its parent's P, Q and weight become the residuals (`Leftover`). A node without children is a
    leaf. Exact. On a chain it is `block`.
    """

    name: ClassVar[str] = "traversal"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme)
    needs_chain: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = True

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        path = [_Step(draft, p, ROOT, 1.0)]
        while True:
            here, depth = path[-1], len(path) - 1
            if here.weight > 0 and (child := here.next_child()) is not None:
                path.append(_Step(draft, p, child, here.left.weight_of(child)))
            elif noise.accept(here.weight, position + depth - 1):
                token = noise.sample(here.left.law, position + depth, Purpose.TARGET)
                return Verdict(tuple(step.node for step in path[1:]), token)
            else:
                path.pop()
                path[-1].left.reject(here.node)


class _Step:
    """A node on the current path. Its law is requested when it is first needed."""

    def __init__(self, draft: Draft, p: Callable[[int], Tensor], node: int, weight: float) -> None:
        self.node = node
        self._draft, self._p, self._weight = draft, p, weight
        self._pending = iter(draft.children(node))
        self._left: Leftover | None = None

    @property
    def left(self) -> Leftover:
        if self._left is None:
            self._left = Leftover(self._draft, self._p(self.node), self._weight)
        return self._left

    @property
    def weight(self) -> float:
        return self._weight if self._left is None else self._left.weight

    def next_child(self) -> int | None:
        return next(self._pending, None)
