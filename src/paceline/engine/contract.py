"""Check what plug-ins return to the engine against the contract, before it does any harm."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.drafts import Budget, Draft, Scheme, Verdict
from paceline.core.protocols import Drafter, Target, Verifier, Work
from paceline.core.target import Need, Scores, TargetInfo
from paceline.errors import ContractViolation, InvalidInput

_LAW_TOLERANCE = 1e-4
"""How far rounding may move the sum of a law from 1."""

_WORDS = {Need.TREE: "branches", Need.AUXILIARY: "auxiliary rows"}


def check_draft(
    draft: Draft, budget: Budget, drafter: Drafter, verifier: Verifier, target: Target
) -> None:
    """Check a draft against the contract before it costs a target pass."""
    if draft.scheme not in verifier.schemes or (verifier.needs_chain and not draft.is_chain):
        raise InvalidInput(
            f"the rule {verifier.name!r} does not take what drafter {drafter.name!r} drafts "
            f"(scheme {draft.scheme.value!r}{'' if draft.is_chain else ', a tree'}); choose a rule "
            f"that does"
        )
    _check_scheme(draft, drafter)
    vocab = target.info.vocab_size
    tokens = draft.tokens if draft.aux is None else (*draft.tokens, *draft.aux.tokens)
    if bad := [token for token in tokens if not 0 <= token < vocab]:
        raise ContractViolation(
            f"drafter {drafter.name!r} proposed token {bad[0]}; the vocabulary of the target is "
            f"0 to {vocab - 1}"
        )
    if draft.max_path_length > budget.longest:
        raise ContractViolation(
            f"drafter {drafter.name!r} proposed a path of {draft.max_path_length} tokens; the "
            f"budget was {budget.longest}"
        )
    if budget.max_nodes is not None and len(draft) > budget.max_nodes:
        raise ContractViolation(
            f"drafter {drafter.name!r} proposed {len(draft)} tokens; the budget was "
            f"{budget.max_nodes}"
        )
    for need, used in ((Need.TREE, not draft.is_chain), (Need.AUXILIARY, draft.aux is not None)):
        if used and need not in target.info.gives:
            raise InvalidInput(
                f"{target.info.name} takes no drafts with {_WORDS[need]}, which drafter "
                f"{drafter.name!r} proposed; choose a drafter of chains (in invariant mode, all "
                f"drafts are)"
            )
    if bad_laws := [law for law in draft.probs or () if law is not None and law.shape != (vocab,)]:
        raise ContractViolation(
            f"drafter {drafter.name!r} gave a law of shape {tuple(bad_laws[0].shape)}; it must be "
            f"({vocab},), the vocabulary of the target"
        )
    _check_laws(draft, drafter)


def _check_laws(draft: Draft, drafter: Drafter) -> None:
    """Check that each law is a probability distribution and gives its token mass.

    Every law is checked, since exactness depends on it. A check costs less than half of the softmax
    that makes a law. Siblings share one.
    """
    seen: set[int] = set()
    for token, law in zip(draft.tokens, draft.probs or (), strict=False):
        if law is None:
            continue
        if id(law) not in seen:
            seen.add(id(law))
            least, total = float(law.min()), float(law.sum())
            # Written so that NaN fails, too.
            if not (least >= 0 and abs(total - 1) <= _LAW_TOLERANCE):
                raise ContractViolation(
                    f"drafter {drafter.name!r} gave token {token} a law that is not a "
                    f"distribution: its sum is {total:g} and its smallest entry {least:g}. Give "
                    "the probabilities that the token was drawn from, or leave probs out for a "
                    "token that was chosen deterministically"
                )
        if not float(law[token]) > 0:
            raise ContractViolation(
                f"drafter {drafter.name!r} proposed token {token}, to which its law gives no "
                "mass; a law must be the one that the token was actually drawn from"
            )


def _check_scheme(draft: Draft, drafter: Drafter) -> None:
    """Check that the draft is what its scheme says: the rules rely on it."""
    assert draft.parents is not None
    if draft.scheme is Scheme.SINGLE and len(set(draft.parents)) < len(draft):
        raise ContractViolation(
            f"drafter {drafter.name!r} proposed several children of one node under the scheme "
            f"{draft.scheme.value!r}; name the scheme with which they were drawn"
        )
    if draft.scheme is Scheme.CHOSEN and any(law is not None for law in draft.probs or ()):
        raise ContractViolation(
            f"drafter {drafter.name!r} gave laws of tokens under the scheme "
            f"{draft.scheme.value!r}, which says that nothing was drawn; leave probs out, or name "
            "the scheme with which they were drawn"
        )


def check_scores(all_scores: list[Scores], work: Sequence[Work], info: TargetInfo) -> None:
    """Check what a target pass returned against the contract."""
    expected = [(item.num_scored, info.vocab_size) for item in work]
    came = [tuple(scores.logits.shape) for scores in all_scores]
    if came != expected:
        raise ContractViolation(
            f"target {info.name} returned logits of shape {came} for the pass; expected {expected}"
        )
    for item, scores in zip(work, all_scores, strict=True):
        rows = 0 if scores.hidden is None else scores.hidden.num_rows
        if item.hidden is not None and rows != item.num_rows:
            raise ContractViolation(
                f"target {info.name} returned hidden states of {rows} rows; the pass had "
                f"{item.num_rows} of the sequence"
            )


def check_verdict(verdict: Verdict, draft: Draft, verifier: Verifier) -> None:
    """Check a verdict against the contract: its path must start at the root and skip nothing."""
    if not draft.is_path(verdict.path):
        raise ContractViolation(
            f"the rule {verifier.name!r} accepted the nodes {verdict.path}, which are no path from "
            "the root"
        )
