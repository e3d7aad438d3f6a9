"""Recursive rejection on trees of any kind: siblings are tested in turn, on what is left of p.

Sources: SpecInfer 2305.09781, algorithm 2 (with replacement); Sequoia 2402.12374, algorithm 2, and
RSD 2402.14160 (without). On a chain both are token verification (2211.17192).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.verifiers.leftover import Leftover
from paceline.verifiers.naive import match_samples


@dataclass(frozen=True, slots=True)
class TreeVerifier:
    """Recursive rejection on any draft, in the way that its scheme asks for.

    Each sibling, in draw order, is accepted with probability min(1, P(x) / Q(x)); after a rejection
    P becomes norm(max(P - Q, 0)), and if siblings were drawn without replacement, Q loses x. The
    last P gives the token that is emitted where no sibling is accepted. Exact. For a chain it is
    `token`; for chosen children it is one sample of the target, see `naive`.
    """

    name: ClassVar[str] = "tree"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme)
    needs_chain: ClassVar[bool] = False

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """See `protocols.Verifier.verify`."""
        return reject_recursively(draft, p, noise, position)


def reject_recursively(
    draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
) -> Verdict:
    """Walk down the draft, testing the children of each node in turn.

    Chosen children need no such test: to accept x with P(x) and to strike it out of P otherwise,
    child by child, is to draw once from p and look for the token among the children.
    """
    if draft.scheme is Scheme.CHOSEN:
        return match_samples(draft, p, noise, position)
    accepted: list[int] = []
    while True:
        node, at = (accepted[-1] if accepted else ROOT), position + len(accepted)
        left = Leftover(draft, p(node))
        for child in draft.children(node):
            if noise.accept(left.weight_of(child), at):
                accepted.append(child)
                break
            left.reject(child)
        else:
            return Verdict(tuple(accepted), noise.sample(left.law, at, Purpose.TARGET))
