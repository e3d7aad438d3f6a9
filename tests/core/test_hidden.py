"""Which hidden states are asked for, and what can be done with those that come."""

from __future__ import annotations

import pytest
import torch

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.target import Need, TargetInfo
from paceline.errors import InvalidInput


def test_layers_are_a_set_in_order() -> None:
    assert Hidden((5, 0, 5)) == Hidden((0, 5))
    assert Hidden(final=True).layers == ()


@pytest.mark.parametrize("layers", [(), (-1, 2)])
def test_what_names_no_state_is_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"names no state|counted from 0"):
        Hidden(layers)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Hidden((3,)), "hidden states 3"),
        (Hidden((1, 2)), "hidden states 1, 2"),
        (Hidden((0, 1, 2, 7), final=True), "hidden states 0 to 2, 7, final"),
        (Hidden(final=True), "hidden states final"),
    ],
)
def test_in_words(asked: Hidden, words: str) -> None:
    assert str(asked) == words


def test_what_is_lacking_is_told_in_words() -> None:
    info = TargetInfo("toy", 8, gives=frozenset({Need.LOGITS, Hidden.all(3)}))
    assert info.lacks({Need.LOGITS, Hidden((0, 3), final=True)}) == []
    assert info.lacks({Need.HEAD, Hidden((4,))}) == ["head", "hidden states 4"]
    assert TargetInfo("toy", 8).lacks({Hidden(final=True)}) == ["hidden states final"]
    only = TargetInfo("toy", 8, gives=frozenset({Hidden((1,))}))
    assert only.lacks({Hidden((1,), final=True)}) == ["hidden states 1, final"]


def test_states_are_chosen_and_joined_by_rows() -> None:
    whole = HiddenStates({0: torch.arange(10).view(5, 2), 2: torch.ones(5, 2)}, torch.zeros(5, 2))
    assert whole.num_rows == 5
    parts = [whole.rows([0, 1]), whole.rows(slice(2, 5))]
    joined = HiddenStates.join(parts)
    assert torch.equal(joined.layers[0], whole.layers[0])
    assert joined.final is not None
    assert joined.final.shape == (5, 2)
    less = joined.only(Hidden((2,)))
    assert (set(less.layers), less.final) == ({2}, None)


def test_chosen_rows_hold_no_memory_of_the_others() -> None:
    """A drafter may keep a few rows of a long pass."""
    whole = HiddenStates({0: torch.zeros(1000, 2)})
    assert whole.rows([3]).layers[0].untyped_storage().nbytes() == 8
