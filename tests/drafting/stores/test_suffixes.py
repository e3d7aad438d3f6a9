"""Counts of continuations against a scan of the texts."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafting.stores.suffixes import MANY, SuffixCounts, followers, matches, occurrences

DEPTH = 5
texts = st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=4)


def places(gram: tuple[int, ...], text: list[int]) -> list[int]:
    n = len(gram)
    return [i + n for i in range(len(text) - n + 1) if tuple(text[i : i + n]) == gram]


def part_of(some: list[list[int]], clock: int = 0) -> SuffixCounts:
    counts = SuffixCounts(DEPTH, clock)
    for text in some:
        counts.begin()
        counts.extend(text)
    return counts


@given(texts, texts, st.booleans(), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_every_sequence_is_counted_as_a_scan_counts_it(
    older: list[list[int]], newer: list[list[int]], both: bool, share: float
) -> None:
    parts = [part_of(older)]
    if both:
        parts.append(part_of(newer, parts[0].clock))
    everything = [*older, *newer] if both else older
    starts = [sum(map(len, everything[:i])) for i in range(len(everything))]
    for n in range(1, DEPTH):
        for gram in product(range(3), repeat=n):
            total = sum(len(places(gram, text)) for text in everything)
            found = dict(matches(parts, gram))
            assert (n in found) == (total > 0)
            if not total:
                continue
            assert occurrences(parts, found[n]) == total
            expected = []
            for token in range(3):
                ends = [
                    start + place
                    for start, text in zip(starts, everything, strict=True)
                    for place in places((*gram, token), text)
                ]
                if ends and len(ends) >= share * total:
                    expected.append((-len(ends), -max(ends), token))
            told = [(f.token, f.times) for f in followers(parts, found[n], share)]
            assert told == [(token, -count) for count, _, token in sorted(expected)]


@given(texts, st.lists(st.integers(0, 2), min_size=1, max_size=DEPTH))
def test_matches_name_the_longest_length_of_each_answer(
    some: list[list[int]], tail: list[int]
) -> None:
    """Every length that is left out has the occurrences of the next longer one that is not."""
    found = matches([part_of(some)], tail)
    ends = {}
    for length in range(1, len(tail) + 1):
        gram = tuple(tail[-length:])
        ends[length] = [(i, p) for i, text in enumerate(some) for p in places(gram, text)]
    occurring = [length for length in ends if ends[length]]
    expected = [
        length for length in reversed(occurring) if ends[length] != ends.get(length + 1, [])
    ]
    assert [length for length, _ in found] == expected


@pytest.mark.parametrize("seed", range(200))
def test_what_is_remembered_of_many_followers_misses_none(seed: int) -> None:
    """Against counting every pair, while the text grows and rare followers become frequent."""
    rng = random.Random(seed)
    counts, pairs, last = SuffixCounts(DEPTH), Counter[int](), -1
    looks, asked = set(), 0
    bursts = [[token] for token in range(10, 20 + MANY)]
    bursts += [[rng.randrange(1, 40)] * rng.choice([1, 1, 2, 3, 4, 50]) for _ in range(60)]
    for burst in bursts:
        # A 0 before each token, and often one that has no follower yet when the question comes.
        text = [x for token in burst for x in (0, token)][1 if last == 0 else 0 :]
        for put in [*text, 0] if rng.random() < 0.5 else text:
            counts.extend([put])
            pairs[put] += last == 0
            last = put
        share = rng.choice([0.05, 0.1, 0.3])
        ((_, node),) = matches([counts], [0])
        told = {f.token: f.times for f in followers([counts], node, share)}
        least = share * occurrences([counts], node)
        assert told == {token: n for token, n in pairs.items() if n and n >= least}
        looks.add(counts._known.get(node[0], (0, 0))[1])
        asked += 1
    assert len(pairs) > MANY
    assert len(looks) < 0.5 * asked


def test_growing_in_pieces_is_growing_at_once() -> None:
    text = [i * i % 7 for i in range(200)]
    whole, pieces = part_of([text]), SuffixCounts(DEPTH)
    for i in range(0, 200, 3):
        pieces.extend(text[i : i + 3])
    assert whole.count == pieces.count
    assert whole.link == pieces.link


def test_there_are_at_most_two_states_a_token() -> None:
    for text in ([0] * 300, [0, 1] * 150, [i * i % 11 for i in range(300)]):
        assert len(part_of([text]).length) <= 2 * len(text)
