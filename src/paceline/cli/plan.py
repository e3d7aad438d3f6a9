"""`paceline plan`: what speculation would gain, from an acceptance rate and a draft cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from paceline.cli import options, terminal
from paceline.errors import InvalidInput
from paceline.math import cost as model
from paceline.math.acceptance import AcceptanceProfile

_SHOWN = 8
"""How many draft lengths the table shows where none is asked for, unless the best is longer."""

_LONGEST = 16
"""The longest table that is shown unasked."""

_BAR = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What `paceline plan` prints.

    Args:
        acceptance_rates: one rate for every position, or one *conditional* rate a position.
        cost, verify_cost, overhead: in plain target passes; see `math.cost.round_cost`.
        best_num_draft_tokens: the draft length of the greatest speed-up; 0: do not speculate.
        best_expected_tokens, best_speedup: tokens a round and speed-up there.
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
    draft cost below which it pays; None where there is no such number.
    """

    num_draft_tokens: int
    expected_tokens: float
    accepted_tokens: float
    speedup: float
    arithmetic_overhead: float
    break_even_acceptance_rate: float | None
    break_even_cost: float | None


def make_plan(
    rates: Sequence[float],
    cost: float,
    lengths: Sequence[int] = (),
    verify_cost: float = 1.0,
    overhead: float = 0.0,
) -> Plan:
    """Evaluate the cost model; without `lengths`, for a range around the best one.

    Raises:
        InvalidInput: a number outside its range, or more draft tokens than `rates` has positions.

    Example:
        >>> round(make_plan([0.8], 0.05, [4]).rows[0].expected_tokens, 4)
        3.3616
    """
    one = len(rates) == 1
    if not one and max(lengths, default=0) > len(rates):
        raise InvalidInput(
            f"{len(rates)} acceptance rates say nothing of draft position {max(lengths)}; give "
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
    return Plan(
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


def parse_rates(text: str) -> list[float]:
    """`0.8`, or one rate a position: `0.9,0.8,0.7`.

    Raises:
        InvalidInput: no numbers.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"--alpha must be a number from 0 to 1, or several with commas between them; it is "
            f"{text!r}"
        ) from None


def parse_lengths(texts: Sequence[str]) -> list[int]:
    """Draft lengths from `4`, `2,4,8` or `1-8`.

    Raises:
        InvalidInput: not of that form, or a range without an end.

    Example:
        >>> parse_lengths(["1-3", "8,4"])
        [1, 2, 3, 8, 4]
    """
    found: list[int] = []
    for part in ",".join(texts).split(",") if texts else ():
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidInput(
                f"--num-draft-tokens must be numbers of tokens such as 4, 2,4,8 or 1-8; it is "
                f"{part!r}"
            )
        low, high = int(first), int(last) if dash else int(first)
        if low > high or high > model.MAX_NUM_DRAFT_TOKENS:
            raise InvalidInput(
                f"--num-draft-tokens must rise to at most {model.MAX_NUM_DRAFT_TOKENS}; it is "
                f"{part!r}"
            )
        found += range(low, high + 1)
    return list(dict.fromkeys(found))


def plan_table(plan: Plan, *, bars: bool) -> Table:
    """The rows as a table, the best length marked."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("k", "tokens a round", "speed-up", "", "min. alpha", "max. cost"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    longest = max(row.speedup for row in plan.rows)
    for row in plan.rows:
        best = row.num_draft_tokens == plan.best_num_draft_tokens
        bar = "█" * round(_BAR * row.speedup / longest) + " " if bars else ""
        table.add_row(
            str(row.num_draft_tokens),
            f"{row.expected_tokens:.4f}",
            f"{row.speedup:.4f}",
            Text.assemble(
                (bar, terminal.ACCEPTED if row.speedup >= 1 else "red"), "best" if best else ""
            ),
            _number(row.break_even_acceptance_rate),
            _number(row.break_even_cost),
            style="bold" if best else "",
        )
    return table


def _number(value: float | None) -> str:
    return "never" if value is None else f"{value:.4f}"


def plan_sentences(plan: Plan) -> list[str]:
    """What the plan says, in words."""
    sentences = []
    if len(plan.rows) == 1:
        row = plan.rows[0]
        sentences.append(
            f"With k = {row.num_draft_tokens}: {_gain(row.expected_tokens, row.speedup)}."
        )
        limits = [
            f"{side} {name} of {value:.4f}"
            for side, name, value in (
                ("above an", "acceptance rate", row.break_even_acceptance_rate),
                ("below a", "draft cost", row.break_even_cost),
            )
            if value is not None
        ]
        if row.num_draft_tokens and limits:
            sentences.append(f"That pays {' or '.join(limits)}.")
    else:
        sentences.append("Drafting k tokens pays above min. alpha, or below max. cost.")
    if plan.best_num_draft_tokens == 0:
        sentences.append("No draft length pays here: plain decoding is faster.")
        return sentences
    known = len(plan.acceptance_rates)
    among = f" of the {known} lengths with a known rate" if known > 1 else ""
    gain = _gain(plan.best_expected_tokens, plan.best_speedup)
    sentences.append(f"Best{among}: k = {plan.best_num_draft_tokens}, {gain}.")
    return sentences


def _gain(tokens: float, speedup: float) -> str:
    return f"{tokens:.4f} tokens a round and {speedup:.4f} times the speed of plain decoding"


def plan(
    alpha: Annotated[
        str,
        typer.Option(
            "--alpha",
            "-a",
            metavar="RATE[,RATE...]",
            help="Acceptance rate of a tested draft token, from 0 to 1; or one for each draft "
            "position, given that those before were accepted.",
        ),
    ],
    cost: Annotated[
        float,
        typer.Option(
            "--cost",
            "-c",
            metavar="X",
            help="Time of one draft step in target passes; about 0 for n-grams.",
        ),
    ],
    num_draft_tokens: Annotated[
        list[str] | None,
        typer.Option(
            "--num-draft-tokens",
            "-k",
            metavar="K",
            help="Draft lengths: 4, 2,4,8 or 1-8. Default: a range up to the best.",
        ),
    ] = None,
    verify_cost: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Time of a target pass over k + 1 tokens in passes over one; 1 where weights "
            "take longer to read than to use.",
        ),
    ] = 1.0,
    overhead: Annotated[
        float, typer.Option(metavar="X", help="What else a round takes, in target passes.")
    ] = 0.0,
    as_json: options.AsJson = False,
) -> None:
    """Tokens a round and speed-up from an acceptance rate and a draft cost."""
    rates, lengths = parse_rates(alpha), parse_lengths(num_draft_tokens or [])
    found = make_plan(rates, cost, lengths, verify_cost, overhead)
    if as_json:
        terminal.print_json(found.to_json())
        return
    console = terminal.out()
    console.print(plan_table(found, bars=console.is_terminal and not console.legacy_windows))
    console.print()
    for sentence in plan_sentences(found):
        console.print(sentence)
