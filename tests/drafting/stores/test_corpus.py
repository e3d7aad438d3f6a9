"""A corpus with its suffixes in order, against scans; and what lies on disk."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafting.stores.corpus import DEPTH, MARK, Corpus, Found, suffix_order
from paceline.errors import InvalidInput

documents = st.lists(st.lists(st.integers(0, 2), max_size=20), max_size=5)


def places(corpus_documents: list[list[int]], gram: list[int]) -> list[int]:
    """Where a sequence begins, counted over all documents with a mark behind each."""
    found, start = [], 0
    for document in corpus_documents:
        found += [
            start + i
            for i in range(len(document) - len(gram) + 1)
            if document[i : i + len(gram)] == gram
        ]
        start += len(document) + 1
    return found


@given(documents)
def test_suffixes_are_in_order(some: list[list[int]]) -> None:
    tokens = [token for document in some for token in [*document, MARK]] + [MARK] * DEPTH
    order = suffix_order(np.array(tokens, np.uint32)).tolist()
    expected = sorted(
        (i for i, token in enumerate(tokens) if token != MARK),
        key=lambda i: (tokens[i : i + DEPTH], i),
    )
    assert order == expected


def test_long_repeats_are_in_order_too() -> None:
    tokens = [1, 2] * 100 + [7] * 70 + [MARK] * DEPTH
    order = suffix_order(np.array(tokens, np.uint32)).tolist()
    keys = [tokens[i : i + DEPTH] for i in order]
    assert keys == sorted(keys)
    assert len(order) == 270


@given(documents, st.lists(st.integers(0, 2), max_size=8), st.integers(1, 3), st.integers(0, 4))
def test_the_longest_suffix_that_occurs(
    some: list[list[int]], tail: list[int], shortest: int, more: int
) -> None:
    longest = shortest + more
    corpus = Corpus.of(some)
    assert len(corpus) == sum(map(len, some))
    found = corpus.find(tail, longest=longest, shortest=shortest)
    lengths = [n for n in range(shortest, min(longest, len(tail)) + 1) if places(some, tail[-n:])]
    if not lengths:
        assert found is None
        return
    assert found is not None
    assert found.length == max(lengths)
    gram = tail[-found.length :]
    assert found.last - found.first == len(places(some, gram))
    flat = [token for document in some for token in [*document, MARK]] + [MARK] * DEPTH
    behind = sorted(flat[i + len(gram) :][:4] for i in places(some, gram))
    assert corpus.continuations(found, 4, 1000).tolist() == behind
    sample = corpus.continuations(found, 4, 2).tolist()
    number = len(behind)
    assert sample == (behind if number <= 2 else [behind[0], behind[number // 2]])


def test_a_file_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    corpus = Corpus.of([[1, 2, 3, 70_000], [2, 3, 4]], {"tokenizer": "tiny", "fingerprint": "ab"})
    corpus.write(path)
    assert [item.name for item in tmp_path.iterdir()] == ["store"]
    again = Corpus.open(path)
    assert (len(again), again.highest, again.num_bytes) == (7, 70_000, corpus.num_bytes)
    assert again.about["tokenizer"] == "tiny"
    found = again.find([2, 3], longest=8, shortest=2)
    assert found == Found(2, found.first, found.last) if found else False
    assert again.continuations(found, 2, 10).tolist() == [[4, MARK], [70_000, MARK]]
    assert isinstance(again._tokens.base, np.memmap) or isinstance(again._tokens, np.memmap)


def test_nothing_is_a_corpus_too(tmp_path: Path) -> None:
    Corpus.of([]).write(tmp_path / "store")
    again = Corpus.open(tmp_path / "store")
    assert (len(again), again.highest) == (0, -1)
    assert again.find([1, 2], longest=4, shortest=1) is None


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(InvalidInput, match=r"cannot read the datastore .*: No such file"):
        Corpus.open(path)
    foreign = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    for data in (b"", b"a thesis of mine", struct.pack("<Q", len(foreign)) + foreign, b"\xff" * 99):
        path.write_bytes(data)
        with pytest.raises(InvalidInput, match="is not a datastore; build one with"):
            Corpus.open(path)
    with pytest.raises(InvalidInput, match="cannot read"):
        Corpus.open(tmp_path)
    with pytest.raises(InvalidInput, match="cannot write"):
        Corpus.of([[1]]).write(tmp_path / "nowhere" / "store")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Corpus.of([list(range(100))]).write(path)
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    for broken in (data[:-1], data[: 8 + size], data.replace(b"\xff" * 64, b"\0" * 64)):
        path.write_bytes(broken)
        with pytest.raises(InvalidInput, match="is damaged"):
            Corpus.open(path)
    head = json.loads(data[8 : 8 + size])
    begin, end = (8 + size + offset for offset in head["order"]["data_offsets"])
    path.write_bytes(data[:begin] + b"\xfe" * (end - begin) + data[end:])
    corpus = Corpus.open(path)
    with pytest.raises(InvalidInput, match="is damaged"):
        corpus.continuations(Found(1, 0, 1), 4, 10)
