"""The residuals of p and q at one node as its draft children are rejected one by one.

Recursive rejection (2305.09781, 2402.12374), block verification (2403.10444) and traversal
verification (2505.12398) share this step. With weight 1 it is that of speculative sampling.
"""

from __future__ import annotations

from torch import Tensor

from paceline.core.drafts import Draft, Scheme
from paceline.errors import ContractViolation


class Leftover:
    """P, Q and the weight of one node; P starts as p.

    P is kept unnormalised, with its sum, so that a rejection takes one pass over the vocabulary.

    Args:
        draft: the draft, for the tokens and laws of the children.
        p: the target's law after the node, `[V]`; not changed.
        weight: the probability with which the path to the node is still to be accepted.
    """

    def __init__(self, draft: Draft, p: Tensor, weight: float = 1.0) -> None:
        self.law, self.weight = p, weight
        self._draft, self._mass = draft, 1.0
        self._strikes = draft.scheme is Scheme.WITHOUT_REPLACEMENT
        self._struck: list[int] = []
        self._base: Tensor | None = None
        self._q: Tensor | None = None
        self._q_mass = 1.0

    def weight_of(self, child: int) -> float:
        """min(1, weight P(x) / Q(x)) for the next child in draw order.

        Raises:
            ContractViolation: Q gives the child's token no mass, so Q cannot have drawn it.
        """
        token = self._draft.tokens[child]
        left = self.weight * float(self.law[token]) / self._mass
        q, total = self._law_of(child)
        if q is None:
            return min(1.0, left)
        drawn_from = float(q[token]) / total if total > 0 else 0.0
        if not drawn_from > 0:
            raise ContractViolation(
                f"draft token {token} has probability {drawn_from} under the law q of its draft, "
                "without the earlier siblings if it was drawn without replacement; q must be the "
                "law that the token was actually drawn from"
            )
        return min(1.0, left / drawn_from)

    def reject(self, child: int) -> None:
        """Go on without `child`: R = max(weight P - Q, 0) with sum S.

        The weight becomes S / (S + 1 - weight), P becomes R / S, and under sampling without
        replacement Q loses the child's token. If rounding leaves nothing, P stays.
        """
        token, scale = self._draft.tokens[child], self.weight / self._mass
        q, q_total = self._law_of(child)
        if q is None:
            rest = self.law * scale
            rest[token] = 0
        elif scale == q_total == 1:
            rest = (self.law - q).clamp_(min=0)
        else:
            rest = (self.law * scale).sub_(q, alpha=1 / q_total).clamp_(min=0)
        total = float(rest.sum())
        if total > 0:
            self.law, self._mass = rest, total
        if self.weight < 1:
            self.weight = total / (total + 1 - self.weight)
        self._strike(token)

    def _law_of(self, child: int) -> tuple[Tensor | None, float]:
        """Q for a child, and its sum: the child's law without the siblings that were struck out."""
        q = self._draft.law(child)
        if q is None or not (self._strikes and self._struck):
            return q, 1.0
        if q is not self._base or self._q is None:
            self._base, self._q = q, q.clone()
            self._q[self._struck] = 0
            self._q_mass = float(self._q.sum())
        return self._q, self._q_mass

    def _strike(self, token: int) -> None:
        self._struck.append(token)
        if self._q is not None:
            self._q[token] = 0
            self._q_mass = float(self._q.sum())
