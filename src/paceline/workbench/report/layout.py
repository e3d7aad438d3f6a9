"""Tables for a terminal of any width: nothing is cut, and what does not fit continues below.

Headers wrap at spaces, and names at the commas of their settings. Columns that still do not fit
continue in a second table below the first, which repeats the names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len

from paceline.workbench.report.blocks import Table

GAP = 2
"""Spaces between two columns."""

EDGES = 2
"""The width of a table's frame at its sides."""

NAME_SHARES = (0.4, 0.3, 0.2)
"""The shares of the width that names may take if the columns would not fit otherwise."""

SHORTEST_NAME = 16


def folded(table: Table, width: int) -> list[Table]:
    r"""The table as one or more whose lines are at most `width` columns wide.

    The returned cells may contain line ends. A single cell that is wider than the terminal is not
    changed.

    Example:
        >>> wide = Table(("method", "speed-up", "tokens/s"), (("ngram,k=4", "1.52", "20.1"),))
        >>> [part.headers for part in folded(wide, 20)]
        [('method', 'speed-up'), ('method', 'tokens/s')]
    """
    table = replace(table, headers=tuple(map(_stacked, table.headers)))
    room = width - EDGES
    narrower = (_with_narrow_names(table, int(share * width)) for share in NAME_SHARES)
    tries = [_parts(one, room) for one in (table, *narrower)]
    # Among the best, the first has the widest names.
    return min(tries, key=lambda parts: (any(_total(part) > room for part in parts), len(parts)))


def _parts(table: Table, width: int) -> list[Table]:
    names = list(range(table.num_names))
    parts: list[list[int]] = [[]]
    for place in range(table.num_names, len(table.headers)):
        if parts[-1] and _total(_columns(table, [*names, *parts[-1], place])) > width:
            parts.append([])
        parts[-1].append(place)
    return [_columns(table, names + part) for part in parts]


def wrapped(name: str, width: int) -> str:
    r"""A name on lines of at most `width`, broken after commas, slashes and plus signs.

    Example:
        >>> wrapped("model,draft=some-model,k=3", 18)
        'model,\ndraft=some-model,\nk=3'
    """
    lines = [""]
    for part in re.findall(r"[^,+/ ]*[,+/ ]|[^,+/ ]+", name):
        if lines[-1] and cell_len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
        while cell_len(lines[-1]) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(line.rstrip(" ") for line in lines)


def _with_narrow_names(table: Table, width: int) -> Table:
    most = max(SHORTEST_NAME, width // max(1, table.num_names))

    def narrow(row: tuple[str, ...]) -> tuple[str, ...]:
        names = (wrapped(cell, most) for cell in row[: table.num_names])
        return (*names, *row[table.num_names :])

    return replace(table, rows=tuple(map(narrow, table.rows)))


def _stacked(header: str) -> str:
    """A header of several words, wrapped to the width of its longest word."""
    words = header.split(" ")  # not at a no-break space
    longest = max(map(cell_len, words), default=0)
    lines: list[str] = []
    for word in words:
        if lines and cell_len(f"{lines[-1]} {word}") <= longest:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def _columns(table: Table, places: Sequence[int]) -> Table:
    return replace(
        table,
        headers=tuple(table.headers[place] for place in places),
        rows=tuple(tuple(row[place] for place in places) for row in table.rows),
    )


def _total(table: Table) -> int:
    columns = zip(table.headers, *table.rows, strict=True)
    return sum(map(_width, columns)) + GAP * (len(table.headers) - 1)


def _width(cells: Sequence[str]) -> int:
    return max(cell_len(line) for cell in cells for line in cell.split("\n"))
