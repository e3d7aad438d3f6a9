"""Recursive rejection on trees of any kind: siblings are tested in turn, each on the residual of p.

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
    """Recursive rejection on any draft, as its scheme requires.

    Each sibling, in draw order, is accepted with probability min(1, P(x) / Q(x)); after a rejection
    P becomes norm(max(P - Q, 0)), and if siblings were drawn without replacement, Q loses x. If no
    sibling is accepted, the emitted token is drawn from the last P. Exact. For a chain it is
    `token`; for children chosen deterministically it is one sample of the target, see `naive`.
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

    Children chosen deterministically need no such test: accepting x with P(x) and otherwise
    striking it out of P, child by child, is the same as drawing once from p and looking for the
    token among the children.
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
