"""Draft lengths, and drafters, as the arms of a bandit.

Source: BanditSpec, Hou et al. 2505.15141: UCBSpec, with its radius.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.checks import require_finite, require_int
from paceline.core.drafts import Budget, Outcome
from paceline.core.target import Opening
from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class BanditController:
    """Play each arm once, then the one of the greatest upper confidence bound of its reward.

    An arm is a draft length, or with several drafters a drafter with a length. The reward is the
    number of tokens of a round, over 1 + `cost` times the length. With `cost` 0, as in the paper,
    longer drafts look no dearer than short ones, which is right only between arms of one cost.

    Args:
        lengths: the draft lengths to choose from.
        num_draft_tokens: the greatest of them that is used.
        cost: of a draft token, in target passes.
        delta: the chance with which the bounds may fail.
        drafters: the names of the drafters to choose from, where there are several.

    Raises:
        InvalidInput: no lengths, or a setting outside its range.
    """

    name: ClassVar[str] = "bandit"

    lengths: tuple[int, ...] = (0, 1, 2, 4, 7)
    num_draft_tokens: int = 64
    cost: float = 0.1
    delta: float = 0.05
    drafters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: Any = self.lengths
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise InvalidInput(f"lengths must be a list of draft lengths; it is {given!r:.80}")
        require_int("num_draft_tokens", self.num_draft_tokens, low=0)
        for length in self.lengths:
            require_int("a draft length", length, low=0)
        used = sorted({length for length in self.lengths if length <= self.num_draft_tokens})
        if not used:
            raise InvalidInput(
                "lengths are empty, or all above num_draft_tokens; give at least one"
            )
        object.__setattr__(self, "lengths", tuple(used))
        object.__setattr__(self, "drafters", tuple(self.drafters))
        require_finite(self, "cost", self.cost, low=0.0)
        require_finite(self, "delta", self.delta, low=1e-12, high=1.0)

    def open(self, opening: Opening = Opening()) -> BanditSession:
        """See `protocols.Controller.open`."""
        return BanditSession(self)


def radius(plays: int, rounds: int, arms: int, span: float, delta: float) -> float:
    """(L / 2) sqrt((1 + n) / n^2 (1 + 2 log(K t^2 sqrt(1 + n) / delta))), span L, K arms, round t.

    >>> radius(4, 10, 2, 1.0, 0.05) > radius(9, 10, 2, 1.0, 0.05)
    True
    """
    inside = 1 + 2 * math.log(arms * rounds**2 * math.sqrt(1 + plays) / delta)
    return span / 2 * math.sqrt((1 + plays) / plays**2 * inside)


class BanditSession:
    """See `protocols.ControllerSession`."""

    def __init__(self, settings: BanditController) -> None:
        self._settings = settings
        names: tuple[str | None, ...] = settings.drafters or (None,)
        self._arms: list[tuple[str | None, int]] = [(None, 0)] if 0 in settings.lengths else []
        self._arms += [(name, n) for name in names for n in settings.lengths if n]
        self._plays = [0] * len(self._arms)
        self._rewards = [0.0] * len(self._arms)
        self._chosen = 0

    def budget(self) -> Budget:
        """See `protocols.ControllerSession.budget`."""
        if 0 in self._plays:
            self._chosen = self._plays.index(0)
        else:
            settings, rounds = self._settings, sum(self._plays) + 1
            span = max(self._reward(length + 1, length) for _, length in self._arms)
            bounds = [
                reward / plays + radius(plays, rounds, len(self._arms), span, settings.delta)
                for reward, plays in zip(self._rewards, self._plays, strict=True)
            ]
            self._chosen = max(range(len(bounds)), key=bounds.__getitem__)
        name, length = self._arms[self._chosen]
        return Budget(length, drafter=name)

    def observe(self, outcome: Outcome) -> None:
        """See `protocols.ControllerSession.observe`."""
        drafted = outcome.draft.max_path_length
        self._plays[self._chosen] += 1
        self._rewards[self._chosen] += self._reward(outcome.num_accepted_tokens + 1, drafted)

    def _reward(self, tokens: int, drafted: int) -> float:
        return tokens / (1 + self._settings.cost * drafted)
