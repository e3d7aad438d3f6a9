"""What is learnt of costs, from timings with known answers."""

from __future__ import annotations

import random

import pytest

from paceline.controllers.timing import DraftTimes, PassTimes, rising

TRUE = {1: 0.060, 2: 0.062, 4: 0.066, 6: 0.075}


def learnt(noise: float, spikes: float, seed: int = 0) -> PassTimes:
    chance, found = random.Random(seed), PassTimes()
    for number in range(120):
        rows = (6, 4, 1, 2, 6, 6)[number % 6]
        slow = 4 if chance.random() < spikes else 1
        found.observe(rows, TRUE[rows] * slow * (1 + noise * chance.uniform(-1, 1)))
    return found


def test_each_number_of_rows_has_its_time_despite_noise_and_spikes() -> None:
    found = learnt(0.05, 0.05)
    for rows, seconds in TRUE.items():
        assert found(rows) == pytest.approx(seconds, rel=0.04)
    assert TRUE[4] < found(5) < TRUE[6] * 1.02
    assert found(9) > found(6)


def test_more_rows_never_cost_less() -> None:
    found = PassTimes()
    for rows, seconds in ((1, 1.0), (3, 1.3), (5, 1.1), (6, 1.6)) * 4:
        found.observe(rows, seconds)
    times = [found(rows) for rows in range(1, 12)]
    assert times == sorted(times)


def test_a_machine_that_slows_down_slows_what_is_not_seen_as_well() -> None:
    found = learnt(0.0, 0.0)
    for _ in range(12):
        found.observe(6, 3 * TRUE[6])
    assert found(6) == pytest.approx(3 * TRUE[6], rel=0.02)
    assert found(1) == pytest.approx(3 * TRUE[1], rel=0.05)


def test_a_jump_behind_one_row_is_found_by_one_plain_pass() -> None:
    found = PassTimes()
    for _ in range(6):
        found.observe(5, 1.0)
    before = found(1)
    for _ in range(4):
        found.observe(1, 0.5)
    assert before > 0.8
    assert found(1) == pytest.approx(0.5, rel=0.15)
    assert found(5) == pytest.approx(1.0, rel=0.05)


def test_a_table_is_taken_as_it_is() -> None:
    found = PassTimes({1: 1.0, 5: 1.4})
    found.observe(1, 100.0)
    assert [round(found(rows), 9) for rows in (1, 3, 5, 7)] == [1.0, 1.2, 1.4, 1.6]
    assert PassTimes({1: 2.0})(2) == pytest.approx(2.06)


STEP = {1: 1.0, 6: 1.0, 7: 1.3, 16: 1.5}


def test_a_shape_that_is_known_beforehand_is_where_it_starts() -> None:
    found = PassTimes(shape=STEP)
    assert [round(found(rows), 9) for rows in (1, 4, 6, 7, 16)] == [1.0, 1.0, 1.0, 1.3, 1.5]
    assert found(19) == pytest.approx(1.5 + 3 * 0.5 / 15)
    found.observe(5, 0.1)  # one timing says how fast the machine is
    assert [found(rows) for rows in (1, 6, 7)] == pytest.approx([0.1, 0.1, 0.13], rel=0.03)


def test_a_shape_that_does_not_hold_is_corrected() -> None:
    found = PassTimes(shape=STEP)
    for _ in range(6):
        for rows in (1, 4, 8):
            found.observe(rows, TRUE.get(rows, 0.078))
    for rows, seconds in ((1, TRUE[1]), (4, TRUE[4]), (8, 0.078)):
        assert found(rows) == pytest.approx(seconds, rel=0.04)
    times = [found(rows) for rows in range(1, 20)]
    assert times == sorted(times)


def test_rising_is_the_least_squares_fit() -> None:
    assert rising([(3.0, 1.0), (1.0, 3.0), (2.0, 1.0)]) == [1.5, 1.5, 2.0]


def test_a_draft_has_a_start_and_a_cost_a_token() -> None:
    times, chance = DraftTimes(), random.Random(1)
    for number in range(40):
        tokens = (1, 4, 7)[number % 3]
        slow = 5 if chance.random() < 0.05 else 1
        times.observe(tokens, (0.004 + 0.016 * tokens) * slow, 0)
    assert times.token == pytest.approx(0.016, rel=0.12)
    assert times(7) == pytest.approx(0.116, rel=0.05)


def test_rounds_of_one_length_say_what_a_token_costs() -> None:
    times = DraftTimes()
    for _ in range(3):
        times.observe(4, 0.08, 0)
    assert times.token == pytest.approx(0.02, rel=0.15)
    assert times(4) == pytest.approx(0.08, rel=0.01)


def test_catching_up_is_no_part_of_a_usual_draft() -> None:
    times = DraftTimes()
    for tokens in (1, 4, 1, 4):
        times.observe(tokens, 0.02 * tokens, 0)
    times.observe(2, 0.04 + 0.5, 100)
    assert times(2) == pytest.approx(0.04, rel=0.1)
    assert times.catch_up == pytest.approx(0.005, rel=0.05)


def test_drafts_become_expensive_slowly_and_cheap_at_once() -> None:
    times = DraftTimes()
    for _ in range(20):
        times.observe(2, 0.2, 0)
    for _ in range(20):
        times.observe(2, 0.6, 0)
    assert times(2) < 0.2 * 1.03**20
    for _ in range(80):
        times.observe(2, 0.6, 0)
    assert times(2) == pytest.approx(0.6, rel=0.01)
    for _ in range(5):
        times.observe(2, 0.2, 0)
    assert times(2) < 0.26


def test_a_slow_moment_is_no_news_of_drafts() -> None:
    """In a burst the pass of the same round is slow as well; a disturbed pass says nothing."""
    passes = PassTimes()
    for _ in range(8):
        passes.observe(3, 1.0)
    passes.observe(3, 3.0)
    assert passes.undisturbed(0.6, 3, 3.0, 0.2) == pytest.approx(0.2, rel=0.02)
    assert passes.undisturbed(0.2, 3, 3.0, 0.2) == pytest.approx(0.2, rel=0.02)
    assert passes.undisturbed(0.6, 3, 1.0, 0.2) == pytest.approx(0.6, rel=0.02)


def test_one_disturbed_pass_rules_out_no_length() -> None:
    found = PassTimes()
    for _ in range(9):
        found.observe(1, 1.0)
        found.observe(3, 1.05)
    found.observe(5, 8.0)
    assert found(5) < 1.7


def test_what_was_refuted_is_forgotten() -> None:
    found = PassTimes()
    for rows, seconds in ((1, 1.0), (3, 3.0), (5, 3.3)) * 4:
        found.observe(rows, seconds)
    found.observe(3, 1.0)
    assert found(3) > 2
    found.forget(3, plain=1)
    assert found(3) < 1.2
    assert found(5) < 1.4
    assert found(1) == pytest.approx(1.0, rel=0.02)
