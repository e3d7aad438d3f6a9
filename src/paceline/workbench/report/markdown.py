"""A report as Markdown: tables and text. Plots are only in the HTML."""

from __future__ import annotations

from paceline.workbench.report.blocks import (
    Block,
    Code,
    Definitions,
    Figure,
    Report,
    Table,
    Text,
    Verdict,
)


def to_markdown(report: Report) -> str:
    """The report as Markdown, with tables in GitHub's syntax."""
    parts = [f"# {report.title}", report.lead]
    for section in report.sections:
        blocks = [text for text in map(_block, section.blocks) if text]
        if blocks:  # a section with only plots is left out
            parts += [f"## {section.title}", *blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return text
        case Code(text):
            fence = "```"
            while fence in text:
                fence += "`"
            return f"{fence}text\n{text}\n{fence}"
        case Verdict(_, word, text):
            return f"**{word}**: {text}"
        case Figure():
            return ""
        case Definitions(entries):
            return "\n".join(f"- **{term}**: {meaning}" for term, meaning in entries)
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    rule = ["---"] * table.num_names + ["---:"] * (len(table.headers) - table.num_names)
    lines = [_row(table.headers), "|" + "|".join(rule) + "|", *map(_row, table.rows)]
    head = [f"{table.caption}\n"] if table.caption else []
    return "\n".join(head + lines)


def _row(cells: tuple[str, ...]) -> str:
    r"""One line of a table; characters that would end a cell or a line are escaped.

    >>> _row(("a|b", "c"))
    '| a\\|b | c |'
    """
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
