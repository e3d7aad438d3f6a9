"""`check_controller` passes what is right and catches each broken rule, planted here one by one."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.controllers.auto import AutoController
from paceline.core.drafts import Budget, Outcome
from paceline.core.target import Opening
from paceline.errors import ContractViolation
from paceline.testing import ControllerRule, check_controller


class Session:
    def __init__(self, lengths: Any) -> None:
        self.lengths, self.heard = lengths, 0

    def budget(self) -> Any:
        return self.lengths(self.heard)

    def observe(self, outcome: Outcome) -> None:
        self.heard += 1


class Planted:
    def __init__(self, lengths: Any, name: Any = "planted") -> None:
        self.lengths, self.name = lengths, name

    def open(self, opening: Opening = Opening()) -> Session:
        return Session(self.lengths)


class Shared(Planted):
    """One session for all."""

    def __init__(self) -> None:
        super().__init__(lambda heard: Budget(heard % 11))
        self.session = Session(self.lengths)

    def open(self, opening: Opening = Opening()) -> Session:
        return self.session


class Counting(Planted):
    """Its sessions share a counter that starts again with each new one."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked = 0

    def open(self, opening: Opening = Opening()) -> Session:
        self.asked = 0

        def lengths(heard: int) -> Budget:
            self.asked += 1
            return Budget(self.asked % 5)

        return Session(lengths)


class Deaf(Planted):
    def open(self, opening: Opening = Opening()) -> Session:
        class Raising(Session):
            def observe(self, outcome: Outcome) -> None:
                assert outcome.draft.confidence is not None

        return Raising(self.lengths)


def test_what_is_right_passes() -> None:
    check_controller(Planted(lambda heard: Budget(heard % 4)))
    check_controller(AutoController(drafters=("one", "two")))


@pytest.mark.parametrize(
    ("controller", "rule"),
    [
        (Planted(lambda heard: Budget(3), name=""), ControllerRule.NAME),
        (Planted(lambda heard: 3), ControllerRule.BUDGET),
        (Planted(lambda heard: Budget(-1)), ControllerRule.BUDGET),
        (Planted(lambda heard: Budget(2.0)), ControllerRule.BUDGET),  # type: ignore[arg-type]
        (Planted(lambda heard: Budget(2, min_confidence=1.5)), ControllerRule.BUDGET),
        (Planted(lambda heard: Budget(2, fallback=Budget(-2))), ControllerRule.BUDGET),
        (Shared(), ControllerRule.PAST),
        (Counting(), ControllerRule.ISOLATION),
        (Deaf(lambda heard: Budget(3)), ControllerRule.FAILURE),
    ],
    ids=lambda value: value.value if isinstance(value, ControllerRule) else type(value).__name__,
)
def test_each_broken_rule_is_found(controller: Any, rule: ControllerRule) -> None:
    with pytest.raises(ContractViolation, match=f"'{rule.value}'"):
        check_controller(controller)
