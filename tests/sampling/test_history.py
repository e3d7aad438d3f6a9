from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paceline.sampling.history import TokenCounts

tokens = st.lists(st.integers(0, 5), max_size=8)


@given(st.lists(tokens, max_size=5), tokens)
def test_counts_are_those_of_a_counter(rounds: list[list[int]], path: list[int]) -> None:
    counts = TokenCounts()
    text: list[int] = []
    for block in rounds:
        counts.add(block)
        text += block
        for extra in ([], path):
            ids, times = counts.with_path(extra)
            assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == Counter(text + extra)
            assert len(set(ids.tolist())) == len(ids)
