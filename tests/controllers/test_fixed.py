from __future__ import annotations

from typing import Any

import pytest

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Budget, Draft, Outcome
from paceline.errors import InvalidInput


def test_the_budget_is_the_same_in_every_round() -> None:
    session = FixedController(3).open()
    for accepted in (0, 2):
        assert session.budget() == Budget(3)
        session.observe(
            Outcome(Budget(3), Draft((1, 2, 3)), accepted, accepted + 1, 0.1, 0.2, 0.01, 1, 4, 9)
        )
    assert session.budget() == Budget(3)


@pytest.mark.parametrize("value", [-1, 2.5, "3", True, None])
def test_a_length_that_is_no_count_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="num_draft_tokens"):
        FixedController(value)
