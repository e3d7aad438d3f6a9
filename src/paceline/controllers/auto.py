"""Draft as far as it pays, and not at all where it does not: the default.

The long-run speed of a policy is E[tokens of a round] / E[time of a round] (renewal reward), so
each round takes the length that makes this greatest under what is known: acceptance by position
from the drafts so far, the time of a target pass by its rows and of a draft by its tokens from the
clock or from a table. Where the best speed lambda is known, a draft should go on after a token
while the next one is worth its time: P(path accepted) * acceptance > lambda * (step + row). This
threshold goes to the drafter as a confidence. The objective over k is that of Leviathan et al.
2211.17192, equation 3.8, with measured costs, 0 among the lengths; "goodput" in SmartSpec, Liu et
al. 2406.14066; the threshold is optimal stopping with lambda as price, Dinkelbach 1967.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.checks import require_finite, require_int
from paceline.controllers.auto_session import AutoSession, DrafterState
from paceline.controllers.costs import CostTable, by_drafter, by_rows, of_drafter
from paceline.controllers.policy import Arm
from paceline.controllers.reading import Reader
from paceline.controllers.timing import DraftTimes, PassTimes
from paceline.core.target import Opening
from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class AutoController:
    """Choose each draft length, zero included, by estimated acceptance and measured costs.

    Nothing is carried from one sequence to another. What it decides depends on committed tokens
    and on timings alone, so the law of the output stays exact. With timings from the clock the
    draft lengths differ from run to run; a `costs` table makes them a function of the text.

    Args:
        num_draft_tokens: the longest draft.
        probe_share: at most this share of the time may be lost to rounds that are drafted only to
            see whether drafting has come to pay.
        costs: seconds, measured beforehand, in place of the clock: `target`, a mapping from rows of
            a pass to its time, or the times for 1, 2, ... rows in a list; `draft`, the time of a
            draft token; `draft_start`, what a draft costs besides; `catch_up`, the time of a token
            of the text that a draft model reads. The last three are each a number, or a mapping
            from drafters to numbers.
        drafters: the names of the drafters to choose from, where there are several.
        row_costs: the time of a target pass by its rows, in passes over one row, as far as it is
            known beforehand; the clock corrects it. None takes what the target says of itself.
        draft_weights: the weights that a token goes through when a draft model reads the prompt
            (`TargetInfo.num_weights`), a number, or a mapping from drafters to numbers: with the
            target's they say what reading costs before it was timed. 0 for a drafter that reads no
            prompt with a model.

    Raises:
        InvalidInput: a setting outside its range or of the wrong form.

    Example:
        >>> controller = AutoController(costs={"target": {1: 1.0, 6: 1.1}, "draft": 0.2})
        >>> controller.open().budget().num_draft_tokens > 0
        True
    """

    name: ClassVar[str] = "auto"
    follows_load: ClassVar[bool] = True

    num_draft_tokens: int = 12
    probe_share: float = 0.01
    costs: Mapping[str, Any] | None = None
    drafters: tuple[str, ...] = ()
    row_costs: Mapping[int, float] | None = field(default=None, repr=False)
    draft_weights: int | Mapping[str, int] = field(default=0, repr=False)

    def __post_init__(self) -> None:
        require_int("num_draft_tokens", self.num_draft_tokens, low=0, high=64)
        require_finite(self, "probe_share", self.probe_share, low=0.0, high=1.0)
        names: Any = self.drafters
        if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) for n in names):
            raise InvalidInput(f"drafters must be a list of names; it is {names!r:.80}")
        if len(set(names)) < len(names):
            raise InvalidInput(f"drafters must be of different names; they are {names!r:.80}")
        object.__setattr__(self, "drafters", tuple(names))
        CostTable.of(self.costs)
        self._weights()
        if self.row_costs:
            rows = by_rows("row_costs must be passes", self.row_costs)
            if 1 not in rows:
                raise InvalidInput("row_costs must begin with 1 row, in passes over one row")
            object.__setattr__(self, "row_costs", rows)

    @property
    def uses_clock(self) -> bool:
        """Whether its decisions depend on timings, and so differ from run to run."""
        return self.costs is None

    def open(self, opening: Opening = Opening()) -> AutoSession:
        """See `protocols.Controller.open`.

        Raises:
            InvalidInput: costs that leave out a drafter, which would count as free, or name one
                that there is not.
        """
        table = CostTable.of(self.costs)
        table.check(self.drafters)
        rows = self.row_costs
        if rows is None:
            rows = {} if opening.target is None else opening.target.row_costs
        passes, drafters = PassTimes(table.target, rows), {}
        of_target = 0 if opening.target is None else opening.target.num_weights
        for name in self.drafters or ("",):
            times = DraftTimes()
            if not self.uses_clock:
                parts = (table.draft, table.start, table.catch_up)
                times = DraftTimes(*(of_drafter(part, name) for part in parts))
            weights = of_drafter(self._weights(), name)
            reads = bool(weights or table.catch_up)
            drafters[name] = DrafterState(
                Arm(times, self.num_draft_tokens),
                Reader(opening.num_prompt_tokens if reads else 0),
                passes.row * min(weights / of_target, 1.0) if of_target else 0.0,
            )
        return AutoSession(
            opening,
            passes,
            drafters,
            num_draft_tokens=self.num_draft_tokens,
            probe_share=self.probe_share,
        )

    def _weights(self) -> dict[str, float]:
        what = "draft_weights must be counts, or counts by drafter"
        return by_drafter(what, self.draft_weights)
