"""What a controller makes of a scripted text and scripted costs, without a model and in no time.

A `Script` says of each token of a text, for each drafter, whether a draft of it would be accepted
behind a right prefix, and how sure the drafter would be. All controllers meet the same text, so
that they can be compared token by token, and with the best draft length in hindsight.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.drafts import Budget, Draft, Outcome
from paceline.core.protocols import Controller

Rate = Callable[[int], float]
"""From the number of a token in the text to its mean acceptance."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a round takes, in seconds.

    Args:
        row: T(n) is 1 for one row, and grows by so much a further row.
        steps: rows beyond which T(n) grows by `step_cost` at once, as where kernels change.
        step_cost: see `steps`.
        token, start: of a draft: so much a token, and so much besides.
        catch_up: for each token that a drafter missed while it was not asked.
        noise: sigma of the log-normal noise of each timing.
        spikes: the share of passes that take three times as long.
    """

    row: float = 0.03
    steps: tuple[int, ...] = ()
    step_cost: float = 0.0
    token: float = 0.2
    start: float = 0.0
    catch_up: float = 0.0
    noise: float = 0.0
    spikes: float = 0.0

    def target(self, rows: int) -> float:
        """T(n)."""
        return 1 + self.row * (rows - 1) + self.step_cost * sum(rows > step for step in self.steps)


@dataclass(frozen=True, slots=True)
class Script:
    """One drafter on one text: for each token whether it is right, and the belief in it.

    Args:
        right: whether the draft of a token is accepted behind a right prefix.
        confidence: of each token; None for a drafter that does not say.
        has: where the drafter has anything to propose.
        gates: whether it looks at its first confidence before it proposes.
    """

    right: Sequence[bool]
    confidence: Sequence[float] | None = None
    has: Sequence[bool] | None = None
    gates: bool = False

    @classmethod
    def soft(
        cls, rate: Rate, length: int, seed: int, *, spread: float = 0.6, power: float = 0.7
    ) -> Script:
        """A draft model: tokens differ in how hard they are, and it has a fair idea of that.

        Each acceptance is Beta(m / spread, (1 - m) / spread) with mean m = `rate`, and the
        confidence is that to the power 1 / `power`: too modest below 1, too sure above.
        """
        chance = random.Random(f"soft {seed}")
        right, confidence = [], []
        for t in range(length):
            m = min(max(rate(t), 1e-3), 1 - 1e-3)
            own = chance.betavariate(m / spread, (1 - m) / spread)
            right.append(chance.random() < own)
            confidence.append(max(own, 1e-4) ** (1 / power))
        return cls(right, confidence)

    @classmethod
    def blind(cls, rate: Rate, length: int, seed: int) -> Script:
        """A drafter that does not say how sure it is, with independent acceptance."""
        chance = random.Random(f"blind {seed}")
        return cls([chance.random() < rate(t) for t in range(length)])

    @classmethod
    def copying(
        cls, length: int, seed: int, *, share: float, run: float = 12.0, weak: float = 0.25
    ) -> Script:
        """N-grams: stretches that are copied, `share` of the text in runs of mean length `run`.

        Within a run the match grows and nearly all is right; elsewhere there is a short match in
        half of the places, right `weak` of the time.
        """
        chance = random.Random(f"copying {seed}")
        right, confidence, has = [], [], []
        match, inside = 0, False
        for _ in range(length):
            switch = 1 / run if inside else share / (run * max(1 - share, 1e-9))
            if chance.random() < min(switch, 1.0):
                inside, match = not inside, 0
            if inside:
                match += 1
                has.append(match > 1)
                right.append(chance.random() < 0.97)
            else:
                match = 0 if chance.random() < 0.5 else chance.choice((1, 1, 2))
                has.append(match > 0)
                right.append(chance.random() < weak)
            confidence.append(match / (match + 2))
        return cls(right, confidence, has, gates=True)


@dataclass(slots=True)
class Run:
    """What a controller made of a text."""

    tokens: int = 0
    seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)
    drafters: list[str] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Tokens a second; plain decoding has 1."""
        return self.tokens / self.seconds


def simulate(
    controller: Controller,
    scripts: Script | Mapping[str, Script],
    costs: Costs | Mapping[str, Costs],
    *,
    num_tokens: int,
    seed: int = 0,
    num_sequences: int = 1,
) -> Run:
    """Let a controller decode `num_tokens` tokens of a text.

    Args:
        controller: under test.
        scripts: of each drafter by name, in the order of a cascade; one alone has no name.
        costs: for all, or by drafter; the target's are those of the first.
        num_tokens: the length of the answer.
        seed: of the noise of timings.
        num_sequences: a batch of sequences that all do the same.

    Raises:
        KeyError: the controller asks for a drafter that is not there.
    """
    parts = {"": scripts} if isinstance(scripts, Script) else dict(scripts)
    prices = dict(costs) if isinstance(costs, Mapping) else dict.fromkeys(parts, costs)
    target, chance = next(iter(prices.values())), random.Random(f"noise {seed}")
    session, run, idle = controller.open(), Run(), dict.fromkeys(parts, 0)

    def noisy(seconds: float) -> float:
        factor = math.exp(target.noise * chance.gauss(0, 1))
        return seconds * factor * (3 if chance.random() < target.spikes else 1)

    while run.tokens < num_tokens:
        asked = session.budget().within(num_tokens - run.tokens - 1)
        name, draft = _draft(asked, parts, run.tokens)
        n, right = len(draft), parts[name].right if name is not None else ()
        accepted = next((j for j in range(n) if not right[run.tokens + j]), n)
        rows = num_sequences * (1 + n)
        target_seconds, draft_seconds = target.target(rows), 0.0
        if name is not None:
            price = prices[name]
            draft_seconds = price.start + price.token * n + price.catch_up * idle[name]
        committed = accepted + 1
        run.seconds += target_seconds + num_sequences * draft_seconds
        session.observe(
            Outcome(
                asked,
                draft,
                accepted,
                min(accepted + 1, n),
                noisy(draft_seconds),
                noisy(target_seconds),
                0.0,
                num_sequences,
                rows,
                run.tokens,
            )
        )
        for other in idle:
            idle[other] = 0 if other == name else idle[other] + committed
        run.tokens += committed
        run.lengths.append(n)
        run.drafters.append(name or "")
    return run


def _draft(budget: Budget, parts: Mapping[str, Script], at: int) -> tuple[str | None, Draft]:
    """The draft behind token `at`, and who made it."""
    own: Budget | None = budget
    while own is not None:
        for name in parts if own.drafter is None else (own.drafter,):
            script, count = parts[name], 0
            has = script.has is None or script.has[at]
            confidence: list[float] = []
            if script.confidence is not None:
                gated = script.gates and script.confidence[at] < own.min_first_confidence
                has = has and not gated
            path = 1.0
            while has and count < own.num_draft_tokens:
                belief = 1.0 if script.confidence is None else script.confidence[at + count]
                confidence.append(belief)
                count += 1
                path *= belief
                if belief < own.min_confidence or path < own.min_path_confidence:
                    break
            if count:
                said = None if script.confidence is None else tuple(confidence)
                draft = Draft((0,) * count, confidence=said, drafter=name or None)
                return name, draft
        own = own.fallback
    return None, Draft()
