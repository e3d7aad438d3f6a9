"""K-SEQ: the children of a node are tested in turn, each against the whole of p.

Source: SpecTr, Sun et al. 2310.15141, algorithm 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.errors import ContractViolation

STEPS = 50
"""The maximum number of steps of the search for rho."""


class Solution(NamedTuple):
    """rho, and beta = sum min(q, p / rho)."""

    rho: float
    beta: float


@dataclass(frozen=True, slots=True)
class KseqVerifier:
    """Accept each of k siblings with probability min(1, p(x) / (rho q(x))), in draw order.

    rho in [1, k] solves 1 - (1 - beta)^k = rho beta, beta = sum min(q, p / rho). If none is
    accepted, the token is drawn from the residual p - min(q, p / rho) (1 - (1 - beta)^k) / beta.
    Exact. Its acceptance is at least 1 - 1/e of that of the best possible rule. For one child it is
    `token`. Takes trees whose siblings were drawn independently from one distribution.
    """

    name: ClassVar[str] = "kseq"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset({Scheme.SINGLE, Scheme.IID})
    needs_chain: ClassVar[bool] = False

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        accepted: list[int] = []
        while True:
            node, at = (accepted[-1] if accepted else ROOT), position + len(accepted)
            law, children = p(node), draft.children(node)
            if not children:
                return Verdict(tuple(accepted), noise.sample(law, at, Purpose.TARGET))
            q = common_law(draft, children, law)
            rho, beta = solve(law, q, len(children))
            for child in children:
                token = draft.tokens[child]
                if noise.accept(float(law[token]) / (rho * float(q[token])), at):
                    accepted.append(child)
                    break
            else:
                rest = leftover(law, q, len(children), rho, beta)
                return Verdict(tuple(accepted), noise.sample(rest, at, Purpose.TARGET))


def common_law(draft: Draft, children: tuple[int, ...], like: Tensor) -> Tensor:
    """The law that all siblings share; a point mass is expanded to a tensor.

    Raises:
        ContractViolation: the siblings have different laws, or a token has no mass under its law.
    """
    laws = [draft.law(child) for child in children]
    tokens = [draft.tokens[child] for child in children]
    q = laws[0]
    if q is None:
        q = like.new_zeros(like.shape)
        q[tokens[0]] = 1
        same = all(law is None for law in laws)
    else:
        same = all(law is q or (law is not None and law.equal(q)) for law in laws)
    if not same or not all(float(q[token]) > 0 for token in tokens):
        raise ContractViolation(
            "K-SEQ takes siblings that were drawn independently from one law q, the same for all "
            f"children of a node; the tokens {tokens} were not"
        )
    return q


def solve(p: Tensor, q: Tensor, k: int) -> Solution:
    """The rho for k siblings, by false position (the Illinois form: it converges superlinearly).

    rho beta(rho) rises and 1 - (1 - beta)^k falls with rho, so their difference has one sign below
    the root and the other above. Each step takes one sum over the vocabulary; about ten steps
    suffice. Any rho that is not too small is exact, so a rho that is slightly too large costs only
    acceptance.

    >>> import torch
    >>> round(solve(torch.tensor([.3, .4, .3]), torch.tensor([.6, .3, .1]), 2).rho, 5)
    1.4
    """
    scratch = torch.empty_like(p)
    enough = max(1e-13, torch.finfo(p.dtype).eps)

    def at(rho: float) -> tuple[float, float]:
        """Return beta, and 1 - (1 - beta)^k - rho beta."""
        torch.minimum(q, torch.div(p, rho, out=scratch), out=scratch)
        beta = min(1.0, float(scratch.sum(dtype=torch.float64)))
        return beta, 1 - (1 - beta) ** k - rho * beta

    low, high = 1.0, float(k)
    beta, at_low = at(low)
    if at_low <= enough:
        return Solution(low, beta)
    beta, at_high = at(high)
    moved = 0
    for _ in range(STEPS):
        if at_high >= -enough:
            break
        rho = high - at_high * (high - low) / (at_high - at_low)
        new_beta, value = at(rho)
        # An endpoint that stays twice in a row gets half its weight.
        if value > enough:
            low, at_low, at_high = rho, value, at_high / 2 if moved > 0 else at_high
            moved = 1
        else:
            high, at_high, at_low = rho, value, at_low / 2 if moved < 0 else at_low
            beta, moved = new_beta, -1
    return Solution(high, beta)


def leftover(p: Tensor, q: Tensor, k: int, rho: float, beta: float) -> Tensor:
    """The residual of p after the k tests, unnormalised; p itself if rounding leaves nothing."""
    if not beta > 0:
        return p
    left = (p - q.minimum(p / rho) * ((1 - (1 - beta) ** k) / beta)).clamp_(min=0)
    return left if bool(left.sum() > 0) else p
