"""What drafts earned: acceptance by position, how long drafts go on, what confidence is worth."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

_PAST = 0.99
"""The discount of the longer past, which is the prior of what is estimated."""


class Expected(NamedTuple):
    """What a draft of up to k tokens is expected to bring: accepted tokens, and drafted ones."""

    accepted: float
    drafted: float


class Evidence:
    """Acceptance by position, discounted from draft to draft.

    The estimate at a position is the mean of a beta posterior. Its prior is the estimate at the
    position before, since acceptance changes slowly along a draft. That of the first position is
    what came of a longer past, which counts for the more, the better it agrees with the late tests;
    before there is one, what is given. A draft length that was not tried so has what its neighbours
    say.

    Args:
        prior: acceptance at the first position before anything is seen.
        prior_weight: how many tests that is worth.
        neighbour: how many tests the position before is worth.
        size: the longest draft.
        discount: what an older draft counts against a newer one.
    """

    def __init__(
        self,
        prior: float,
        *,
        prior_weight: float = 1.5,
        neighbour: float = 8.0,
        size: int = 16,
        discount: float = 0.96,
    ) -> None:
        self._neighbour = neighbour
        self._prior_weight, self._discount = prior_weight, discount
        self._tested, self._accepted = [0.0] * size, [0.0] * size
        # Of the drafts that could go on after a token: how many did, and of those whose token
        # was accepted, how many did.
        self._could, self._went = [0.0] * size, [0.0] * size
        self._could_right, self._went_right = [0.0] * size, [0.0] * size
        self._past_tested, self._past_accepted = prior_weight, prior_weight * prior

    def observe(self, drafted: int, accepted: int, tested: int, allowed: int) -> None:
        """Take in a draft that was allowed a length, in tokens of its (longest accepted) path."""
        size = len(self._tested)
        for values in (
            self._tested,
            self._accepted,
            self._could,
            self._went,
            self._could_right,
            self._went_right,
        ):
            for j in range(size):
                values[j] *= self._discount
        if tested:
            self._past_tested = _PAST * self._past_tested + 1
            self._past_accepted = _PAST * self._past_accepted + (accepted > 0)
        for j in range(min(tested, size)):
            self._tested[j] += 1
            self._accepted[j] += j < accepted
        for j in range(min(drafted, allowed - 1, size)):
            went = j + 1 < drafted
            self._could[j] += 1
            self._went[j] += went
            if j < accepted:
                self._could_right[j] += 1
                self._went_right[j] += went

    def fade(self, weight: float) -> None:
        """Let what was seen count for at most `weight` tests, so that changes are noticed."""
        if self._tested[0] > weight:
            share = weight / self._tested[0]
            for values in (self._tested, self._accepted):
                for j in range(len(values)):
                    values[j] *= share

    def acceptance(self, most: int) -> list[float]:
        """The estimate for a tested token at each of the first positions."""
        found = []
        mean, weight = self._past_accepted / self._past_tested, self._weight_of_past()
        for j in range(most):
            mean = (self._accepted[j] + weight * mean) / (self._tested[j] + weight)
            weight = self._neighbour
            found.append(mean)
        return found

    def _weight_of_past(self) -> float:
        """How many tests the longer past is worth.

        Rates that change from time to time by tau (standard deviation) are worth p (1 - p) / tau^2
        tests to one another. What the late tests differ from the past, beyond the chance of so few,
        is the estimate of tau^2. So a run of bad luck is held to the longer past, and a change is
        followed.
        """
        past = self._past_accepted / self._past_tested
        variance = past * (1 - past)
        tested = self._tested[0]
        if tested == 0:
            return self._prior_weight
        off = self._accepted[0] / tested - past
        # The late tests are part of the past and do not count twice.
        before = max(self._past_tested - tested, 1.0)
        change = max(off * off - variance / tested, variance / before)
        return max(variance / change if change else 0.0, self._prior_weight)

    def expected(self, most: int, odds: float = 1.0) -> list[Expected]:
        """For each draft length up to `most`, from 0 on.

        Args:
            most: the longest.
            odds: a factor on the odds of each acceptance, for what-if questions.
        """
        found = [Expected(0.0, 0.0)]
        path = reach = 1.0
        accepted = drafted = 0.0
        on = on_right = 0.9
        for j, rate in enumerate(self.acceptance(most)):
            drafted += reach
            path *= odds * rate / (1 - rate + odds * rate)
            accepted += path
            found.append(Expected(accepted, drafted))
            on = (self._went[j] + 2 * on) / (self._could[j] + 2)
            on_right = (self._went_right[j] + 2 * on_right) / (self._could_right[j] + 2)
            reach *= on
            path *= on_right
        return found


class Calibration:
    """From what a drafter believes of its tokens to how often they are accepted.

    Acceptance is taken to be confidence to a power, which keeps products: the belief in a path
    goes to the acceptance of a path. The power is the one under which the tested tokens, counted
    in bins of confidence, would be accepted as often as they were.

    Args:
        power: before anything is seen.
        weight: how many tests that is worth.
        discount: what an older test counts against a newer one.
    """

    EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)

    def __init__(self, power: float = 0.8, *, weight: float = 4.0, discount: float = 0.985) -> None:
        self.power = power
        self._discount = discount
        size = len(self.EDGES) + 1
        self._count, self._log, self._accepted = [0.0] * size, [0.0] * size, 0.0
        # The prior is a few tests at even odds.
        self._count[5] = weight
        self._log[5] = weight * math.log(0.5)
        self._accepted = weight * 0.5**power
        self._floor = (5, weight, weight * math.log(0.5), weight * 0.5**power)

    def observe(self, confidence: Sequence[float], accepted: int, tested: int) -> None:
        """Take in the tested tokens of a draft."""
        place, weight, log, right = self._floor
        for j in range(min(tested, len(confidence))):
            keep = self._discount
            self._count = [value * keep for value in self._count]
            self._log = [value * keep for value in self._log]
            self._accepted *= keep
            # The prior does not fade.
            self._count[place] += (1 - keep) * weight
            self._log[place] += (1 - keep) * log
            self._accepted += (1 - keep) * right + (j < accepted)
            belief = min(max(confidence[j], 1e-6), 1.0)
            bin_ = bisect_right(self.EDGES, belief)
            self._count[bin_] += 1
            self._log[bin_] += math.log(belief)
        self.power = self._fitted()

    def belief_of(self, acceptance: float) -> float:
        """The confidence that stands for an acceptance, of a token or of a path."""
        return float(min(max(acceptance, 0.0), 1.0) ** (1 / self.power))

    def _fitted(self) -> float:
        bins = [
            (count, log / count)
            for count, log in zip(self._count, self._log, strict=True)
            if count > 1e-9
        ]
        low, high = math.log(0.05), math.log(8.0)
        for _ in range(12):
            middle = (low + high) / 2
            power = math.exp(middle)
            # Of more than certain, a higher power expects fewer.
            if math.fsum(count * math.exp(power * log) for count, log in bins) > self._accepted:
                low = middle
            else:
                high = middle
        return math.exp((low + high) / 2)
