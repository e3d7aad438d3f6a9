"""What a training has come to, as far as it is not in tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.economics import stats
from paceline.economics.stats import AcceptanceCounts

PATIENCE = 5
"""Training ends after this many measurements in a row that are clearly worse than the best."""

CLEARLY_WORSE = 0.01
"""The share of the best acceptance length by which one is. A plateau is no reason to end: the fall
of the learning rate in the last steps often adds to it."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement.

    Args:
        step: the number of steps so far.
        losses: the means over the steps since the last one, by draft position.
        counts: acceptance on held-out text.
    """

    step: int
    losses: tuple[float, ...]
    counts: AcceptanceCounts

    @property
    def length(self) -> float:
        """The mean acceptance length."""
        return stats.mean_acceptance_length(self.counts) or 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "step": self.step,
            "losses": list(self.losses),
            "acceptance": self.counts.to_json(),
            "mean_acceptance_length": self.length,
        }


@dataclass(slots=True)
class Progress:
    """Where a run stands, besides its tensors.

    Args:
        step: steps taken.
        num_steps: steps that the learning rate is planned for; None where that is not known yet.
        tokens: answer tokens seen.
        seconds: time spent.
        curve: the weighted loss of each step.
        points: measurements.
        pending: losses by position of the steps since the last measurement.
    """

    step: int = 0
    num_steps: int | None = None
    tokens: int = 0
    seconds: float = 0.0
    curve: list[float] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    pending: list[list[float]] = field(default_factory=list)

    @property
    def best(self) -> Point | None:
        """The first of the best measurements."""
        return max(self.points, key=lambda point: point.length, default=None)

    @property
    def is_stale(self) -> bool:
        """Whether the drafter has been getting worse: it learns its answers by heart."""
        best, last = self.best, self.points[-PATIENCE:]
        if best is None or len(last) < PATIENCE:
            return False
        return all(point.length < (1 - CLEARLY_WORSE) * best.length for point in last)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "points": [point.to_json() for point in self.points]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Progress:
        """From the result of `to_json`."""
        points = [
            Point(
                one["step"],
                tuple(one["losses"]),
                AcceptanceCounts.from_json(one["acceptance"]),
            )
            for one in value["points"]
        ]
        return cls(**{**value, "points": points})
