"""Block verification: the draft is accepted as far as a joint test of its tokens allows.

Source: Sun et al. 2403.10444, algorithm 2. The rule of Hierarchical Speculative Decoding
(2601.05724, with its capped ratios) has the same weights and residuals: it is this rule.
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
class BlockVerifier:
    """Accept the longest prefix that passes; later tokens can make up for an unlikely one.

    With p_0 = 1 and p_i = min(1, p_{i-1} p(x_i) / q(x_i)), the prefix of length i passes with
    probability h_i = A_i / (A_i + 1 - p_i), A_i = sum max(p_i p - q, 0), and h_gamma = p_gamma; the
    longest one that passes is accepted, and the next token is drawn from norm(max(p_i p - q, 0)).
    Exact. On average it never accepts fewer tokens than `token`, and equally many for one draft
    token and for point masses. Takes chains.
    """

    name: ClassVar[str] = "block"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset({Scheme.SINGLE})
    needs_chain: ClassVar[bool] = True
    looks_ahead: ClassVar[bool] = True

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        weights = [1.0]
        behind: list[Leftover] = []
        for node in range(len(draft)):
            behind.append(Leftover(draft, p(node - 1 if node else ROOT), weights[-1]))
            weights.append(behind[-1].weight_of(node))
            if weights[-1] == 0:
                break  # so are all after it
        for length in range(len(weights) - 1, -1, -1):
            left = behind[length] if length < len(behind) else None
            if left is not None:
                left.reject(length)
            # Uses the random number of the prefix's last token; the empty prefix needs none.
            at = position + length - 1
            if noise.accept(weights[length] if left is None else left.weight, at):
                break
        law = p(length - 1 if length else ROOT) if left is None else left.law
        token = noise.sample(law, position + length, Purpose.TARGET)
        return Verdict(tuple(range(length)), token)
