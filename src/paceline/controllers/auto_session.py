"""One sequence under `auto`: which drafter is asked, how far, and what is learnt of the round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from paceline.controllers.policy import (
    FIRST,
    Arm,
    Plan,
    Prices,
    part_for,
    plan_gated,
    plan_hoped,
    plan_length,
    plan_of_line,
    threshold,
)
from paceline.controllers.probing import (
    FREE_READING,
    HOPE_RISE,
    LEAST_COST,
    LENGTH_GAP,
    MOST_READING,
    MOST_SAVED,
    PRICE_GAP,
    REMEMBERED_EVERY,
    Account,
    Doubt,
)
from paceline.controllers.reading import (
    CONTEXT_ODDS,
    TRIFLE,
    WINDOW,
    Reader,
    Reading,
    Savings,
    choose_reading,
    expected_rest,
)
from paceline.controllers.timing import PassTimes
from paceline.core.drafts import Budget, Outcome
from paceline.core.target import Opening

_RECENT = 0.95
"""The discount of older rounds in the speed that was reached lately."""
_PLAIN_ROUNDS = 2.0
"""That speed starts from this many plain rounds."""
_LEAST_GAIN = 0.03
"""A draft has to be worth this many tokens a round: less cannot be told from noise."""
_MARGIN = 0.05
"""Where nothing was drafted, a value has to be above this before drafting starts again."""
_REFERENCE = 48
"""The tokens after which a plain round is timed; then after more than twice as many, and so on."""
_SURELY_FAST = 2.0
"""From this speed on drafting pays even if plain passes are much faster than thought."""
_DOUBTFUL = 1.33
"""Below this speed a plain round is timed at once where none was."""
_SURPRISE = 0.8
"""A pass that takes less than this share of what was expected calls for another one."""
_REFUTED = 0.8
"""A pass that takes less than this share of what was believed refutes it."""
_FEW = 3
"""Timings below which an expectation can be surprised."""


class DrafterState(NamedTuple):
    """One drafter: its arm, what its model has read, and what reading costs until it was timed."""

    arm: Arm
    reader: Reader
    reading_guess: float


class _Probe(NamedTuple):
    """A draft that is not expected to pay.

    Args:
        name: of the drafter.
        plan: its draft.
        cost: the passes that it is expected to lose.
        given_up: those of them that a draft which pays would have gained in its place.
        reading: what its model reads.
        is_doubt: whether it is made to time a price again.
        is_length: whether it is a draft of another length in place of one that pays.
    """

    name: str
    plan: Plan
    cost: float
    given_up: float
    reading: Reading
    is_doubt: bool = False
    is_length: bool = False


class AutoSession:
    """See `protocols.ControllerSession`.

    Args:
        opening: what is known of the sequence.
        passes: the times of target passes.
        drafters: by name, in the order in which they are asked; one alone has the name "".
        num_draft_tokens, probe_share: see `auto.AutoController`.
    """

    def __init__(
        self,
        opening: Opening,
        passes: PassTimes,
        drafters: Mapping[str, DrafterState],
        *,
        num_draft_tokens: int,
        probe_share: float,
    ) -> None:
        self._longest, self._share = num_draft_tokens, probe_share
        self._learns, self._opening = passes.learns, opening
        self._pass, self._prices = passes, Prices(passes)
        self._drafters = drafters
        self._arms = {name: drafter.arm for name, drafter in drafters.items()}
        self._rounds, self._tokens = 0, 0
        self._drafting = True
        self._recent_tokens = self._recent_passes = 0.0
        self._account = Account(self._share, len(drafters))
        self._doubts = {name: Doubt(PRICE_GAP) for name in drafters}
        self._length_doubts = {name: Doubt(LENGTH_GAP) for name in drafters}
        self._probe: _Probe | None = None
        self._readings: dict[str, Reading] = {}
        self._reference_at = _REFERENCE
        self._plain_seconds = 0.0
        for arm in self._arms.values():
            self._remember(arm)

    # ---------------------------------------------------------------- deciding

    def budget(self) -> Budget:
        """See `protocols.ControllerSession.budget`."""
        self._probe = None
        if self._longest == 0:
            return Budget(0)
        plans = self._plans()
        margin = _LEAST_GAIN if self._drafting else _MARGIN
        paying = {name: plan for name, plan in plans.items() if plan.value > margin}
        if not paying and self._drafting:
            for arm in self._arms.values():
                arm.fade()
        self._drafting = bool(paying)
        if paying and self._reference_is_due():
            return Budget(0)
        chosen = self._chain(paying)
        self._probe = (
            self._timed_again(paying) or self._other_length(paying) or self._next_probe(chosen)
        )
        if self._probe is None:
            return chosen or Budget(0)
        return self._budget_with(self._probe, chosen)

    @property
    def _speed(self) -> float:
        """Tokens in the time of a plain pass, lately; at least the 1 of plain decoding."""
        tokens, passes = self._recent_tokens + _PLAIN_ROUNDS, self._recent_passes + _PLAIN_ROUNDS
        return max(tokens / passes, 1.0)

    def _plans(self) -> dict[str, Plan]:
        """What each drafter is worth, those that can tell beforehand where they beat the others.

        Those whose model is not to read the text are left out.
        """
        found: dict[str, Plan] = {}
        self._readings.clear()
        for name, arm in self._arms.items():
            if not arm.gated:
                plan = plan_length(arm, arm.whole, self._prices, self._speed)
                reading, plan = self._reading_for(name, plan)
                if reading is not None:
                    found[name], self._readings[name] = plan, reading
        bar = max((plan.value for plan in found.values()), default=0.0)
        for name, arm in self._arms.items():
            if arm.gated:
                found[name] = plan_gated(arm, self._prices, self._speed, max(bar, 0.0))
        return found

    def _reading_price(self, name: str) -> float:
        """Passes for each token that the model of a drafter reads."""
        arm, _, guess = self._drafters[name]
        return guess if arm.times.catch_up is None else self._prices.token(arm.times.catch_up)

    def _reading_for(self, name: str, plan: Plan) -> tuple[Reading | None, Plan]:
        """What the model of a drafter is to read, and the plan for what it then sees."""
        arm, reader, _ = self._drafters[name]
        price = self._reading_price(name)
        if price * reader.behind <= TRIFLE and not reader.is_partial:
            return Reading(None, price * reader.behind), plan
        odds = CONTEXT_ODDS if reader.is_partial else 1 / CONTEXT_ODDS
        other = plan_length(arm, arm.whole, self._prices, self._speed, odds)
        part, whole = (plan, other) if reader.is_partial else (other, plan)
        rest = expected_rest(self._opening, self._tokens)
        saves = Savings(whole.saves, part.saves, arm.num_tested)
        reading = choose_reading(reader, price, rest, saves)
        sees_all = reading is not None and reading.limit is None
        return reading, whole if sees_all else part

    def _chain(self, paying: Mapping[str, Plan]) -> Budget | None:
        """The budgets of the drafters that pay: those that can tell, then the rest by value.

        Where one has nothing to propose the next is asked.
        """
        chain: Budget | None = None
        order = sorted(paying, key=lambda name: (self._arms[name].gated, paying[name].value))
        for name in order:
            limit = self._readings[name].limit if name in self._readings else None
            chain = self._budget_of(name, paying[name], limit, chain)
        return chain

    def _budget_of(
        self, name: str, plan: Plan, limit: int | None, fallback: Budget | None = None
    ) -> Budget:
        arm = self._arms[name]
        return Budget(
            plan.length,
            drafter=name or None,
            min_path_confidence=threshold(arm, self._prices, self._speed, plan.length),
            min_first_confidence=plan.gate if arm.gated else 0.0,
            fallback=fallback,
            max_catch_up=limit,
        )

    def _reference_is_due(self) -> bool:
        """Whether a plain round is needed to know what plain decoding takes."""
        if not self._learns or self._rounds == 0:
            return False
        if self._speed > _SURELY_FAST:
            return False
        if self._tokens >= self._reference_at:
            return True
        return self._speed < _DOUBTFUL and not self._pass.count(int(self._prices.plain_rows))

    # ---------------------------------------------------------------- probing

    def _timed_again(self, paying: Mapping[str, Plan]) -> _Probe | None:
        """A draft of one token where drafting would pay at the price that it had before."""
        for name, arm in self._arms.items():
            doubt = self._doubts[name]
            if paying or arm.gated or not self._learns:
                continue
            plan = plan_hoped(arm, self._prices, self._speed)
            if plan.value <= _MARGIN or not doubt.is_due:
                continue
            gained = arm.whole.acceptance(1)[0] / self._speed
            believed = self._prices.round(1, arm) - 1 - gained
            hoped = self._prices.hoped(1, arm) - 1 - gained
            reading = self._probe_reading(name)
            cost = doubt.cost(believed, hoped) + self._reading_cost(name, reading)
            if self._account.allows(cost):
                return _Probe(name, plan._replace(length=1), cost, 0.0, reading, True)
        return None

    def _other_length(self, paying: Mapping[str, Plan]) -> _Probe | None:
        """A draft of another length than the best, which would be better if its price is wrong.

        What is not chosen is not timed, so that a length that was disturbed would be left out for
        good.
        """
        for name, plan in paying.items():
            arm, doubt = self._arms[name], self._length_doubts[name]
            if not self._learns or not arm.times.known or not doubt.is_due:
                continue
            other, hoped = plan_of_line(arm, self._prices, self._speed)
            best = plan_length(arm, arm.whole, self._prices, self._speed) if arm.gated else plan
            gain = hoped - best.value
            if other.length == best.length or gain <= _MARGIN:
                continue
            cost = doubt.cost((best.value - other.value) / self._speed, -gain / self._speed)
            if self._account.allows(cost):
                doubt.settle(confirmed=True)
                reading = self._readings.get(name, Reading(None, 0.0))
                return _Probe(name, other, cost, 0.0, reading, is_length=True)
        return None

    def _probe_reading(self, name: str) -> Reading:
        """A probe is no reason to read a long text."""
        reader = self._drafters[name].reader
        limit = WINDOW if reader.behind > WINDOW else reader.usual_limit()
        return Reading(limit, self._reading_price(name) * reader.missing(limit))

    def _reading_cost(self, name: str, reading: Reading) -> float:
        """What reading costs a probe, less what it may take besides."""
        free = FREE_READING * self._share * self._drafters[name].reader.missing(reading.limit)
        return min(max(reading.passes - free, 0.0), MOST_READING)

    def _next_probe(self, chosen: Budget | None) -> _Probe | None:
        """A draft of one token, where the account has what it may lose.

        Each drafter waits in proportion to what its probe costs, so that each gets the same share
        of the account. Where the next probe costs more than there is, the account has to fill.
        """
        probes = [probe for name in self._arms if (probe := self._probe_of(name, chosen))]

        def urgency(probe: _Probe) -> float:
            return (self._arms[probe.name].idle + 1) / probe.cost

        best = max(probes, key=urgency, default=None)
        return best if best is not None and self._account.allows(best.cost) else None

    def _probe_of(self, name: str, chosen: Budget | None) -> _Probe | None:
        arm, own, gate, length = self._arms[name], part_for(chosen, name), 0.0, 1
        if own is not None:
            # It drafts anyway: it is only to be asked where it is less sure, and keeps its length.
            lower = [gate for gate in (0.0, *FIRST) if gate < own.min_first_confidence]
            if not lower:
                return None
            gate, length = lower[-1], own.num_draft_tokens
        elif arm.gated:
            gate = FIRST[-1]
        reading = self._probe_reading(name)
        given_up = self._given_up(chosen, arm)
        cost = max(self._prices.round(1, arm) - 1, LEAST_COST)
        cost += self._reading_cost(name, reading) + given_up
        plan = Plan(0.0, length, gate)
        return _Probe(name, plan, cost, given_up, reading) if cost <= MOST_SAVED else None

    def _given_up(self, chosen: Budget | None, arm: Arm) -> float:
        """The passes that a probe of `arm` loses where it takes the place of a draft that pays.

        One that cannot tell beforehand comes after those that can, and takes the place of the
        rest. One that can takes the place of all.
        """
        while chosen is not None and not arm.gated and self._arm_of(chosen.drafter).gated:
            chosen = chosen.fallback
        return 0.0 if chosen is None else 1.0 - 1.0 / self._speed

    def _budget_with(self, probe: _Probe, chosen: Budget | None) -> Budget:
        """Probe where the drafters that can tell have nothing, in place of the one that cannot.

        What is sure enough to be proposed is not given up for a probe.
        """
        limit = probe.reading.limit
        if self._arms[probe.name].gated or chosen is None:
            return self._budget_of(probe.name, probe.plan, limit, chosen)
        if not self._arm_of(chosen.drafter).gated:
            return self._budget_of(probe.name, probe.plan, limit, chosen)
        return chosen._replace(fallback=self._budget_behind(probe, chosen.fallback))

    def _budget_behind(self, probe: _Probe, rest: Budget | None) -> Budget:
        if rest is None:
            return self._budget_of(probe.name, probe.plan, probe.reading.limit)
        return self._budget_with(probe, rest)

    def _arm_of(self, drafter: str | None) -> Arm:
        return self._arms[self._name_of(drafter)]

    def _name_of(self, drafter: str | None) -> str:
        return drafter if drafter in self._arms and drafter else next(iter(self._arms))

    # ---------------------------------------------------------------- learning

    def observe(self, outcome: Outcome) -> None:
        """See `protocols.ControllerSession.observe`."""
        draft, committed = outcome.draft, outcome.num_accepted_tokens + 1
        length, name = draft.max_path_length, self._name_of(draft.drafter)
        arm, reader, _ = self._drafters[name]
        rows = outcome.pass_rows - outcome.prefill_rows
        seconds = outcome.target_seconds + outcome.verify_seconds * outcome.num_sequences
        if outcome.prefill_rows:  # what it took says nothing of a pass without the prompts
            seconds = self._pass(rows)
        surprise = seconds < _SURPRISE * self._pass(rows) and self._pass.count(rows) < _FEW
        self._plain_seconds = self._prices.plain
        if not outcome.prefill_rows:
            self._pass.observe(rows, seconds)
        self._prices.update(outcome.num_sequences, outcome.num_set, outcome.set_rows)
        took = 0.0
        if outcome.budget.longest > 0:
            own = part_for(outcome.budget, name) or outcome.budget
            missed = reader.missing(own.max_catch_up)
            expected = arm.times(length) if arm.times.known else 0.0
            took = self._pass.undisturbed(outcome.draft_seconds, rows, seconds, expected)
            self._settle(name, outcome, missed)
            arm.times.observe(length, took, missed)
        if length:
            was_partial = reader.is_partial
            reader.read(own.max_catch_up)
            if reader.is_partial != was_partial:
                arm.see_more(1 / CONTEXT_ODDS if reader.is_partial else CONTEXT_ODDS)
            arm.learn(draft, outcome, self._prices.draft(1, arm))
        elif self._rounds:
            gap = self._tokens + 2 * _REFERENCE
            self._reference_at = 0 if surprise else max(self._reference_at, self._tokens + gap)
        passes = self._prices.round(length, arm) if length else 1.0
        if length and self._probe is not None and self._probe.is_length:
            self._account.spend(self._probe.cost)
        elif length and self._probe is not None and self._probe.name == name:
            reading = self._reading_cost(name, self._probe.reading)
            if self._learns:  # what it took, where that was less than it was thought to take
                passes = min(passes, self._prices.bare(length, arm) + self._prices.token(took))
            lost = passes - 1 - (committed - 1) / self._speed
            self._account.spend(lost + reading + self._probe.given_up)
        else:
            self._account.earn(passes, max(committed - passes, 0.0) / self._speed)
        if length and self._drafting:
            self._doubts[name].reset()
            if self._rounds % REMEMBERED_EVERY == 0:
                self._remember(arm)
        self._recent_tokens = _RECENT * self._recent_tokens + committed
        self._recent_passes = _RECENT * self._recent_passes + passes
        for other, drafter in self._drafters.items():
            drafter.arm.idle = 0 if other == name and length else drafter.arm.idle + committed
            drafter.reader.add(committed)
            self._doubts[other].wait()
            self._length_doubts[other].wait()
        self._rounds += 1
        self._tokens += committed

    def _remember(self, arm: Arm) -> None:
        """Keep the prices at which drafting pays; higher ones count slowly."""
        now = [self._prices.round(length, arm) for length in range(self._longest + 1)]
        old = arm.hope or now
        arm.hope = [min(new, HOPE_RISE * was) for new, was in zip(now, old, strict=True)]

    def _settle(self, name: str, outcome: Outcome, missed: int) -> None:
        """Compare a draft that was timed again with what was believed and with what was hoped."""
        arm, length = self._arms[name], outcome.draft.max_path_length
        before = self._plain_seconds
        if self._probe is None or not self._probe.is_doubt or not length or before <= 0:
            return
        if outcome.prefill_rows:
            return
        pass_seconds = outcome.target_seconds + outcome.verify_seconds * outcome.num_sequences
        own = outcome.draft_seconds / before - self._reading_price(name) * missed
        found = pass_seconds / before + max(own, 0.0) * outcome.num_sequences
        believed, hoped = self._prices.round(length, arm), self._prices.hoped(length, arm)
        confirmed = found > (believed * max(hoped, 1.0)) ** 0.5
        self._doubts[name].settle(confirmed)
        if confirmed:
            now = [self._prices.round(length, arm) for length in range(len(arm.hope))]
            arm.hope = [(old * new) ** 0.5 for old, new in zip(arm.hope, now, strict=True)]
        elif pass_seconds / before < _REFUTED * self._prices.bare(length, arm):
            self._pass.forget(outcome.pass_rows, int(self._prices.plain_rows))
