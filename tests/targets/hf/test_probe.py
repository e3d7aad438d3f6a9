"""The measure of the probe, and the tokens that it takes; what it refuses is in test_hf.py."""

from __future__ import annotations

import pytest
import torch

from paceline.targets.hf.probe import LENGTH, distance, probe_tokens


@pytest.mark.parametrize("vocab_size", [2, 5, 64, 151_936])
def test_tokens_are_of_the_vocabulary_and_the_sequences_part_halfway(vocab_size: int) -> None:
    one, two = probe_tokens(vocab_size)
    assert len(one) == len(two) == LENGTH
    assert all(0 <= token < vocab_size for token in one + two)
    half = LENGTH // 2
    assert one[:half] == two[:half]
    if vocab_size >= 16:
        assert len({*one, *two}) == LENGTH + half


def test_distance_is_relative_to_the_spread_and_not_to_the_level() -> None:
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0])
    off = expected + torch.tensor([0.0, 0.0, 0.1, 0.0])
    assert distance(expected, expected) == 0
    assert distance(off, expected) == pytest.approx(0.1 / 5**0.5, rel=1e-4)
    assert distance(off + 50, expected + 50) == pytest.approx(0.1 / 5**0.5, rel=1e-3)
    assert distance(10 * off, 10 * expected) == pytest.approx(0.1 / 5**0.5, rel=1e-4)


def test_ruled_out_tokens_must_be_ruled_out_in_both() -> None:
    expected = torch.tensor([1.0, -torch.inf, 3.0])
    assert distance(expected.clone(), expected) == 0
    assert distance(torch.tensor([1.0, 0.0, 3.0]), expected) == torch.inf


def test_what_is_not_a_number_is_within_no_tolerance() -> None:
    expected = torch.tensor([1.0, 2.0, 3.0])
    assert not distance(torch.tensor([1.0, torch.nan, 3.0]), expected) <= 1e9
    assert not distance(expected, torch.full((3,), torch.nan)) <= 1e9
