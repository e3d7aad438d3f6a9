"""A state that can only go back to snapshots, against the list of all values it ever had."""

from __future__ import annotations

import random
from math import log2

import pytest

from paceline.targets.state.protocol import State
from paceline.targets.state.snapshots import SnapshotState


def fresh() -> SnapshotState[tuple[int, ...]]:
    return SnapshotState((), num_bytes=len)


@pytest.mark.parametrize("seed", range(20))
def test_any_history_holds_the_value_of_its_text(seed: int) -> None:
    """The value is the text itself, so that no other text can stand for it."""
    chance = random.Random(seed)
    state, text = fresh(), ()
    for _ in range(200):
        start, count = len(text), chance.randint(1, 5)
        new = tuple(chance.randrange(100) for _ in range(count))
        state.begin(start, start + count)
        assert state.at(start) == text
        written = [i for i in range(count) if chance.random() < 0.5 or i == count - 1]
        for i in written:
            state.write(start + i, state.at(start) + new[: i + 1])
        assert state.length == len(text), "nothing pending is committed"
        kept = chance.randint(0, count)
        reached = state.keep(range(start, start + kept))
        assert reached == (start + kept if kept - 1 in written else start)
        text = text[:start] + new[: reached - start]
        if chance.random() < 0.2:
            asked = chance.randint(0, len(text))
            reached = state.cut(asked)
            assert reached <= asked
            text = text[:reached]
        assert state.length == len(text)
        assert state.at(len(text)) == text


def test_a_path_of_a_tree_is_kept_by_its_last_node() -> None:
    state = fresh()
    state.begin(0, 3)
    for row, value in ((0, (7,)), (1, (7, 1)), (2, (7, 2))):
        state.write(row, value)
    assert state.keep([0, 2]) == 2
    assert state.at(2) == (7, 2)


def test_what_an_earlier_pass_wrote_is_never_kept_for_a_later_one() -> None:
    state = fresh()
    state.begin(0, 3)
    for row in range(3):
        state.write(row, (0,) * (row + 1))
    state.begin(0, 2)
    state.write(1, (5, 5))
    assert state.keep([0]) == 0, "row 0 is of the pass before"
    assert state.at(0) == ()


def test_rows_of_several_passes_are_kept_together() -> None:
    state = fresh()
    state.begin(0, 2)
    state.write(1, (1, 2))
    state.begin(2, 3)
    state.write(2, (*state.at(2), 3))
    assert state.length == 0
    assert state.keep(range(3)) == 3
    assert state.at(3) == (1, 2, 3)


def grown(count: int) -> SnapshotState[int]:
    state = SnapshotState(0, num_bytes=lambda value: 1)
    for row in range(count):
        state.begin(row, row + 1)
        state.write(row, row + 1)
        state.keep([row])
    return state


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_few_snapshots_are_held_and_few_tokens_run_again(count: int) -> None:
    assert grown(count).num_bytes <= 3 + 2 * log2(count + 1)
    for asked in range(count + 1):
        state = grown(count) if count < 1000 or asked % 97 == 0 else None
        if state is not None:
            reached = state.cut(asked)
            assert asked - reached <= count - asked, "no more are run again than were cut off"
            assert state.at(reached) == reached


def test_it_is_a_state() -> None:
    state: State = fresh()
    assert (state.length, state.num_bytes) == (0, 0)
