"""The parts of a report: values that a renderer turns into HTML, Markdown or terminal text.

Texts may contain `code` between backticks, and no other Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.errors import InvalidInput

Status = Literal["good", "warning", "bad", "neutral"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """A command or a value, to be copied as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding, in a word and a sentence.

    Args:
        status: its colour; the word says it too, because not everyone sees colours.
        word: for example "pass".
        text: what it means and what to do.
    """

    status: Status
    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under headers.

    Args:
        headers: one per column.
        rows: each with one cell per column; "" is an empty cell.
        num_names: the number of leading columns that are names, aligned to the left; the others are
            numbers, aligned to the right.
        caption: what the table shows.

    Raises:
        InvalidInput: a row has another length.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_names: int = 1
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headers):
                raise InvalidInput(
                    f"a table with {len(self.headers)} columns needs that many cells in each row; "
                    f"one has {len(row)}"
                )


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot.

    Args:
        title: what it shows.
        svg: inline SVG, as `figures.inline_svg` makes it.
        text: how to read it.
    """

    title: str
    svg: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Definitions:
    """Terms and their meanings."""

    entries: tuple[tuple[str, str], ...]


Block = Text | Code | Verdict | Table | Figure | Definitions


@dataclass(frozen=True, slots=True)
class Section:
    """A title and the blocks under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report.

    Args:
        title: of the page.
        lead: its subject, in a sentence.
        sections: in order.

    Example:
        >>> from paceline.workbench.report.markdown import to_markdown
        >>> table = Table(("method", "speed-up"), (("ngram", "1.52"),))
        >>> print(to_markdown(Report("Bench", "Two methods.", [Section("Speed", (table,))])))
        # Bench
        <BLANKLINE>
        Two methods.
        <BLANKLINE>
        ## Speed
        <BLANKLINE>
        | method | speed-up |
        |---|---:|
        | ngram | 1.52 |
        <BLANKLINE>
    """

    title: str
    lead: str
    sections: Sequence[Section]
