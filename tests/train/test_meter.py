"""Rates and the time left, on a clock of the test's own."""

from __future__ import annotations

from paceline.train.meter import RECENT_S, Meter


def test_rates_and_the_time_left() -> None:
    now = 100.0
    meter = Meter("training", "steps", lambda: now, done=10)
    assert meter.at(20, None).tokens_per_second is None
    assert meter.at(20, None).seconds_left is None
    now = 110.0
    meter.add(5, 1000)
    at = meter.at(20, None, "well")
    assert (at.done, at.total, at.tokens_per_second, at.seconds_left) == (15, 20, 100.0, 10.0)
    assert at.note == "well"
    assert meter.at(20, 114.0).seconds_left == 4.0
    assert meter.at(12, 114.0).seconds_left == 0.0


def test_the_rate_is_the_recent_one() -> None:
    now = 0.0
    meter = Meter("capture", "tokens", lambda: now)
    for _ in range(50):
        now += 10
        meter.add(1, 1)
    for _ in range(5):
        now += 10
        meter.add(10, 10)
    assert meter.at(10**6, None).tokens_per_second == 1.0
    assert RECENT_S == 30.0
