"""Whether a rule takes what a drafter drafts: asked before the first token, for every door."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.drafts import Scheme
from paceline.core.protocols import Drafter, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.traits import DraftKinds, traits_of
from paceline.errors import InvalidInput, PacelineError
from paceline.generate import plugins


def check_rule(verifier: Verifier, drafter: Drafter, params: SamplingParams) -> None:
    """Refuse a rule that does not take every draft that the drafter declares.

    A drafter that declares nothing passes; the engine checks each of its drafts as it comes.

    Args:
        verifier, drafter: of the call.
        params: how the target's tokens are drawn; at temperature 0 drafts may be of other kinds.

    Raises:
        InvalidInput: names the exact rules that take them.

    Example:
        >>> from paceline.drafters.ngram import NgramDrafter
        >>> from paceline.verifiers.token import TokenVerifier
        >>> check_rule(TokenVerifier(), NgramDrafter(), SamplingParams())
    """
    kinds = traits_of(drafter).drafts_where(is_greedy=params.is_greedy)
    if refused := _refused(verifier, kinds):
        schemes = " and ".join(repr(scheme.value) for scheme in refused)
        raise InvalidInput(
            f"the rule {verifier.name!r} does not take what drafter {drafter.name!r} may draft "
            f"(scheme {schemes}); choose one that does: {', '.join(_takers(kinds))}"
        )


def _refused(verifier: Verifier, kinds: DraftKinds) -> list[Scheme]:
    """The schemes of drafts that the rule does not take, in the order of `Scheme`."""
    taken = verifier.schemes & {Scheme.SINGLE} if verifier.needs_chain else verifier.schemes
    return [scheme for scheme in Scheme if scheme in kinds.schemes - taken]


def _takers(kinds: DraftKinds) -> Iterator[str]:
    """The names of the exact rules that take the drafts; one that cannot be made is left out."""
    for name in plugins.names("verifier"):
        try:
            rule: Verifier = plugins.find("verifier", name).make({})
        except PacelineError:
            continue
        if rule.exact and not _refused(rule, kinds):
            yield name
