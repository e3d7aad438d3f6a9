"""Token verification: speculative sampling, one test per token.

Source: Leviathan et al. 2211.17192, algorithm 1; Chen et al. 2302.01318, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.errors import ContractViolation


@dataclass(frozen=True, slots=True)
class TokenVerifier:
    """Accept draft token x with probability min(1, p(x) / q(x)), stop at the first rejection.

    A rejected token is replaced by a draw from norm(max(p - q, 0)); after full acceptance a bonus
    is drawn from p. Exact: the output is distributed as p, whatever q is, as long as the draft was
    drawn from q. Takes chains, with distributions or point masses.
    """

    name: ClassVar[str] = "token"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset({Scheme.SINGLE})
    needs_chain: ClassVar[bool] = True

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        accepted: list[int] = []
        for node, token in enumerate(draft.tokens):
            parent = accepted[-1] if accepted else ROOT
            target, law = p(parent), draft.law(node)
            at = position + len(accepted)
            if not noise.accept(acceptance_probability(target, law, token), at):
                correction = noise.sample(residual(target, law, token), at, Purpose.TARGET)
                return Verdict(tuple(accepted), correction)
            accepted.append(node)
        parent = accepted[-1] if accepted else ROOT
        bonus = noise.sample(p(parent), position + len(accepted), Purpose.TARGET)
        return Verdict(tuple(accepted), bonus)


def acceptance_probability(p: Tensor, q: Tensor | None, token: int) -> float:
    """min(1, p(x) / q(x)); q None is a point mass on `token`.

    Raises:
        ContractViolation: q gives the token no mass, so q cannot have drawn it.
    """
    if q is None:
        return float(p[token])
    drawn_from = float(q[token])
    if not drawn_from > 0:
        raise ContractViolation(
            f"draft token {token} has probability {drawn_from} under the law q of its draft; q "
            "must be the law that the token was actually drawn from"
        )
    return min(1.0, float(p[token]) / drawn_from)


def residual(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """max(p - q, 0), unnormalised, `[V]`; p itself if rounding leaves nothing.

    >>> import torch
    >>> residual(torch.tensor([.4, .4, .2]), torch.tensor([.6, .3, .1]), 0)
    tensor([0.0000, 0.1000, 0.1000])
    """
    if q is None:
        left = p.clone()
        left[token] = 0
    else:
        left = (p - q).clamp_(min=0)
    return left if bool(left.sum() > 0) else p
