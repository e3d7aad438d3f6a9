"""How likely draft tokens are accepted, position by position.

One rate for all positions is the i.i.d. model of Leviathan et al. (arXiv 2211.17192). Real drafts
do better early and worse late, so a rate measured at each position fits in the same place.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from paceline.economics._checks import check_probability, checked_count
from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class AcceptanceProfile:
    """The acceptance rate at every draft position, given that all positions before were accepted.

    Args:
        rates: the conditional rate at position 0, 1, ..., each in [0, 1].
        beyond: the rate at every later position. None means unknown: asking for more positions than
            `rates` has is then an error, not a guess.

    Raises:
        InvalidInput: a rate is not a probability, or there is no rate at all.

    Example:
        >>> AcceptanceProfile.constant(0.5).unconditional(3)
        (0.5, 0.25, 0.125)
        >>> AcceptanceProfile.from_unconditional([0.5, 0.375]).conditional(2)
        (0.5, 0.75)
    """

    rates: tuple[float, ...] = ()
    beyond: float | None = None

    def __post_init__(self) -> None:
        if not self.rates and self.beyond is None:
            raise InvalidInput(
                "expected the acceptance rate of at least one draft position, got none; "
                "give a number such as 0.8, or one measured rate per position"
            )
        for position, rate in enumerate(self.rates):
            check_probability(f"the acceptance rate at position {position}", rate)
        if self.beyond is not None:
            check_probability("the acceptance rate", self.beyond)

    @classmethod
    def constant(cls, alpha: float) -> AcceptanceProfile:
        """The i.i.d. model: the same rate at every position."""
        return cls(beyond=alpha)

    @classmethod
    def from_unconditional(cls, rates: Sequence[float]) -> AcceptanceProfile:
        """From the probabilities that position i is accepted *and all before it*.

        These are vLLM's per-position rates, provided that every round drafted the same number of
        tokens. A position that is never reached gets the rate 0, which changes no expectation.

        Raises:
            InvalidInput: the rates increase somewhere, so they are conditional ones.
        """
        for position, rate in enumerate(rates):
            check_probability(f"the acceptance rate at position {position}", rate)
        steps = list(pairwise((1.0, *rates)))
        for position, (previous, rate) in enumerate(steps):
            if rate > previous:
                raise InvalidInput(
                    f"expected unconditional acceptance rates, which never increase, got {rate} "
                    f"at position {position} after {previous}; conditional rates go to "
                    "AcceptanceProfile(rates)"
                )
        return cls(tuple(rate / previous if previous else 0.0 for previous, rate in steps))

    @property
    def horizon(self) -> int | None:
        """The number of known positions; None if all are."""
        return len(self.rates) if self.beyond is None else None

    def conditional(self, num_draft_tokens: int) -> tuple[float, ...]:
        """The rate at each of the first `num_draft_tokens` positions, given those before it."""
        missing = checked_count(num_draft_tokens) - len(self.rates)
        if missing <= 0:
            return self.rates[:num_draft_tokens]
        if self.beyond is None:
            raise InvalidInput(
                f"expected at most {len(self.rates)} draft tokens, the number of positions of the "
                f"acceptance profile, got {num_draft_tokens}; measure with a longer draft, or "
                "set `beyond` to the rate to assume for later positions"
            )
        return self.rates + (self.beyond,) * missing

    def unconditional(self, num_draft_tokens: int) -> tuple[float, ...]:
        """The probability, by position, that it and all positions before it are accepted."""
        return tuple(accumulate(self.conditional(num_draft_tokens), operator.mul))


Acceptance = float | Sequence[float] | AcceptanceProfile
"""One rate for all positions, one *conditional* rate per position, or a profile."""


def as_profile(acceptance: Acceptance) -> AcceptanceProfile:
    """The profile that `acceptance` describes."""
    if isinstance(acceptance, AcceptanceProfile):
        return acceptance
    if isinstance(acceptance, Sequence):
        return AcceptanceProfile(tuple(acceptance))
    return AcceptanceProfile.constant(acceptance)
