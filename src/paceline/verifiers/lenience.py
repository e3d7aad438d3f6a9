"""Lenient verification: speculative sampling that tests against a scaled-down draft probability.

Source: Leviathan et al. 2211.17192, appendix A.5. Lossy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.checks import require_finite
from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.errors import InvalidInput
from paceline.verifiers.token import acceptance_probability, residual


@dataclass(frozen=True, slots=True)
class LenienceVerifier:
    """NOT EXACT. Accept draft token x with probability min(1, p(x) / (lenience q(x))).

    A rejected token is replaced as in `token`. No token is emitted with probability above p(x) /
    lenience. The acceptance rate is sum min(p / lenience, q). At temperature 0 the answer is
    greedy. Takes chains.

    Args:
        lenience: above 0, at most 1; at 1 the rule is `token`.
    """

    lenience: float = 0.5

    name: ClassVar[str] = "lenience"
    exact: ClassVar[bool] = False
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset({Scheme.SINGLE})
    needs_chain: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_finite(self, "lenience", self.lenience, low=0.0, high=1.0)
        if self.lenience == 0:
            raise InvalidInput("lenience must be above 0; at 0 every draft would be accepted")

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        accepted: list[int] = []
        for node, token in enumerate(draft.tokens):
            target, law = p(node - 1 if node else ROOT), draft.law(node)
            at = position + node
            strict = acceptance_probability(target, law, token)
            if not noise.accept(strict / self.lenience, at):
                correction = noise.sample(residual(target, law, token), at, Purpose.TARGET)
                return Verdict(tuple(accepted), correction)
            accepted.append(node)
        bonus = noise.sample(
            p(accepted[-1] if accepted else ROOT), position + len(accepted), Purpose.TARGET
        )
        return Verdict(tuple(accepted), bonus)
