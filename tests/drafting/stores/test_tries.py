"""The most frequent beginnings of sequences, against counting every beginning."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafting.stores.tries import Trie, _largest, prefix_path, prefix_tree

END = 9
LENGTH = 4
rows_of = st.lists(
    st.lists(st.sampled_from([0, 1, 2, END]), min_size=LENGTH, max_size=LENGTH), max_size=20
)


def beginnings(rows: list[list[int]]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        real = row[: row.index(END)] if END in row else row
        found.update(tuple(real[: n + 1]) for n in range(len(real)))
    return found


def array_of(rows: list[list[int]]) -> np.ndarray:
    return np.array(sorted(rows), np.uint32).reshape(-1, LENGTH)


def paths(trie: Trie) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(trie.tokens, trie.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@given(rows_of, st.integers(0, 9))
def test_the_tree_holds_the_most_frequent_beginnings(rows: list[list[int]], most: int) -> None:
    counts = beginnings(rows)
    trie = prefix_tree(array_of(rows), END, most)
    expected = sorted(counts, key=lambda path: (-counts[path], len(path), path))[:most]
    assert paths(trie) == expected
    assert list(trie.times) == [counts[path] for path in expected]


@given(rows_of, st.integers(0, 6))
def test_the_path_follows_the_most_frequent_token(rows: list[list[int]], most: int) -> None:
    counts = beginnings(rows)
    path: tuple[int, ...] = ()
    while len(path) < min(most, LENGTH):
        longer = [other for other in counts if other[:-1] == path]
        if not longer:
            break
        path = min(longer, key=lambda other: (-counts[other], other))
    trie = prefix_path(array_of(rows), END, most)
    assert trie.tokens == path
    assert trie.parents == tuple(range(-1, len(path) - 1))
    assert trie.times == tuple(counts[path[: n + 1]] for n in range(len(path)))


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 9))
def test_the_largest_numbers_are_those_that_sorting_finds(numbers: list[int], most: int) -> None:
    places = [place for place, number in enumerate(numbers) if number]
    expected = sorted(places, key=lambda place: -numbers[place])[:most]
    assert _largest(np.array(numbers, np.intp), most).tolist() == expected
