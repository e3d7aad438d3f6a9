"""Coupling: the same seed gives the same tokens whatever the drafter.

Source: Daliri, Musco, Suresh 2408.07978, algorithm 2 (drafter-invariant speculative decoding).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise


@dataclass(frozen=True, slots=True)
class CouplingVerifier:
    """The target's token at each position is argmin E_v / p(v), with E keyed by (seed, position).

    A draft token is accepted while it equals the target's; the first target token that differs is
    emitted. The output is a function of target and seed alone, so it is exact for every drafter,
    needs no q, and is the same without a drafter. Takes trees of any scheme.
    """

    name: ClassVar[str] = "coupling"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = True
    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme)
    needs_chain: ClassVar[bool] = False

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        accepted: list[int] = []
        node = ROOT
        while True:
            token = noise.race(p(node), position + len(accepted))
            match = next((c for c in draft.children(node) if draft.tokens[c] == token), None)
            if match is None:
                return Verdict(tuple(accepted), token)
            accepted.append(match)
            node = match
