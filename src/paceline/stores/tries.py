"""The most frequent beginnings of many sequences, as a tree or as a path.

Source: REST (2311.08252), section 3.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.types import ROOT


class Trie(NamedTuple):
    """Tokens with their parents, as in `types.Draft`, and how many sequences go through each."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    times: tuple[int, ...]


def prefix_tree(rows: NDArray[np.uint32], end: int, most: int) -> Trie:
    """The `most` most frequent beginnings of the rows, of all lengths; of equals the shorter.

    Args:
        rows: `[n, length]`, in lexicographic order.
        end: a number that ends a row; it is no token.

    Example:
        >>> prefix_tree(np.array([[1, 2], [1, 3], [1, 3], [4, 9]], np.uint32), 9, 3)
        Trie(tokens=(1, 3, 4), parents=(-1, 0, -1), times=(3, 2, 1))
    """
    count, length = rows.shape
    if not count or not length or most < 1:
        return Trie((), (), ())
    real = np.logical_and.accumulate(rows != end, axis=1)
    # A beginning of d tokens starts where it differs from the row before in one of its tokens.
    starts = np.ones((count, length), bool)
    np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1, out=starts[1:])
    first = np.maximum.accumulate(np.where(starts, np.arange(count)[:, None], 0), axis=0)
    found = []
    for depth in range(length):
        begins = np.flatnonzero(starts[:, depth])
        times = np.diff(begins, append=count)
        kept = real[begins, depth]
        found.append((times[kept], np.full(kept.sum(), depth), begins[kept]))
    times, depths, begins = (np.concatenate(part) for part in zip(*found, strict=True))
    # A parent is at least as frequent and shorter, so it is taken before its children.
    best = np.lexsort((begins, depths, -times))[:most]
    index: dict[tuple[int, int], int] = {}
    parents = []
    for number, (depth, row) in enumerate(zip(depths[best], begins[best], strict=True)):
        index[int(depth), int(row)] = number
        parents.append(index[int(depth) - 1, int(first[row, depth - 1])] if depth else ROOT)
    tokens = rows[begins[best], depths[best]]
    return Trie(tuple(tokens.tolist()), tuple(parents), tuple(times[best].tolist()))


def prefix_path(rows: NDArray[np.uint32], end: int, most: int) -> Trie:
    """The most frequent first token, then the most frequent one behind it, and so on.

    Of equally frequent ones the lowest. Arguments as for `prefix_tree`.

    Example:
        >>> prefix_path(np.array([[1, 2], [1, 3], [1, 3], [4, 9]], np.uint32), 9, 3).tokens
        (1, 3)
    """
    tokens: list[int] = []
    taken: list[int] = []
    for depth in range(min(most, rows.shape[1]) if len(rows) else 0):
        column = rows[:, depth]
        begins = np.flatnonzero(np.append(True, column[1:] != column[:-1]))
        times = np.diff(begins, append=len(column))
        times[column[begins] == end] = 0
        best = int(times.argmax())
        if not times[best]:
            break
        begin, number = int(begins[best]), int(times[best])
        rows = rows[begin : begin + number]
        tokens.append(int(column[begin]))
        taken.append(number)
    return Trie(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), tuple(taken))
