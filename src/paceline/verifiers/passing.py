"""What rules share that let a token pass by a test of their own: the longest path that passes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise
from paceline.sampling.candidates import Blocks


class PassingVerifier:
    """NOT EXACT. Accept the longest path all of whose tokens pass, and emit a token after it.

    A rule is a subclass that says which tokens pass. It takes trees of any scheme.
    """

    __slots__ = ()

    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme)
    needs_chain: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = True

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        path = longest_passing_path(draft, p, self.passing)
        law = p(path[-1] if path else ROOT)
        return Verdict(path, self.following(law, noise, position + len(path)))

    @abstractmethod
    def passing(self, law: Tensor) -> Callable[[int], bool]:
        """The test for a token, given the target's distribution after its parent."""

    def following(self, law: Tensor, noise: Noise, position: int) -> int:
        """The token after the path: the most probable one, which uses no noise."""
        return Blocks(law).argmax()


def longest_passing_path(
    draft: Draft,
    p: Callable[[int], Tensor],
    passing: Callable[[Tensor], Callable[[int], bool]],
) -> tuple[int, ...]:
    """The longest path all of whose tokens pass under the law after their parent.

    Ties go to the largest product of p, then to the first path.

    Args:
        draft, p: as in `protocols.Verifier.verify`.
        passing: from a law to its test for tokens; a token without mass fails.
    """
    assert draft.parents is not None
    best: tuple[int, float, int] = (0, 0.0, ROOT)
    reached: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}
    tests: dict[int, Callable[[int], bool]] = {}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent not in reached:
            continue
        law = p(parent)
        if parent not in tests:
            tests[parent] = passing(law)
        if (mass := float(law[token])) > 0 and tests[parent](token):
            depth, score = reached[parent]
            reached[node] = depth + 1, score + math.log(mass)
            if reached[node] > best[:2]:
                best = *reached[node], node
    return draft.path(best[2])
