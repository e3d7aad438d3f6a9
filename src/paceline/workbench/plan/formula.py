"""Speed-up from the formula alone: an acceptance rate, a draft cost, a table over draft lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.economics import cost as model
from paceline.economics.acceptance import AcceptanceProfile
from paceline.errors import InvalidInput

_SHOWN = 8
"""The number of draft lengths in the table by default, unless the best one is longer."""

_MOST = 1e6
"""The largest plausible cost, in target passes."""

_LONGEST = 16
"""The longest table that is shown by default."""


@dataclass(frozen=True, slots=True)
class FormulaPlan:
    """The formula over draft lengths.

    Args:
        acceptance_rates: one rate for every position, or one *conditional* rate per position.
        cost, verify_cost, overhead: in plain target passes; see `math.cost.round_cost`.
        best_num_draft_tokens: the draft length with the greatest speed-up; 0: do not speculate.
        best_expected_tokens, best_speedup: tokens per round and speed-up there.
        rows: one for each draft length.
    """

    acceptance_rates: tuple[float, ...]
    cost: float
    verify_cost: float
    overhead: float
    best_num_draft_tokens: int
    best_expected_tokens: float
    best_speedup: float
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Row:
    """One draft length: a row of `math.cost.plan_table`, and where it breaks even.

    `break_even_acceptance_rate` is the constant rate above which it pays, `break_even_cost` the
    draft cost below which it pays; None if there is no such number.
    """

    num_draft_tokens: int
    expected_tokens: float
    accepted_tokens: float
    speedup: float
    arithmetic_overhead: float
    break_even_acceptance_rate: float | None
    break_even_cost: float | None


def plan_by_formula(
    rates: Sequence[float],
    cost: float,
    lengths: Sequence[int] = (),
    verify_cost: float = 1.0,
    overhead: float = 0.0,
) -> FormulaPlan:
    """Evaluate the cost model; without `lengths`, for a range around the best one.

    Raises:
        InvalidInput: a number outside its range, or more draft tokens than `rates` has positions.

    Example:
        >>> round(plan_by_formula([0.8], 0.05, [4]).rows[0].expected_tokens, 4)
        3.3616
    """
    for name, value in (("cost", cost), ("verify_cost", verify_cost), ("overhead", overhead)):
        if value > _MOST:
            raise InvalidInput(
                f"{name} is in plain target passes, so at most {_MOST:g} here; it is {value:g}: "
                "was it given in milliseconds?"
            )
    one = len(rates) == 1
    if not one and max(lengths, default=0) > len(rates):
        raise InvalidInput(
            f"{len(rates)} acceptance rates do not include draft position {max(lengths)}; give "
            "more of them, or one for all positions"
        )
    profile = AcceptanceProfile.constant(rates[0]) if one else AcceptanceProfile(tuple(rates))
    best = model.best_num_draft_tokens(profile, cost, verify_cost, overhead)
    lengths = lengths or _lengths_to_show(best, profile.horizon)
    table = model.plan_table(profile, cost, lengths, verify_cost, overhead)
    rows = (
        Row(
            **asdict(row),
            break_even_acceptance_rate=model.break_even_acceptance_rate(
                cost, row.num_draft_tokens, verify_cost, overhead
            ),
            break_even_cost=_break_even_cost(profile, row.num_draft_tokens, verify_cost, overhead),
        )
        for row in table
    )
    return FormulaPlan(
        acceptance_rates=tuple(rates),
        cost=cost,
        verify_cost=verify_cost,
        overhead=overhead,
        best_num_draft_tokens=best,
        best_expected_tokens=model.expected_tokens(profile, best),
        best_speedup=model.speedup(profile, cost, best, verify_cost, overhead),
        rows=tuple(rows),
    )


def _break_even_cost(
    profile: AcceptanceProfile, length: int, verify_cost: float, overhead: float
) -> float | None:
    return model.break_even_cost(profile, length, verify_cost, overhead) if length else None


def _lengths_to_show(best: int, horizon: int | None) -> list[int]:
    last = min(max(_SHOWN, best + 2), _LONGEST, horizon or _LONGEST)
    return [*range(1, last + 1), *([best] if best > last else [])]
