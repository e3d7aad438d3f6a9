"""What `paceline audit` shows: how far it is, and what it found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from paceline.cli import terminal

if TYPE_CHECKING:
    from paceline.audit import Audit
    from paceline.audit.progress import Progress as Tell

STYLES = {"pass": "green", "tie-limited": "yellow", "fault": "bold red", "inconclusive": "yellow"}


@contextmanager
def progress() -> Iterator[Tell]:
    """A teller for the steps of an audit: bars on a terminal, elsewhere one line a step."""
    console = terminal.err()
    if not console.is_terminal:
        told: list[str] = []

        def tell(done: int, total: int, text: str) -> None:
            if text not in told:
                told.append(text)
                console.print(text, soft_wrap=True)

        yield tell
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )
    steps: dict[str, int] = {}

    def draw(done: int, total: int, text: str) -> None:
        if text not in steps:
            steps[text] = bar.add_task(text, total=total)
        bar.update(steps[text], completed=done, total=total)  # type: ignore[arg-type]

    with bar:
        yield draw


def show(audit: Audit) -> None:
    """Print the findings and the verdict."""
    console = terminal.out()
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="bold")
    for name in ("check", "verdict", "what was found"):
        table.add_column(name, overflow="fold")
    for finding in audit.findings:
        verdict = "-" if finding.verdict is None else finding.verdict.value
        table.add_row(
            finding.check,
            Text(verdict, style=STYLES.get(verdict, "")),
            terminal.printable(finding.summary),
        )
    console.print(table)
    verdict = audit.verdict.value
    console.print(Text.assemble("\nverdict: ", (verdict, STYLES[verdict])))
