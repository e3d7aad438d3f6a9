"""The contract of every controller, checked in one call."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any

from paceline.core.drafts import Budget, Draft, Outcome
from paceline.core.protocols import Controller, ControllerSession
from paceline.errors import ContractViolation


class ControllerRule(StrEnum):
    """The rules that `check_controller` checks; its errors name one of them."""

    NAME = "name"
    """It has a name."""
    BUDGET = "budget"
    """A session gives a `Budget` with non-negative integers and with bounds within [0, 1]."""
    PAST = "past"
    """A budget depends on the past only: the same outcomes lead to the same budgets."""
    ISOLATION = "isolation"
    """Sessions are independent of each other, earlier or concurrent."""
    FAILURE = "failure"
    """No error on possible outcomes: empty drafts, drafts cut short by the end of the context,
    trees, drafts without confidence, times of zero."""


Past = Callable[[Budget, int], Outcome]
"""From a budget and the number of the round to its outcome."""


def check_controller(controller: Controller, *, rounds: int = 60) -> None:
    """Check a controller against its contract; returns if it keeps every rule of `ControllerRule`.

    Args:
        controller: the plug-in.
        rounds: the rounds of each scripted sequence.

    Raises:
        ContractViolation: a rule is broken; the message names it.

    Example:
        >>> from paceline.controllers.fixed import FixedController
        >>> check_controller(FixedController(4))
    """
    if not isinstance(getattr(controller, "name", None), str) or not controller.name:
        raise _broken(ControllerRule.NAME, f"its name is {getattr(controller, 'name', None)!r}")
    pasts = [_past(kind) for kind in ("good", "bad", "mixed", "empty", "bare", "tree", "tight")]
    alone = [_budgets(controller, past, rounds) for past in pasts]
    for past, budgets in zip(pasts, alone, strict=True):
        if _budgets(controller, past, rounds) != budgets:
            raise _broken(ControllerRule.PAST, "the same outcomes led to different budgets")
    together = [islice(_play(controller, past), rounds) for past in pasts]
    if list(zip(*together, strict=True)) != list(zip(*alone, strict=True)):
        raise _broken(ControllerRule.ISOLATION, "next to others a session gave different budgets")


def _budgets(controller: Controller, past: Past, rounds: int) -> list[Budget]:
    return list(islice(_play(controller, past), rounds))


def _play(controller: Controller, past: Past) -> Iterator[Budget]:
    session: ControllerSession = _guarded(controller.open)
    number = 0
    while True:
        budget = _guarded(session.budget)
        _check(budget)
        yield budget
        _guarded(partial(session.observe, past(budget, number)))
        number += 1


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise _broken(ControllerRule.FAILURE, f"it raised {error!r}") from error


def _check(budget: Any) -> None:
    if not isinstance(budget, Budget):
        raise _broken(ControllerRule.BUDGET, f"it gave {budget!r:.80}")
    counts = [budget.num_draft_tokens, 0 if budget.max_nodes is None else budget.max_nodes]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise _broken(
            ControllerRule.BUDGET, f"its lengths must be non-negative integers; it gave {budget}"
        )
    shares = (
        budget.min_confidence,
        budget.entropy_bound,
        budget.min_path_confidence,
        budget.min_first_confidence,
    )
    if not all(0 <= share <= 1 for share in shares):
        raise _broken(ControllerRule.BUDGET, f"its bounds must lie within [0, 1]: {budget}")
    if budget.fallback is not None:
        _check(budget.fallback)


def _past(kind: str) -> Past:
    """The outcomes of rounds: a function of only the budget and the number of the round."""

    def outcome(budget: Budget, number: int) -> Outcome:
        chance = random.Random(f"{kind} {number}")
        asked = budget.within(number % 3 if kind == "tight" else 1000)
        n = 0 if kind == "empty" else min(asked.longest, 40)
        parents = None
        if kind == "tree" and n > 1:
            parents = (-1, -1, *range(1, n - 1))
        confidence = None if kind == "bare" else tuple(chance.random() for _ in range(n))
        draft = Draft((0,) * n, parents, confidence=confidence, drafter=asked.drafter)
        length = draft.max_path_length
        share = {"good": 1.0, "bad": 0.0, "tree": 0.5, "tight": 1.0}.get(kind, chance.random())
        accepted = round(length * share)
        seconds = 0.0 if kind == "bare" else chance.uniform(0.5, 2)
        return Outcome(
            asked,
            draft,
            accepted,
            min(accepted + 1, length),
            0.1 * n * seconds,
            seconds,
            0.01 * seconds,
            1 + number % 4,
            (1 + number % 4) * draft.num_rows,
            10 + number,
        )

    return outcome


def _broken(rule: ControllerRule, what: str) -> ContractViolation:
    return ContractViolation(f"the controller breaks the rule {rule.value!r}: {what}")
