"""Acceptance profiles: conditional and unconditional rates, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.economics.acceptance import AcceptanceProfile, as_profile
from paceline.errors import InvalidInput


def test_unconditional_rates_are_running_products() -> None:
    profile = AcceptanceProfile((0.9, 0.8, 0.5))
    assert profile.unconditional(3) == pytest.approx((0.9, 0.72, 0.36))
    assert profile.unconditional(2) == pytest.approx((0.9, 0.72))
    assert profile.unconditional(0) == ()


def test_beyond_fills_the_later_positions() -> None:
    profile = AcceptanceProfile((0.9, 0.8), beyond=0.5)
    assert profile.conditional(1) == (0.9,)
    assert profile.conditional(4) == (0.9, 0.8, 0.5, 0.5)


def test_the_horizon() -> None:
    assert AcceptanceProfile((0.9, 0.8)).horizon == 2
    assert AcceptanceProfile((0.9, 0.8), beyond=0.5).horizon is None
    assert AcceptanceProfile.constant(0.5).horizon is None


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_from_unconditional_inverts_unconditional(rates: list[float]) -> None:
    profile = AcceptanceProfile(tuple(rates))
    back = AcceptanceProfile.from_unconditional(profile.unconditional(len(rates)))
    assert back.rates == pytest.approx(profile.rates, rel=1e-12)


def test_positions_that_are_never_reached() -> None:
    profile = AcceptanceProfile.from_unconditional([0.5, 0.0, 0.0])
    assert profile.rates == (0.5, 0.0, 0.0)


def test_as_profile() -> None:
    profile = AcceptanceProfile((0.5,))
    assert as_profile(profile) is profile
    assert as_profile(0.5) == AcceptanceProfile.constant(0.5)
    assert as_profile([0.5]) == profile


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (AcceptanceProfile, "at least one draft position, got none"),
        (lambda: AcceptanceProfile((0.5, 1.5)), "position 1 to be from 0 to 1, got 1.5"),
        (lambda: AcceptanceProfile.constant(-0.5), "from 0 to 1, got -0.5"),
        (lambda: AcceptanceProfile.from_unconditional([0.5, 0.6]), "0.6 at position 1 after 0.5"),
        (lambda: AcceptanceProfile.from_unconditional([0.5, -1]), "position 1 to be from 0 to 1"),
        (lambda: AcceptanceProfile((0.5,)).conditional(3), r"at most 1 draft tokens, .* got 3"),
        (lambda: AcceptanceProfile((0.5,)).unconditional(-1), "0 or more, got -1"),
    ],
)
def test_bad_rates_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()
