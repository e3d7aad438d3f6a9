"""Recursive rejection sampling, for siblings whose laws do not strike out the ones before.

Source: SpecInfer 2305.09781, algorithm 2.
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
class RrsVerifier:
    """Recursive rejection with replacement: `tree` for siblings each tested against its own law.

    A sibling that occurs twice counts twice. Refuses siblings drawn without replacement.
    """

    name: ClassVar[str] = "rrs"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset(
        {Scheme.SINGLE, Scheme.IID, Scheme.CHOSEN, Scheme.MIXED}
    )
    needs_chain: ClassVar[bool] = False

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        return reject_recursively(draft, p, noise, position)
