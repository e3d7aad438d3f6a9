"""Draft as far as it pays, and not at all where it does not: the default.

The long-run speed of a policy is E[tokens of a round] / E[time of a round] (renewal reward), so
each round takes the length that makes this greatest under what is known: acceptance by position
from the drafts so far, the time of a target pass by its rows and of a draft by its tokens from the
clock or from a table. Where the best speed lambda is known, a draft should go on behind a token
while the next one is worth its time: P(path accepted) * acceptance > lambda * (step + row). This
threshold goes to the drafter as a confidence. The objective over k is that of Leviathan et al.
2211.17192, equation 3.8, with measured costs, 0 among the lengths; "goodput" in SmartSpec, Liu et
al. 2406.14066; the threshold is optimal stopping with lambda as price, Dinkelbach 1967.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from paceline.checks import require_finite, require_int
from paceline.controllers.evidence import Calibration, Evidence
from paceline.controllers.timing import DraftTimes, PassTimes
from paceline.core.drafts import Budget, Outcome
from paceline.core.target import Opening
from paceline.errors import InvalidInput

STEP = 0.12
"""A draft step in target passes, before one was timed."""

FIRST = (0.4, 0.55, 0.7, 0.82)
"""Drafters that can tell beforehand how sure they are are judged by their first confidence, in
these bins."""

ACCEPTANCE = (0.3, 0.45, 0.6, 0.75, 0.85)
"""Acceptance of a first token in each bin before any was seen."""

MODEL_ACCEPTANCE = 0.65
"""The same for drafters that cannot tell."""

MOST_SAVED = 2.0
"""The most passes that probes may come to lose; a dearer probe is never made."""


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
            draft token, and `draft_start`, what a draft costs besides, each a number, or a
            mapping from drafters to numbers.
        drafters: the names of the drafters to choose from, where there are several.
        row_costs: the time of a target pass by its rows, in passes over one row, as far as it is
            known beforehand; the clock corrects it. Targets that know it give it.

    Raises:
        InvalidInput: a setting outside its range or of the wrong form.

    Example:
        >>> controller = AutoController(costs={"target": {1: 1.0, 6: 1.1}, "draft": 0.2})
        >>> controller.open().budget().num_draft_tokens > 0
        True
    """

    name: ClassVar[str] = "auto"

    num_draft_tokens: int = 12
    probe_share: float = 0.01
    costs: Mapping[str, Any] | None = None
    drafters: tuple[str, ...] = ()
    row_costs: Mapping[int, float] = field(default_factory=dict, repr=False)
    _table: _Costs = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_int("num_draft_tokens", self.num_draft_tokens, low=0, high=64)
        require_finite(self, "probe_share", self.probe_share, low=0.0, high=1.0)
        names: Any = self.drafters
        if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) for n in names):
            raise InvalidInput(f"drafters must be a list of names; it is {names!r:.80}")
        if len(set(names)) < len(names):
            raise InvalidInput(f"drafters must be of different names; they are {names!r:.80}")
        object.__setattr__(self, "drafters", tuple(names))
        object.__setattr__(self, "_table", _Costs.of(self.costs))
        if self.row_costs:
            object.__setattr__(
                self, "row_costs", _by_rows("row_costs must be passes", self.row_costs)
            )
            if 1 not in self.row_costs:
                raise InvalidInput("row_costs must begin with 1 row, in passes over one row")

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
        for part, given in (("draft", self._table.draft), ("draft_start", self._table.start)):
            if not given or "" in given:
                continue
            if not self.drafters:
                raise InvalidInput(
                    f"costs of {part} must be one number where there is one drafter; they are "
                    f"{dict(given)!r:.80}"
                )
            for name in {*self.drafters} ^ given.keys():
                state = "missing" if name in self.drafters else "not one of them"
                raise InvalidInput(
                    f"costs of {part} must hold the seconds of each drafter, which are "
                    f"{', '.join(self.drafters)}; {name} is {state}"
                )
        return AutoSession(self)


@dataclass(frozen=True, slots=True)
class _Costs:
    """The table of `AutoController.costs`, checked."""

    target: Mapping[int, float] | None = None
    draft: Mapping[str, float] = field(default_factory=dict)
    start: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> _Costs:
        if given is None:
            return cls()
        if not isinstance(given, Mapping) or "target" not in given or "draft" not in given:
            raise InvalidInput(
                "costs must map 'target' to seconds by rows and 'draft' to seconds a token; it is "
                f"{given!r:.80}"
            )
        if unknown := given.keys() - {"target", "draft", "draft_start"}:
            raise InvalidInput(
                f"costs take target, draft and draft_start; they hold {sorted(unknown)[0]!r}"
            )
        rows = _by_rows("costs of the target must be seconds", given["target"])
        return cls(rows, _by_name("draft", given), _by_name("draft_start", given))


def _by_rows(what: str, given: Any) -> dict[int, float]:
    """Times by rows of a pass, from a mapping or a list that begins with one row."""
    target = given
    if not isinstance(target, Mapping):
        target = dict(enumerate(target, start=1)) if isinstance(target, (list, tuple)) else {}
    try:
        rows = {int(n): float(seconds) for n, seconds in target.items()}
        if any(float(n) != int(n) for n in target):
            rows = {}
    except (TypeError, ValueError, OverflowError):
        rows = {}
    if not rows or min(rows) < 1 or not all(0 < seconds < 1e6 for seconds in rows.values()):
        raise InvalidInput(
            f"{what} above 0 by rows of a pass, as in {{1: 0.06, 6: 0.07}}; they are {given!r:.80}"
        )
    return rows


def _by_name(part: str, given: Mapping[str, Any]) -> dict[str, float]:
    found = given.get(part, 0.0)
    try:
        named = found if isinstance(found, Mapping) else {"": found}
        seconds = {str(name): float(value) for name, value in named.items()}
    except (TypeError, ValueError):
        seconds = {"": -1.0}
    if not all(0 <= value < 1e6 for value in seconds.values()):
        raise InvalidInput(
            f"costs of {part} must be seconds, or seconds by drafter; they are {found!r:.80}"
        )
    return seconds


class Arm:
    """What is known of one drafter."""

    def __init__(self, times: DraftTimes, longest: int) -> None:
        size = max(longest, 1)
        self.times = times
        self.calibration = Calibration()
        self.whole = Evidence(MODEL_ACCEPTANCE, prior_weight=3.0, size=size)
        # Behind a short match the first token is the doubtful one, so positions differ.
        self.bins = [Evidence(prior, neighbour=3.0, size=size) for prior in ACCEPTANCE]
        self.reach = min(3, longest)
        """How far it may go: about twice as far as was ever accepted."""
        self.width = 1.0
        """Rows of a pass for each token of a path: above 1 for trees and auxiliary rows."""
        self.idle = 0
        """Tokens that were committed since it drafted last."""
        self.gated = False
        """Whether it costs next to nothing and can tell beforehand how sure it is."""
        self.ignores_gate = False

    def contexts(self) -> list[tuple[float, Evidence]]:
        """The kinds of its drafts, the surest first, with the first confidence from which on."""
        if not self.gated:
            return [(0.0, self.whole)]
        return list(zip(reversed((0.0, *FIRST)), reversed(self.bins), strict=True))


class Plan(NamedTuple):
    """What one drafter is worth: value against plain decoding in tokens, length, and gate."""

    value: float
    length: int
    gate: float = 0.0


class AutoSession:
    """See `protocols.ControllerSession`."""

    def __init__(self, settings: AutoController) -> None:
        table = settings._table
        self._longest, self._share = settings.num_draft_tokens, settings.probe_share
        self._learns = settings.uses_clock
        self._pass = PassTimes(table.target, settings.row_costs)
        self._arms: dict[str, Arm] = {}
        for name in settings.drafters or ("",):
            times = DraftTimes()
            if not self._learns:
                times = DraftTimes(_named(table.draft, name), _named(table.start, name))
            self._arms[name] = Arm(times, self._longest)
        self._sequences, self._rounds, self._tokens = 1, 0, 0
        self._drafting = True
        self._recent_tokens = self._recent_passes = 0.0
        self._account = 0.25 * len(self._arms)
        """Passes that probes may lose."""
        self._probing: str | None = None
        self._probe_loses = 0.0
        """Passes that a probe loses besides, where it takes the place of a draft that pays."""
        self._reference_at = 48
        """The number of tokens from which on a plain round is due, to time it."""

    # ---------------------------------------------------------------- deciding

    def budget(self) -> Budget:
        """See `protocols.ControllerSession.budget`."""
        self._probing = None
        if self._longest == 0:
            return Budget(0)
        plans = self._plans()
        margin = 0.0 if self._drafting else 0.05
        paying = {name: plan for name, plan in plans.items() if plan.value > margin}
        if not paying and self._drafting:
            for arm in self._arms.values():
                for evidence in (arm.whole, *arm.bins):
                    evidence.fade(6.0)
        self._drafting = bool(paying)
        if paying and self._reference_is_due():
            return Budget(0)
        chosen = self._chain(paying)
        return self._probe(chosen) or chosen or Budget(0)

    @property
    def _speed(self) -> float:
        """Tokens in the time of a plain pass, lately; at least the 1 of plain decoding."""
        return max((self._recent_tokens + 2) / (self._recent_passes + 2), 1.0)

    def _passes(self, drafted: float, arm: Arm) -> float:
        """The time of a round in which every sequence drafts so much, in plain passes."""
        plain = self._pass(self._sequences)
        if arm.times.known:
            own = arm.times(drafted) * self._pass.level
        else:
            own = STEP * self._pass(1) * drafted
        whole = self._pass(self._sequences * (1 + drafted * arm.width)) + self._sequences * own
        return whole / plain

    def _plans(self) -> dict[str, Plan]:
        """What each drafter is worth, those that can tell beforehand where they beat the others."""
        found = {
            name: self._length(arm, arm.whole) for name, arm in self._arms.items() if not arm.gated
        }
        bar = max((plan.value for plan in found.values()), default=0.0)
        for name, arm in self._arms.items():
            if arm.gated:
                found[name] = self._gate(arm, max(bar, 0.0))
        return found

    def _length(self, arm: Arm, evidence: Evidence) -> Plan:
        """The best length of at least 1, by tokens - speed * passes, and what it is worth."""
        speed = self._speed
        return max(
            Plan(item.accepted - speed * (self._passes(item.drafted, arm) - 1), length)
            for length, item in enumerate(evidence.expected(arm.reach))
            if length
        )

    def _gate(self, arm: Arm, bar: float) -> Plan:
        """The plan of a drafter that can tell: from the surest drafts down, while they pay."""
        found = Plan(0.0, 0, 1.0)
        for gate, evidence in arm.contexts():
            plan = self._length(arm, evidence)
            if plan.value <= bar:
                break
            found = Plan(max(plan.value, found.value), max(plan.length, found.length), gate)
        return found

    def _chain(self, paying: Mapping[str, Plan]) -> Budget | None:
        """The budgets of the drafters that pay: those that can tell, then the rest by value.

        Where one has nothing to propose the next is asked.
        """
        chain: Budget | None = None
        order = sorted(paying, key=lambda name: (self._arms[name].gated, paying[name].value))
        for name in order:
            chain = self._budget_of(name, paying[name], chain)
        return chain

    def _budget_of(self, name: str, plan: Plan, fallback: Budget | None = None) -> Budget:
        arm = self._arms[name]
        # What one more token costs, and how much of a path has to be left for it to be worth that.
        step = (self._passes(4, arm) - self._passes(1, arm)) / 3
        further = arm.whole.acceptance(2)[-1]
        threshold = arm.calibration.belief_of(self._speed * step / max(further, 0.05))
        return Budget(
            plan.length,
            drafter=name or None,
            min_path_confidence=min(threshold, 0.98),
            min_first_confidence=plan.gate if arm.gated else 0.0,
            fallback=fallback,
        )

    def _reference_is_due(self) -> bool:
        """Whether a plain round is needed to know what plain decoding takes."""
        if not self._learns or self._rounds == 0:
            return False
        if self._speed > 2.0:
            return False  # it pays, even if plain passes are much faster than thought
        if self._tokens >= self._reference_at:
            return True
        return self._speed < 1.33 and not self._pass.count(self._sequences)

    def _probe(self, chosen: Budget | None) -> Budget | None:
        """A draft that is not expected to pay, where the account has what it may lose.

        Each drafter waits in proportion to what its probe costs, so that each gets the same share
        of the account. Where the next probe costs more than there is, the account has to fill.
        """
        best: tuple[float, float, str, float, float] | None = None
        for name, arm in self._arms.items():
            own = _of(chosen, name)
            gate = 0.0
            if own is not None:
                lower = [gate for gate in (0.0, *FIRST) if gate < own.min_first_confidence]
                if not lower:
                    continue
                gate = lower[-1]
            elif arm.gated:
                gate = FIRST[-1]
            plain = self._pass(self._sequences)
            # Reading what it missed may take a quarter of that share of the time besides.
            late = arm.times.catch_up * self._pass.level / plain - self._share / 4
            cost = max(self._passes(1, arm) - 1, 0.01) + max(late, 0.0) * arm.idle
            lost = self._given_up(chosen, arm)
            if cost + lost > MOST_SAVED:
                continue
            urgency = (arm.idle + 1) / (cost + lost)
            if best is None or urgency > best[0]:
                best = urgency, cost + lost, name, gate, lost
        if best is None or best[1] > self._account:
            return None
        _, _, self._probing, gate, self._probe_loses = best
        own = _of(chosen, self._probing)
        # One that drafts anyway, and is only to be asked where it is less sure, keeps its length.
        plan = Plan(0.0, 1 if own is None else own.num_draft_tokens, gate)
        if self._arms[self._probing].gated or chosen is None:
            return self._budget_of(self._probing, plan, chosen)
        return self._behind_the_sure(chosen, plan)

    def _given_up(self, chosen: Budget | None, arm: Arm) -> float:
        """The passes that a probe of `arm` loses where it takes the place of a draft that pays.

        One that cannot tell beforehand stands behind those that can, and takes the place of the
        rest. One that can takes the place of all.
        """
        while (
            chosen is not None
            and not arm.gated
            and self._arms[chosen.drafter or next(iter(self._arms))].gated
        ):
            chosen = chosen.fallback
        return 0.0 if chosen is None else 1.0 - 1.0 / self._speed

    def _behind_the_sure(self, chosen: Budget, plan: Plan) -> Budget:
        """Probe where the drafters that can tell have nothing, in place of the one that cannot.

        What is sure enough to be proposed is not given up for a probe.
        """
        assert self._probing is not None
        arm = self._arms.get(chosen.drafter or "")
        if arm is None or not arm.gated:
            return self._budget_of(self._probing, plan, chosen)
        rest = chosen.fallback
        inner = self._budget_of(self._probing, plan)
        if rest is not None:
            inner = self._behind_the_sure(rest, plan)
        return chosen._replace(fallback=inner)

    # ---------------------------------------------------------------- learning

    def observe(self, outcome: Outcome) -> None:
        """See `protocols.ControllerSession.observe`."""
        draft = outcome.draft
        length, committed = draft.max_path_length, outcome.num_accepted_tokens + 1
        name = draft.drafter if draft.drafter in self._arms else next(iter(self._arms))
        assert name is not None
        arm = self._arms[name]
        self._sequences = outcome.num_sequences
        rows, seconds = outcome.num_rows, outcome.target_seconds
        seconds += outcome.verify_seconds * outcome.num_sequences
        surprise = seconds < 0.8 * self._pass(rows) and self._pass.count(rows) < 3
        self._pass.observe(rows, seconds)
        if outcome.budget.longest > 0:
            arm.times.observe(length, outcome.draft_seconds / self._pass.level, arm.idle)
        if length:
            self._learn(arm, outcome)
        elif self._rounds:
            again = max(self._reference_at, 2 * (self._tokens + 48))
            self._reference_at = 0 if surprise else again
        passes = self._passes(length, arm) if length else 1.0
        if length and self._probing == name:
            self._account -= passes - 1 - (committed - 1) / self._speed + self._probe_loses
        else:
            # What drafting gained may be lost again in part, and the whole is still faster.
            gained = max(committed - passes, 0.0) / self._speed
            self._account += self._share * passes + 0.015 * gained
        self._account = min(self._account, MOST_SAVED)
        self._recent_tokens = 0.95 * self._recent_tokens + committed
        self._recent_passes = 0.95 * self._recent_passes + passes
        for other in self._arms.values():
            other.idle = 0 if other is arm and length else other.idle + committed
        self._rounds += 1
        self._tokens += committed

    def _learn(self, arm: Arm, outcome: Outcome) -> None:
        draft, accepted = outcome.draft, outcome.num_accepted_tokens
        length = draft.max_path_length
        tested = min(outcome.num_tested_tokens, length)
        asked = _of(outcome.budget, draft.drafter or "") or outcome.budget
        confidence = draft.confidence
        arm.width += 0.2 * ((draft.num_rows - 1) / length - arm.width)
        arm.whole.observe(length, accepted, tested, asked.num_draft_tokens)
        if confidence is not None:
            if draft.is_chain:
                arm.calibration.observe(confidence, accepted, tested)
            first = arm.bins[bisect_right(FIRST, confidence[0])]
            first.observe(length, accepted, tested, asked.num_draft_tokens)
            arm.ignores_gate |= confidence[0] < asked.min_first_confidence
            arm.gated = not arm.ignores_gate and self._passes_of_own(arm) < 0.05
        arm.reach = min(max(arm.reach, 2 * accepted + 2), self._longest)

    def _passes_of_own(self, arm: Arm) -> float:
        return arm.times(1) * self._pass.level / self._pass(self._sequences)


def _of(budget: Budget | None, drafter: str) -> Budget | None:
    """The part of a budget that is for a drafter."""
    while budget is not None and (budget.drafter or "") not in ("", drafter):
        budget = budget.fallback
    return budget


def _named(found: Mapping[str, float], name: str) -> float:
    return found.get(name, found.get("", 0.0))
