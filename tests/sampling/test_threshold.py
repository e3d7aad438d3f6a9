"""The adaptive exit threshold of Draft & Verify, against values worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput
from paceline.sampling.threshold import Threshold, next_threshold

LONGEST = 8


def after(threshold: Threshold, accepted: int, drafted: int) -> Threshold:
    return next_threshold(threshold, accepted, drafted, reached_end=drafted == LONGEST)


def test_the_rounds_of_the_paper_s_rule() -> None:
    """m <- .5 m + .5 share; the goal is th + .01 where m < .9; th <- .9 th + .1 goal."""
    threshold, values, shares = Threshold(0.8), [], []
    for accepted, drafted in ((3, 4), (8, 8), (2, 5), (5, 5), (0, 1)):
        threshold = after(threshold, accepted, drafted)
        values.append(threshold.value)
        shares.append(threshold.acceptance)
    assert values == pytest.approx([0.801, 0.802, 0.803, 0.804, 0.805], abs=1e-12)
    assert shares == pytest.approx([0.375, 0.6875, 0.54375, 0.771875, 0.3859375], abs=1e-12)


def test_above_the_aim_it_stays_for_a_full_draft_and_falls_for_a_shorter_one() -> None:
    good = Threshold(0.8, 1.0)
    assert after(good, 8, 8) == good
    assert after(good, 5, 5).value == pytest.approx(0.799)
    assert after(Threshold(0.8, 0.8), 5, 5).value == pytest.approx(0.799), ".9 is not below .9"


def test_a_round_without_a_draft_changes_nothing() -> None:
    assert after(Threshold(0.4, 0.3), 0, 0) == Threshold(0.4, 0.3)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=300))
def test_it_stays_a_probability_and_moves_slowly(rounds: list[tuple[int, int]]) -> None:
    path = [Threshold(0.999)]
    for one, two in rounds:
        path.append(after(path[-1], min(one, two), max(one, two)))
    assert all(abs(b.value - a.value) <= 0.001 + 1e-12 for a, b in pairwise(path))


@pytest.mark.parametrize(("accepted", "drafted"), [(2, 1), (-1, 3)])
def test_impossible_rounds_are_refused(accepted: int, drafted: int) -> None:
    with pytest.raises(InvalidInput, match="cannot have been accepted"):
        after(Threshold(0.5), accepted, drafted)


@pytest.mark.parametrize("values", [(1.1, 0.0), (0.5, -0.1)])
def test_thresholds_are_probabilities(values: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match="at least 0 and at most 1"):
        Threshold(*values)
