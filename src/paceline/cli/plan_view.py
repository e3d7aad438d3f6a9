"""How a plan is shown: tables, sentences, published tables next to the formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from paceline.cli import terminal
from paceline.economics import cost as model
from paceline.economics import published
from paceline.workbench.plan.decide import Decision
from paceline.workbench.plan.formula import FormulaPlan
from paceline.workbench.plan.plots import LENGTHS, speedup_curve
from paceline.workbench.report.blocks import Table as Block

_BAR = 20


def formula_table(plan: FormulaPlan, *, bars: bool) -> Table:
    """The rows as a table, the best length marked."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("k", "tokens per round", "speed-up", "", "min. alpha", "max. cost"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    longest = max(row.speedup for row in plan.rows)
    for row in plan.rows:
        best = row.num_draft_tokens == plan.best_num_draft_tokens
        table.add_row(
            str(row.num_draft_tokens),
            f"{row.expected_tokens:.4f}",
            f"{row.speedup:.4f}",
            Text.assemble(bar(row.speedup, longest, shown=bars), "best" if best else ""),
            _number(row.break_even_acceptance_rate),
            _number(row.break_even_cost),
            style="bold" if best else "",
        )
    return table


def prediction_table(decision: Decision) -> Block:
    """Every method and length, the best one marked."""
    rows = tuple(
        (
            row.method,
            str(row.num_draft_tokens),
            f"{row.tokens:.2f}",
            f"{1e3 * row.seconds:.1f}",
            f"{row.speedup:.2f}",
            f"{row.low:.2f}-{row.high:.2f}",
            "best" if row == decision.best else "",
        )
        for row in decision.rows
    )
    percent = "95\N{NO-BREAK SPACE}%"
    headers = ("method", "k", "tokens per round", "ms per round", "speed-up", percent, "")
    return Block(headers, rows)


def elsewhere_table(decision: Decision) -> Block:
    """The best method with a fixed length at other batches and contexts."""
    places = [(f"batch {n}", row) for n, row in decision.by_batch.items()]
    places += [(f"context {n:,}", row) for n, row in decision.by_context.items()]
    rows = tuple(
        (place, "plain decoding", "0", "1.00")
        if row is None
        else (place, row.method, str(row.num_draft_tokens), f"{row.speedup:.2f}")
        for place, row in places
    )
    return Block(("at", "best", "k", "speed-up"), rows, num_names=2)


def bar(speedup: float, longest: float, *, shown: bool) -> tuple[str, str]:
    """A bar in the colour of a gain or a loss."""
    text = "█" * round(_BAR * speedup / longest) + " " if shown else ""
    return text, terminal.ACCEPTED if speedup >= 1 else "red"


def terminal_plot(alpha: float, cost: float) -> Table:
    """The speed-up over k as bars, for this acceptance rate and for a lower and a higher one."""
    rates = sorted({max(0.0, round(alpha - 0.1, 4)), alpha, min(1.0, round(alpha + 0.1, 4))})
    curves = {rate: speedup_curve(rate, cost) for rate in rates}
    longest = max(max(curve) for curve in curves.values())
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("k", justify="right")
    for rate in rates:
        table.add_column("", justify="right", no_wrap=True)
        table.add_column(f"alpha {rate:g}, c {cost:g}", ratio=1)
    for place, k in enumerate(LENGTHS):
        cells: list[str | Bar] = []
        for curve in curves.values():
            gain = curve[place]
            colour = terminal.ACCEPTED if gain >= 1 else "red"
            cells += [f"{gain:.2f}", Bar(longest, 0, gain, color=colour)]
        table.add_row(str(k), *cells)
    return table


def _number(value: float | None) -> str:
    return "never" if value is None else f"{value:.4f}"


def formula_sentences(plan: FormulaPlan) -> list[str]:
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
        slower = any(row.speedup < 1 for row in plan.rows)
        what = "plain decoding is faster" if slower else "it is at most as fast as plain decoding"
        sentences.append(f"No draft length pays here: {what}.")
        return sentences
    known = len(plan.acceptance_rates)
    among = f" of the {known} lengths with a known rate" if known > 1 else ""
    gain = _gain(plan.best_expected_tokens, plan.best_speedup)
    sentences.append(f"Best{among}: k = {plan.best_num_draft_tokens}, {gain}.")
    return sentences


def _gain(tokens: float, speedup: float) -> str:
    return f"{tokens:.4f} tokens per round and {speedup:.4f} times the speed of plain decoding"


def published_rows() -> dict[str, list[dict[str, Any]]]:
    """The published tables, each row with the result of the formula for its printed inputs."""
    return {
        "leviathan_table_1": [
            asdict(row)
            | {
                "formula_speedup": model.speedup(row.acceptance_rate, 0.0, row.num_draft_tokens),
                "formula_arithmetic_overhead": model.arithmetic_overhead(
                    row.acceptance_rate, row.num_draft_tokens
                ),
            }
            for row in published.LEVIATHAN_TABLE_1
        ],
        "leviathan_table_2": [
            asdict(row)
            | {
                "formula_speedup": model.speedup(
                    row.acceptance_rate, row.cost, row.num_draft_tokens
                )
            }
            for row in published.LEVIATHAN_TABLE_2
        ],
        "chen_table_1": [
            asdict(row)
            | {
                "formula_tokens": model.implied_tokens(
                    row.speedup,
                    published.CHEN_DRAFT_MILLISECONDS / published.CHEN_TARGET_MILLISECONDS,
                    published.CHEN_NUM_DRAFT_TOKENS,
                )
            }
            for row in published.CHEN_TABLE_1
        ],
    }


def print_published(*, as_json: bool) -> None:
    """Print the published tables next to the formula."""
    rows = published_rows()
    if as_json:
        terminal.print_json(rows)
        return
    console = terminal.out()
    for title, headers, found in (
        (
            f"{published.LEVIATHAN}, table 1 (a drafter without cost)",
            ("alpha", "k", "speed-up", "formula", "operations", "formula"),
            [
                (
                    f"{row['acceptance_rate']:g}",
                    str(row["num_draft_tokens"]),
                    f"{row['speedup']:.2f}",
                    f"{row['formula_speedup']:.2f}",
                    f"{row['arithmetic_overhead']:.2f}",
                    f"{row['formula_arithmetic_overhead']:.2f}",
                )
                for row in rows["leviathan_table_1"]
            ],
        ),
        (
            "The same, table 2 (T5-XXL 11B on a TPU-v4)",
            ("task", "draft", "T", "k", "alpha", "c", "expected", "formula", "measured"),
            [
                (
                    row["task"],
                    row["draft"],
                    f"{row['temperature']:g}",
                    str(row["num_draft_tokens"]),
                    f"{row['acceptance_rate']:.2f}",
                    f"{row['cost']:.2f}",
                    f"{row['expected_speedup']:.1f}",
                    f"{row['formula_speedup']:.2f}",
                    f"{row['measured_speedup']:.1f}",
                )
                for row in rows["leviathan_table_2"]
            ],
        ),
        (
            f"{published.CHEN}, table 1 (Chinchilla 70B, k = {published.CHEN_NUM_DRAFT_TOKENS})",
            ("task", "sampling", "measured", "implied tokens per round"),
            [
                (
                    row["task"],
                    row["sampling"],
                    f"{row['speedup']:.2f}",
                    f"{row['formula_tokens']:.2f}",
                )
                for row in rows["chen_table_1"]
            ],
        ),
    ):
        console.print(Text(title, style="bold"))
        console.print(_plain_table(headers, found))
        console.print()
    console.print(
        "The formula takes the printed rates, which are rounded; the papers used more digits. "
        "Measured speed-ups beat it or fall short of it: it includes neither how acceptance "
        "varies within a text nor the cost of scoring k + 1 tokens.",
        soft_wrap=True,
    )


def _plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for number, header in enumerate(headers):
        left = number == 0 or header in ("draft", "sampling")
        table.add_column(header, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
