"""How `paceline audit` shows its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from paceline.cli import terminal

if TYPE_CHECKING:
    from paceline.workbench.audit import Audit

STYLES = {"pass": "green", "tie-limited": "yellow", "fault": "bold red", "inconclusive": "yellow"}


def show(audit: Audit) -> None:
    """Print the findings and the verdict."""
    console = terminal.out()
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="bold")
    for name in ("check", "verdict", "finding"):
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
