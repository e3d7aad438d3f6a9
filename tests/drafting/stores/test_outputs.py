"""The store of past outputs: what it holds, what it forgets, what lies on disk."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from threading import Thread

import pytest

from paceline.core.target import TargetInfo
from paceline.drafting.stores.outputs import MAGIC, PastOutputs
from paceline.drafting.stores.suffixes import matches, occurrences
from paceline.errors import InvalidInput


def times(store: PastOutputs, *gram: int) -> int:
    """How often the store has seen a sequence."""
    with store.lock:
        found = dict(matches(store.parts, gram)).get(len(gram))
        return 0 if found is None else occurrences(store.parts, found)


def test_the_oldest_go_first_and_memory_is_bounded() -> None:
    store = PastOutputs(capacity=12)
    for first in range(10):
        store.add([first, 50, 51])
        assert len(store) <= 12
        assert times(store, first, 50) == 1
    assert [first for first in range(10) if times(store, first, 50)] == [6, 7, 8, 9]
    assert sum(len(part.length) for part in store.parts) <= 2 * 12 + 2
    store.add(range(100, 200))
    assert times(store, 193) == 0
    assert times(store, *range(194, 200)) == 1


def test_outputs_do_not_run_into_one_another() -> None:
    store = PastOutputs()
    store.add([1, 2])
    store.add([3, 4])
    store.add([])
    assert times(store, 2, 3) == 0
    assert (times(store, 1, 2), times(store, 3, 4)) == (1, 1)


def test_a_file_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "outputs"
    for first in range(3):
        store = PastOutputs(path)
        store.add([first, 8, 9])
        assert len(store) == 3 * (first + 1)
    assert times(PastOutputs(path), 8, 9) == 3
    assert len(PastOutputs(path, capacity=7)) == 6


def test_two_stores_write_to_one_file(tmp_path: Path) -> None:
    one, two = PastOutputs(tmp_path / "outputs"), PastOutputs(tmp_path / "outputs")
    one.add([1, 2])
    two.add([3, 4])
    one.add([5, 6])
    assert len(PastOutputs(tmp_path / "outputs")) == 6


def test_the_file_is_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "outputs"
    for _ in range(50):
        PastOutputs(path, capacity=20).add([1, 2, 3, 4])
    assert path.stat().st_size < len(MAGIC) + 24 * (2 * 20 / 4 + 2)


@pytest.mark.parametrize("cut", [1, 5, 9, 15])
def test_a_process_that_died_while_it_wrote_costs_its_output_alone(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "outputs"
    store = PastOutputs(path)
    store.add([1, 2])
    store.add([3, 4])
    os.truncate(path, path.stat().st_size - cut)
    again = PastOutputs(path)
    assert len(again) == 2
    again.add([5, 6])
    assert [len(PastOutputs(path)), times(PastOutputs(path), 5, 6)] == [4, 1]


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "outputs"
    path.write_text("my thesis")
    with pytest.raises(InvalidInput, match="is not a store of past outputs; give another path"):
        PastOutputs(path)
    assert path.read_text() == "my thesis"
    with pytest.raises(InvalidInput, match="cannot use"):
        PastOutputs(tmp_path)


def test_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "outputs"
    store = PastOutputs(path)
    store.add([1, 2, 3])
    store.add([4, 5, 6])
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 9] ^= 1
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=rf"is damaged at byte {len(MAGIC)}; remove it"):
        PastOutputs(path)


def test_an_answer_does_not_fail_where_its_output_cannot_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "outputs"
    store = PastOutputs(path)
    path.unlink()
    path.mkdir()
    with caplog.at_level(logging.WARNING, logger="paceline"):
        store.add([1, 2])
    assert "the output was not stored: cannot write" in caplog.text
    assert times(store, 1, 2) == 1


def test_threads_share_one(tmp_path: Path) -> None:
    store = PastOutputs(tmp_path / "outputs", capacity=10_000)

    def work(first: int) -> None:
        for i in range(30):
            store.add([first, 100 + i, 7])
            assert times(store, first) == i + 1

    threads = [Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [times(store, first) for first in range(4)] == [30] * 4
    assert times(store, 7) == times(PastOutputs(tmp_path / "outputs"), 7) == 120


def test_another_vocabulary_is_refused() -> None:
    store = PastOutputs()
    store.check(TargetInfo("small", 1))
    store.add([3, 10])
    store.check(TargetInfo("table", 11))
    with pytest.raises(InvalidInput, match="holds token 10; the vocabulary of table is 0 to 9"):
        store.check(TargetInfo("table", 10))
