"""What a draft is worth: its expected tokens against its expected time, and the best length.

Everything here is arithmetic on what was learnt: acceptance (`evidence`) and times (`timing`). All
times are in plain passes, those of a round without a draft.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from paceline.controllers.evidence import Calibration, Evidence, Expected
from paceline.controllers.timing import DraftTimes, PassTimes
from paceline.core.drafts import Budget, Draft, Outcome
from paceline.economics.curve import interpolated

STEP = 0.12
"""A draft step in target passes, before one was timed: that of a small model in a cheap format."""

FIRST = (0.4, 0.55, 0.7, 0.82)
"""Drafters that can tell beforehand how sure they are are judged by their first confidence, in
these bins: n-grams with matches of one, two, three and more tokens fall into different ones."""

ACCEPTANCE = (0.3, 0.45, 0.6, 0.75, 0.85)
"""Acceptance of a first token in each bin before any was seen."""

MODEL_ACCEPTANCE = 0.65
"""The same for drafters that cannot tell: that of a small model on the harder of usual tasks."""

_MODEL_WEIGHT = 3.0
"""How many tests that prior is worth."""
_BIN_NEIGHBOUR = 3.0
"""How many tests a position counts for the next one, within a bin. After a short match the first
token is the doubtful one, so positions differ, and each soon counts for itself."""
_FIRST_REACH = 3
"""The longest draft before any was accepted."""
_WIDTH_GAIN = 0.2
"""The weight of the last draft in the mean number of rows for each token of a path."""
_CHEAP = 0.05
"""A drafter whose draft takes less than this, in passes, costs next to nothing."""
_SUREST = 0.98
"""The highest threshold: above it no token would be followed by another."""
_LEAST_FURTHER = 0.05
"""The least acceptance of a next token by which a threshold is divided."""
_FORGOTTEN = 6.0
"""What was seen of acceptance counts as this many tests once drafting stops to pay, so that news is
heard."""


class Plan(NamedTuple):
    """What one drafter is worth: value against plain decoding in tokens a round, length, gate."""

    value: float
    length: int
    gate: float = 0.0
    accepted: float = 0.0
    passes: float = 1.0

    @property
    def saves(self) -> float:
        """The passes that it saves for each token of the answer, against plain decoding."""
        return max(1.0 - self.passes / (1.0 + self.accepted), 0.0)


class Arm:
    """What is known of one drafter.

    Args:
        times: what its drafts cost.
        longest: the longest draft.
    """

    def __init__(self, times: DraftTimes, longest: int) -> None:
        self._longest, size = longest, max(longest, 1)
        self.times = times
        self.calibration = Calibration()
        self.whole = Evidence(MODEL_ACCEPTANCE, prior_weight=_MODEL_WEIGHT, size=size)
        self.bins = [Evidence(rate, neighbour=_BIN_NEIGHBOUR, size=size) for rate in ACCEPTANCE]
        self.reach = min(_FIRST_REACH, longest)
        """How far it may go: about twice as far as was ever accepted."""
        self.width = 1.0
        """Rows of a pass for each token of a path: above 1 for trees and auxiliary rows."""
        self.num_tested = 0
        """The tokens of its drafts that were tested."""
        self.idle = 0
        """Tokens that were committed since it drafted last."""
        self.gated = False
        """Whether it costs next to nothing and can tell beforehand how sure it is."""
        self._ignores_gate = False
        self.hope: list[float] = []
        """The passes of a round by its draft length, as they were while drafting paid."""

    def contexts(self) -> list[tuple[float, Evidence]]:
        """The kinds of its drafts, the surest first, with the first confidence from which on."""
        if not self.gated:
            return [(0.0, self.whole)]
        return list(zip(reversed((0.0, *FIRST)), reversed(self.bins), strict=True))

    def fade(self) -> None:
        """Let what was seen of acceptance count for little, so that a change is noticed."""
        for evidence in (self.whole, *self.bins):
            evidence.fade(_FORGOTTEN)

    def see_more(self, odds: float) -> None:
        """Its model sees more of the text, or less: the odds of acceptance change by a factor."""
        before = self.whole.acceptance(1)[0]
        rate = odds * before / (1 - before + odds * before)
        self.whole = Evidence(rate, prior_weight=_MODEL_WEIGHT, size=max(self._longest, 1))

    def learn(self, draft: Draft, outcome: Outcome, passes: float) -> None:
        """Take in what became of a draft of its own.

        Args:
            draft: of at least one token.
            outcome: of the round.
            passes: what its drafts take, in passes.
        """
        accepted, length = outcome.num_accepted_tokens, draft.max_path_length
        tested = min(outcome.num_tested_tokens, length)
        asked = part_for(outcome.budget, draft.drafter or "") or outcome.budget
        self.num_tested += tested
        self.width += _WIDTH_GAIN * ((draft.num_rows - 1) / length - self.width)
        self.whole.observe(length, accepted, tested, asked.num_draft_tokens)
        if (confidence := draft.confidence) is not None:
            if draft.is_chain:
                self.calibration.observe(confidence, accepted, tested)
            first = self.bins[bisect_right(FIRST, confidence[0])]
            first.observe(length, accepted, tested, asked.num_draft_tokens)
            self._ignores_gate |= confidence[0] < asked.min_first_confidence
            self.gated = not self._ignores_gate and passes < _CHEAP
        self.reach = min(max(self.reach, 2 * accepted + 2), self._longest)


class Prices:
    """What rounds take, in plain passes of the machine as it now is.

    A plain pass is one in which no sequence drafts that follows the load. All of those may be
    expected to draft alike: that is the price of a token where they share a pass, and none of them
    takes the room for its own that all of them see. The rows of the others are there in any case,
    and a token is priced by what it adds to them. Everybody in the pass waits for it.

    Args:
        passes: the times of target passes.
    """

    def __init__(self, passes: PassTimes) -> None:
        self._passes = passes
        self.update(1)

    def update(self, num_sequences: int, num_set: int = 0, set_rows: int = 0) -> None:
        """A pass of this number of sequences was timed.

        Args:
            num_sequences: in the pass.
            num_set, set_rows: of them, those that do not follow the load, and their rows.
        """
        self.num_sequences, self._set_rows = num_sequences, set_rows
        self._num_alike = max(num_sequences - num_set, 1)
        self.plain_rows = self._rows(0)
        self.plain = self._passes(self.plain_rows)
        """Seconds of a round in which nobody drafts who follows the load."""

    def _rows(self, drafted: float) -> float:
        """The rows of a pass if all that follow the load have so many beside their roots."""
        return self._set_rows + self._num_alike * (1 + drafted)

    def _in_passes(self, seconds: float) -> float:
        """A pass in plain ones, where it is longer by what this sequence adds for all in it."""
        found, share = seconds / self.plain, self.num_sequences / self._num_alike
        return found + (share - 1) * (found - 1)

    def round(self, drafted: float, arm: Arm) -> float:
        """A round in which every sequence that follows the load drafts this many tokens."""
        own = STEP * self._passes(1) * drafted
        if arm.times.known:
            own = self._seconds(arm.times(drafted))
        return self.bare(drafted, arm) + self.num_sequences * own / self.plain

    def of_line(self, drafted: float, arm: Arm) -> float:
        """The same if no number of rows or of draft tokens is dearer than the others let expect."""
        if not arm.times.known:
            return self.round(drafted, arm)
        bare = self._in_passes(self._passes.hoped(self._rows(drafted * arm.width)))
        own = self.num_sequences * self._seconds(arm.times.hoped(drafted))
        return bare + own / self.plain

    def hoped(self, drafted: float, arm: Arm) -> float:
        """The same if what made it dearer than it was does not last."""
        found = self.round(drafted, arm)
        if not arm.hope:
            return found
        return min(found, interpolated(range(len(arm.hope)), arm.hope, drafted, 0.0))

    def bare(self, drafted: float, arm: Arm) -> float:
        """The target's part of such a round."""
        return self._in_passes(self._passes(self._rows(drafted * arm.width)))

    def draft(self, tokens: float, arm: Arm) -> float:
        """A draft alone."""
        return self._seconds(arm.times(tokens)) / self.plain

    def token(self, seconds: float) -> float:
        """A time at the level of the machine to which timings are relative."""
        return self._seconds(seconds) / self.plain

    def _seconds(self, undisturbed: float) -> float:
        return undisturbed * self._passes.level


def best_length(lengths: Iterable[tuple[Expected, float]], speed: float) -> Plan:
    """The best length of at least 1, by tokens - speed * passes.

    Args:
        lengths: for each length from 0 on what it brings and the passes that it takes.
        speed: tokens in the time of a plain pass.

    Example:
        >>> lengths = [(Expected(0, 0), 1.0), (Expected(0.8, 1), 1.2), (Expected(1.2, 2), 1.4)]
        >>> best_length(lengths, 1.0).length
        2
        >>> best_length(lengths, 2.5).length
        1
    """
    return max(
        Plan(item.accepted - speed * (passes - 1), length, 0.0, item.accepted, passes)
        for length, (item, passes) in enumerate(lengths)
        if length
    )


def plan_length(
    arm: Arm, evidence: Evidence, prices: Prices, speed: float, odds: float = 1.0
) -> Plan:
    """The best length of a drafter for one kind of its drafts; see `Evidence.expected` on odds."""
    expected = evidence.expected(arm.reach, odds)
    return best_length(((item, prices.round(item.drafted, arm)) for item in expected), speed)


def plan_of_line(arm: Arm, prices: Prices, speed: float) -> tuple[Plan, float]:
    """The best length by `Prices.of_line`.

    Returns:
        Its plan by the prices that are believed, and its value by those.
    """
    expected = arm.whole.expected(arm.reach)
    hoped = best_length(((item, prices.of_line(item.drafted, arm)) for item in expected), speed)
    item = expected[hoped.length]
    passes = prices.round(item.drafted, arm)
    return hoped._replace(value=item.accepted - speed * (passes - 1), passes=passes), hoped.value


def plan_hoped(arm: Arm, prices: Prices, speed: float) -> Plan:
    """The best length if its price is what it was while drafting paid."""
    expected = arm.whole.expected(arm.reach)
    return best_length(((item, prices.hoped(item.drafted, arm)) for item in expected), speed)


def plan_gated(arm: Arm, prices: Prices, speed: float, bar: float) -> Plan:
    """The plan of a drafter that can tell: from the surest drafts down, while they beat `bar`."""
    found = Plan(0.0, 0, 1.0)
    for gate, evidence in arm.contexts():
        plan = plan_length(arm, evidence, prices, speed)
        if plan.value <= bar:
            break
        best = max(plan, found, key=lambda one: one.value)
        found = best._replace(length=max(plan.length, found.length), gate=gate)
    return found


def threshold(arm: Arm, prices: Prices, speed: float, length: int) -> float:
    """The belief in a path below which going on to a length is not worth its time."""
    # What one more token costs on the way there, and how much of a path has to be left for it to
    # be worth that.
    longest = max(length, 2)
    step = (prices.round(longest, arm) - prices.round(1, arm)) / (longest - 1)
    further = max(arm.whole.acceptance(2)[-1], _LEAST_FURTHER)
    return min(arm.calibration.belief_of(speed * step / further), _SUREST)


def part_for(budget: Budget | None, drafter: str) -> Budget | None:
    """The part of a budget that is for a drafter."""
    while budget is not None and (budget.drafter or "") not in ("", drafter):
        budget = budget.fallback
    return budget
