"""The most frequent prefixes of many sequences, as a tree or as a path.

Source: REST (2311.08252), section 3.2.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.drafts import ROOT


class Trie(NamedTuple):
    """Tokens with their parents, as in `drafts.Draft`, and how many sequences go through each."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    times: tuple[int, ...]


def prefix_tree(rows: NDArray[np.uint32], end: int, most: int) -> Trie:
    """The `most` most frequent prefixes of the rows, of all lengths; ties go to the shorter.

    Args:
        rows: `[n, length]`, in lexicographic order.
        end: a number that ends a row; it is not a token.

    Example:
        >>> prefix_tree(np.array([[1, 2], [1, 3], [1, 3], [4, 9]], np.uint32), 9, 3)
        Trie(tokens=(1, 3, 4), parents=(-1, 0, -1), times=(3, 2, 1))
    """
    count, length = rows.shape
    if not count or not length or most < 1:
        return Trie((), (), ())
    # One line for each token of the rows, so that the following steps work on whole lines. A prefix
    # of d tokens starts where a row differs from the previous one in one of its first d tokens.
    lines = rows.T
    starts = np.ones((length, count), bool)
    starts[:, 1:] = _so_far(lines[:, 1:] != lines[:, :-1])
    # Equal rows are merged from here on, since many occurrences often continue in the same way.
    begins = np.flatnonzero(starts[-1])
    lines, starts = lines.take(begins, axis=1), starts.take(begins, axis=1)
    ended = _so_far(lines == end)
    # All prefixes, the shorter first, and how many rows each of them has up to the next.
    found = np.flatnonzero(starts)
    firsts = np.broadcast_to(begins, starts.shape)[starts]
    nexts = np.append(firsts[1:], 0)
    nexts[nexts == 0] = count  # the next one has another length
    times = nexts - firsts
    times[ended[starts]] = 0
    best = _largest(times, most)
    depths, columns = np.divmod(found[best], len(begins))
    # A parent is at least as frequent and shorter, so it is taken before its children.
    above = np.searchsorted(found, found[best] - len(begins), side="right") - 1
    number = {entry: node for node, entry in enumerate(best.tolist())}
    number[-1] = ROOT  # there is no line above the first
    parents = tuple(number[entry] for entry in above.tolist())
    return Trie(tuple(lines[depths, columns].tolist()), parents, tuple(times[best].tolist()))


def _so_far(lines: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether it holds in this line or one above; changes the lines in place and returns them."""
    # There are few long lines: `accumulate` takes ten times as long.
    for above, line in pairwise(lines):
        np.logical_or(above, line, out=line)
    return lines


def _largest(numbers: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """The indices of the `most` largest numbers above 0, the largest first; ties in order.

    >>> _largest(np.array([1, 3, 0, 1, 2, 1]), 4).tolist()
    [1, 4, 0, 3]
    """
    # Counting them is much faster than sorting them all.
    at_least = np.bincount(numbers)[::-1].cumsum()[::-1]
    least = max(int(np.count_nonzero(at_least >= most)) - 1, 1)
    larger = np.flatnonzero(numbers > least)
    larger = larger[np.argsort(-numbers[larger], kind="stable")]
    return np.append(larger, np.flatnonzero(numbers == least)[: most - len(larger)])


def prefix_path(rows: NDArray[np.uint32], end: int, most: int) -> Trie:
    """The most frequent first token, then the most frequent one after it, and so on.

    Ties go to the lowest token. Arguments as for `prefix_tree`.

    Example:
        >>> prefix_path(np.array([[1, 2], [1, 3], [1, 3], [4, 9]], np.uint32), 9, 3).tokens
        (1, 3)
    """
    tokens: list[int] = []
    taken: list[int] = []
    for depth in range(min(most, rows.shape[1]) if len(rows) else 0):
        column = rows[:, depth]  # in order, since the tokens before are the same in all rows
        number, middle = len(column), column[len(column) // 2]
        begin = int(column.searchsorted(middle))
        times = int(column.searchsorted(middle, "right")) - begin
        if middle == end or 2 * times <= number:  # otherwise no other one is as frequent
            begins = np.flatnonzero(np.append(True, column[1:] != column[:-1]))
            runs = np.diff(begins, append=number)
            runs[column[begins] == end] = 0
            best = int(runs.argmax())
            begin, times = int(begins[best]), int(runs[best])
            if not times:
                break
        rows = rows[begin : begin + times]
        tokens.append(int(column[begin]))
        taken.append(times)
    return Trie(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), tuple(taken))
