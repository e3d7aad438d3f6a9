"""What a user is told of long work, where there is no terminal to draw a bar on."""

import pytest

from paceline.cli.counting import counting, steps


@pytest.fixture
def lines(capsys):
    return lambda: capsys.readouterr().err.splitlines()


def test_every_tenth_of_the_way_is_told_and_the_end_is(lines):
    with counting(20) as step:
        for number in range(20):
            step(f"run {number}")
    assert lines() == [f"{done} of 20 runs" for done in range(2, 21, 2)]


def test_work_that_was_stopped_is_not_told_as_done(lines):
    with counting(10) as step:
        for number in range(4):
            step(f"run {number}")
    assert lines()[-1] == "3 of 10 runs"


def test_each_step_is_told_once(lines):
    with steps() as tell:
        for done in range(3):
            tell(done, 2, "measuring")
        tell(0, 1, "writing")
    assert lines() == ["measuring", "writing"]
