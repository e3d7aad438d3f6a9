"""Naive verification: one sample of the target per node, accepted if it is a child.

Source: SpecInfer 2305.09781, section 4.3 (naive sampling). At temperature 0 it is the greedy walk
    down a tree that Medusa (2401.10774) and EAGLE (2401.15077) use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose


@dataclass(frozen=True, slots=True)
class NaiveVerifier:
    """Draw from p at each node and go on if a child is that token; emit the first that is not.

    Exact for any draft; needs no q. It accepts a sampled draft less often than the rules that use
    q: sum p q against sum min(p, q) for one child. For children chosen deterministically no rule
    accepts more often. Takes trees of any scheme; equal siblings count as one.
    """

    name: ClassVar[str] = "naive"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme)
    needs_chain: ClassVar[bool] = False

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        return match_samples(draft, p, noise, position)


def match_samples(draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int) -> Verdict:
    """Walk down the draft along samples of the target.

    `here` holds every node that spells the tokens so far: equal siblings are merged.
    """
    here: tuple[int, ...] = (ROOT,)
    for depth in range(len(draft) + 1):
        token = noise.sample(p(here[0]), position + depth, Purpose.TARGET)
        below = tuple(
            child for node in here for child in draft.children(node) if draft.tokens[child] == token
        )
        if not below:
            break
        here = below
    return Verdict(draft.path(here[0]), token)
