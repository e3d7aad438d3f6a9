"""Shows a report on a terminal, with rich."""

from __future__ import annotations

from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from paceline.workbench.report.blocks import (
    Block,
    Code,
    Definitions,
    Figure,
    Section,
    Table,
    Text,
    Verdict,
)
from paceline.workbench.report.layout import GAP, folded

_STYLES = {"good": "bold green", "warning": "bold yellow", "bad": "bold red", "neutral": "bold"}


def show(console: Console, section: Section) -> None:
    """Print a section; plots are left out."""
    console.print(RichText(section.title, style="bold"), soft_wrap=True)
    for block in section.blocks:
        _show(console, block)
    console.print()


def _show(console: Console, block: Block) -> None:
    match block:
        case Text(text) | Code(text):
            console.print(RichText(_plain(text)), soft_wrap=not console.is_terminal)
        case Verdict(status, word, text):
            line = RichText.assemble((word, _STYLES[status]), f": {_plain(text)}")
            console.print(line, soft_wrap=not console.is_terminal)
        case Definitions(entries):
            for term, meaning in entries:
                console.print(RichText.assemble((_plain(term), "bold"), f": {_plain(meaning)}"))
        case Table():
            show_table(console, block)
        case Figure():
            pass


def show_table(console: Console, table: Table) -> None:
    """Print a table, split into several below each other if the terminal is narrow."""
    if table.caption:
        console.print(RichText(_plain(table.caption), style="dim"))
    plain = replace(
        table,
        headers=tuple(map(_plain, table.headers)),
        rows=tuple(tuple(map(_plain, row)) for row in table.rows),
    )
    for part in folded(plain, console.width):
        console.print(_rich_table(part))


def _rich_table(table: Table) -> RichTable:
    made = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", padding=(0, GAP - 1, 0, 0)
    )
    for place, header in enumerate(table.headers):
        left = place < table.num_names
        made.add_column(RichText(header), justify="left" if left else "right", no_wrap=True)
    for row in table.rows:
        made.add_row(*map(RichText, row))
    return made


def _plain(text: str) -> str:
    return text.replace("`", "")
