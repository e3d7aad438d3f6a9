"""Recursive rejection sampling, for siblings drawn without replacement.

Source: Sequoia 2402.12374, algorithm 2; RSD 2402.14160.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.drafts import Draft, Scheme, Verdict
from paceline.core.protocols import Noise
from paceline.verifiers.tree import reject_recursively


@dataclass(frozen=True, slots=True)
class RrswVerifier:
    """Recursive rejection without replacement: `tree` for siblings that all differ.

    Accepts more often than `rrs` from the same distribution. Refuses siblings drawn independently.
    """

    name: ClassVar[str] = "rrsw"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset(
        {Scheme.SINGLE, Scheme.WITHOUT_REPLACEMENT, Scheme.CHOSEN}
    )
    needs_chain: ClassVar[bool] = False

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        return reject_recursively(draft, p, noise, position)
