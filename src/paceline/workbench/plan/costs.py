"""The time of passes and drafts on one machine: measured points, and interpolation.

In a pass over the new rows of several sequences, matrix products run over all rows at once, and
attention runs sequence by sequence. So the time is a curve over the total number of rows, plus a
part for the context of each sequence: `T(n) = max(reading, computing)` of the roofline model, but
measured (MagicDec, arXiv 2408.11049, section 3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.checks import reason_of, require_finite, require_int
from paceline.economics.curve import interpolated
from paceline.errors import InvalidInput
from paceline.workbench.plan.memory import ModelMemory


@dataclass(frozen=True, slots=True)
class PassTime:
    """One measured shape of pass.

    Args:
        rows: new rows of each sequence, k + 1 for a chain of k.
        batch: the number of sequences.
        context: cached tokens of each.
        seconds: the median time.
        spread: half the distance between the quartiles, as a share of the median.
    """

    rows: int
    batch: int
    context: int
    seconds: float
    spread: float = 0.0

    def __post_init__(self) -> None:
        for name in ("seconds", "spread"):
            require_finite(self, name, getattr(self, name), low=0.0)
        for name in ("rows", "batch", "context"):
            require_int(name, getattr(self, name), low=0)
        if self.rows < 1 or self.batch < 1 or not self.seconds > 0:
            raise InvalidInput(
                f"a measured pass needs at least 1 row, 1 sequence and a time above 0; it is {self}"
            )


@dataclass(frozen=True)
class PassCosts:
    """The time of a target pass of any shape, from measured ones.

    Args:
        points: at least one of a single row and a single sequence.

    Raises:
        InvalidInput: there is no such point.

    Example:
        >>> costs = PassCosts((PassTime(1, 1, 200, 0.06), PassTime(5, 1, 200, 0.07)))
        >>> round(costs.seconds(3), 4), round(costs.seconds(9), 4)
        (0.065, 0.08)
    """

    points: tuple[PassTime, ...]

    def __post_init__(self) -> None:
        if not any(point.rows == point.batch == 1 for point in self.points):
            raise InvalidInput(
                "the costs of passes need at least the time of a pass over one row of one "
                "sequence; measure them again"
            )

    @cached_property
    def context(self) -> int:
        """The context at which the curve over rows was measured: the shortest."""
        return min(point.context for point in self.points if point.batch == 1)

    @cached_property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """(rows, seconds) of one sequence at the shortest context, made non-decreasing."""
        times = {
            point.rows: point.seconds
            for point in self.points
            if point.batch == 1 and point.context == self.context
        }
        rows = sorted(times)
        return tuple(zip(rows, _rising([times[n] for n in rows]), strict=True))

    @cached_property
    def seconds_per_context_token(self) -> tuple[tuple[int, float], ...]:
        """(rows, seconds): the time that a cached token adds to a pass; 0 if unknown."""
        found = {}
        for point in self.points:
            if point.batch == 1 and point.context > self.context:
                base = interpolate(self.curve, point.rows)
                found[point.rows] = max(0.0, point.seconds - base) / (point.context - self.context)
        return tuple(sorted(found.items())) or ((1, 0.0),)

    @cached_property
    def seconds_per_sequence(self) -> float:
        """The time that each further sequence adds to a pass, apart from its rows and context."""
        extra = [
            (point.seconds - self._rows_and_context(point.rows, point.batch, point.context))
            / (point.batch - 1)
            for point in self.points
            if point.batch > 1
        ]
        return max(0.0, sorted(extra)[len(extra) // 2]) if extra else 0.0

    @property
    def spread(self) -> float:
        """The typical deviation of a measured time, as a share of its median."""
        spreads = sorted(point.spread for point in self.points)
        return spreads[len(spreads) // 2]

    def seconds(self, rows: float, batch: int = 1, context: int | None = None) -> float:
        """The time of a pass over `rows` new rows of each of `batch` sequences."""
        at = self.context if context is None else context
        return self._rows_and_context(rows, batch, at) + (batch - 1) * self.seconds_per_sequence

    def _rows_and_context(self, rows: float, batch: int, context: int) -> float:
        slope = interpolate(self.seconds_per_context_token, rows, extend=False)
        return interpolate(self.curve, rows * batch) + batch * slope * (context - self.context)

    def free_rows(self, tolerance: float = 0.1) -> int:
        """The most rows for which a pass takes at most `1 + tolerance` times one row's time.

        Up to there reading the weights takes longer than arithmetic: the ridge of the roofline.
        """
        limit = (1 + tolerance) * self.curve[0][1]
        last = self.curve[-1][0]
        return max(n for n in range(1, last + 1) if n == 1 or interpolate(self.curve, n) <= limit)


@dataclass(frozen=True, slots=True)
class MethodCosts:
    """The time of a drafter and of the rest of a round, in seconds per round of one sequence.

    Args:
        draft_fixed, draft_per_token: the time of a draft of k tokens is
            `draft_fixed + draft_per_token * k`.
        rest: verification and everything else of a round.
        rows_per_token: rows of a pass for each token on a path: above 1 for trees.
    """

    draft_fixed: float = 0.0
    draft_per_token: float = 0.0
    rest: float = 0.0
    rows_per_token: float = 1.0

    def __post_init__(self) -> None:
        for name in ("draft_fixed", "draft_per_token", "rest", "rows_per_token"):
            require_finite(self, name, getattr(self, name), low=0.0)

    def draft(self, num_draft_tokens: float) -> float:
        """The time of one draft; 0 for a round without one."""
        if num_draft_tokens <= 0:
            return 0.0
        return self.draft_fixed + self.draft_per_token * num_draft_tokens


@dataclass(frozen=True)
class Costs:
    """Everything that was measured on one machine for one target.

    Args:
        model: the target's name.
        passes: of the target.
        methods: the costs of each method, by name.
        memory: bytes, see `plan.memory`.
        drafts: the draft model of each method: name, storage and head_tokens; None if it has
            none.
        environment: machine, versions, commit.
    """

    model: str
    passes: PassCosts
    methods: Mapping[str, MethodCosts] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    drafts: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "model": self.model,
            "passes": [asdict(point) for point in self.passes.points],
            "methods": {name: asdict(costs) for name, costs in self.methods.items()},
            "memory": dict(self.memory),
            "drafts": dict(self.drafts),
            "environment": dict(self.environment),
        }

    @classmethod
    def read(cls, path: Path) -> Costs:
        """Read a file that holds the result of `to_json`.

        Raises:
            InvalidInput: the file is missing, or holds something else.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidInput(f"cannot read the costs in {path}: {reason_of(error)}") from None
        try:
            parts = ("methods", "memory", "drafts", "environment")
            if not isinstance(found["model"], str) or not all(
                isinstance(found.get(part, {}), Mapping) for part in parts
            ):
                raise TypeError("the model must be a name, and the rest mappings")
            return cls(
                model=found["model"],
                passes=PassCosts(tuple(PassTime(**point) for point in found["passes"])),
                methods={name: MethodCosts(**item) for name, item in found["methods"].items()},
                memory={
                    name: asdict(ModelMemory(**item))
                    for name, item in found.get("memory", {}).items()
                },
                drafts=found.get("drafts", {}),
                environment=found.get("environment", {}),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"{path} holds no measured costs ({type(error).__name__}: {error}); write them "
                "with `paceline plan --model ... --save-costs FILE`"
            ) from None


def interpolate(curve: Sequence[tuple[int, float]], at: float, *, extend: bool = True) -> float:
    """Linear between the points; beyond the last one extrapolated from the last two, or constant.

    >>> interpolate([(1, 10.0), (3, 20.0)], 2), interpolate([(1, 10.0), (3, 20.0)], 5)
    (15.0, 30.0)
    """
    places, values = zip(*curve, strict=True)
    slope = 0.0
    if extend and len(curve) > 1:
        slope = (values[-1] - values[-2]) / (places[-1] - places[-2])
    return interpolated(places, values, at, slope)


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest non-decreasing sequence, by least squares."""
    from scipy.optimize import isotonic_regression

    return [float(value) for value in isotonic_regression(values).x]
