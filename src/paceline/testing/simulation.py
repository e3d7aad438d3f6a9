"""How a controller does on a scripted text with scripted costs, instantly and without a model.

A `Script` gives, for each drafter and each token of a text, whether a draft of it would be accepted
after a correct prefix, and the drafter's confidence. All controllers get the same text, so they can
be compared token by token, and with the best draft length in hindsight.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from paceline.core.drafts import Budget, Draft, Outcome
from paceline.core.protocols import Controller
from paceline.core.target import Opening

Rate = Callable[[int], float]
"""From the index of a token in the text to its mean acceptance."""

Disturbance = Callable[[int, random.Random], tuple[float, float]]
"""From the number of a round, and randomness, to the factors by which the measured times of its
pass and its draft exceed the undisturbed ones."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The time of a round, in seconds.

    Args:
        row: T(n) is 1 for one row, and grows by `row` with each further row.
        steps: row counts beyond which T(n) jumps by `step_cost`, as where kernels change.
        step_cost: see `steps`.
        token, start: the time of a draft: per token, and fixed.
        catch_up: the time for each token that a drafter missed while it was not used, including the
            prompt.
        prefill: the target's time for each token of the prompt.
        noise: the sigma of the log-normal noise of each timing.
        spikes: the share of passes that take three times as long.
    """

    row: float = 0.03
    steps: tuple[int, ...] = ()
    step_cost: float = 0.0
    token: float = 0.2
    start: float = 0.0
    catch_up: float = 0.0
    prefill: float = 0.0
    noise: float = 0.0
    spikes: float = 0.0

    def errs(self, number: int, chance: random.Random) -> tuple[float, float]:
        """The errors of the clock in a round; see `Disturbance`."""

        def factor() -> float:
            slow = 3 if chance.random() < self.spikes else 1
            return slow * math.exp(self.noise * chance.gauss(0, 1))

        of_draft = factor()
        return factor(), of_draft

    def target(self, rows: int) -> float:
        """T(n)."""
        return 1 + self.row * (rows - 1) + self.step_cost * sum(rows > step for step in self.steps)


@dataclass(frozen=True, slots=True)
class Script:
    """One drafter on one text: for each token whether it is right, and its confidence.

    Args:
        right: whether the draft of a token is accepted after a correct prefix.
        confidence: the confidence of each token; None for a drafter that has none.
        has: where the drafter has something to propose.
        gates: whether it checks its first confidence before it proposes.
        right_of_short: like `right`, if it does not see the whole text (`Budget.max_catch_up`);
            None if that makes no difference.
        chance: the probability with which each token was drawn to be right; None if `right` was
            given as it is.
    """

    right: Sequence[bool]
    confidence: Sequence[float] | None = None
    has: Sequence[bool] | None = None
    gates: bool = False
    right_of_short: Sequence[bool] | None = None
    chance: Sequence[float] | None = None

    def expected_tokens(self, at: int, length: int) -> float:
        """What a draft of so many tokens after token `at` brings on average, and one more token.

        Given `chance`, and a drafter that sees all of the text; otherwise what it does bring.

        Example:
            >>> Script([True, False], chance=[0.5, 0.5]).expected_tokens(0, 2)
            1.75
        """
        odds = self.right if self.chance is None else self.chance
        return 1.0 + math.fsum(accumulate(odds[at : at + length], mul))

    @classmethod
    def soft(
        cls, rate: Rate, length: int, seed: int, *, spread: float = 0.6, power: float = 0.7
    ) -> Script:
        """A draft model: tokens differ in difficulty, which its confidence roughly reflects.

        Each acceptance is Beta(m / spread, (1 - m) / spread) with mean m = `rate`, and the
        confidence is that to the power 1 / `power`: underconfident below 1, overconfident above.
        """
        chance = random.Random(f"soft {seed}")
        right, confidence, chances = [], [], []
        for t in range(length):
            m = min(max(rate(t), 1e-3), 1 - 1e-3)
            own = chance.betavariate(m / spread, (1 - m) / spread)
            right.append(chance.random() < own)
            confidence.append(max(own, 1e-4) ** (1 / power))
            chances.append(own)
        return cls(right, confidence, chance=chances)

    @classmethod
    def blind(cls, rate: Rate, length: int, seed: int) -> Script:
        """A drafter without confidences, with independent acceptance."""
        chance = random.Random(f"blind {seed}")
        chances = [rate(t) for t in range(length)]
        return cls([chance.random() < own for own in chances], chance=chances)

    @classmethod
    def copying(
        cls, length: int, seed: int, *, share: float, run: float = 12.0, weak: float = 0.25
    ) -> Script:
        """N-grams: stretches that are copied, `share` of the text in runs of mean length `run`.

        Within a run the match grows and nearly everything is right; elsewhere half of the positions
        have a short match, which is right with probability `weak`.
        """
        chance = random.Random(f"copying {seed}")
        right, confidence, has, chances = [], [], [], []
        match, inside = 0, False
        for _ in range(length):
            switch = 1 / run if inside else share / (run * max(1 - share, 1e-9))
            if chance.random() < min(switch, 1.0):
                inside, match = not inside, 0
            if inside:
                match += 1
                has.append(match > 1)
                chances.append(0.97)
            else:
                match = 0 if chance.random() < 0.5 else chance.choice((1, 1, 2))
                has.append(match > 0)
                chances.append(weak)
            right.append(chance.random() < chances[-1])
            confidence.append(match / (match + 2))
        return cls(right, confidence, has, gates=True, chance=chances)


class Round(NamedTuple):
    """One round.

    Args:
        at: the tokens of the answer before it.
        drafter: that drafted; "" for none, or one without a name.
        length: the drafted tokens.
        seconds: what it took, undisturbed.
        expected_tokens: see `Script.expected_tokens`.
    """

    at: int
    drafter: str
    length: int
    seconds: float
    expected_tokens: float


@dataclass(slots=True)
class Run:
    """The result of a controller on a text."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: list[Round] = field(default_factory=list)

    @property
    def lengths(self) -> list[int]:
        """The drafted tokens of each round."""
        return [one.length for one in self.rounds]

    @property
    def drafters(self) -> list[str]:
        """The drafter of each round."""
        return [one.drafter for one in self.rounds]

    @property
    def speed(self) -> float:
        """Tokens per second; plain decoding has 1."""
        return self.tokens / self.seconds

    def expected_speed(self, after: int = 0) -> float:
        """Expected tokens per second of the rounds after so many tokens, without their luck."""
        late = [one for one in self.rounds if one.at >= after]
        return math.fsum(one.expected_tokens for one in late) / math.fsum(
            one.seconds for one in late
        )


def simulate(
    controller: Controller,
    scripts: Script | Mapping[str, Script],
    costs: Costs | Mapping[str, Costs],
    *,
    num_tokens: int,
    seed: int = 0,
    num_sequences: int = 1,
    opening: Opening | None = None,
    disturbed: Disturbance | None = None,
) -> Run:
    """Let a controller decode `num_tokens` tokens of a text.

    Args:
        controller: the controller under test.
        scripts: the script of each drafter by name, in cascade order; a single one has no name.
        costs: the costs for all drafters, or by drafter; the target's are those of the first.
        num_tokens: the length of the answer.
        seed: the seed of the timing noise.
        num_sequences: the size of a batch whose sequences all do the same.
        opening: what the controller knows in advance; None for nothing. The time for its prompt
            counts, both of the target and of what a draft model reads.
        disturbed: the errors of the clock, instead of the noise of `costs`. The time that counts is
            the undisturbed one, so that runs can be compared.

    Raises:
        KeyError: the controller asks for a drafter that does not exist.
    """
    parts = {"": scripts} if isinstance(scripts, Script) else dict(scripts)
    prices = dict(costs) if isinstance(costs, Mapping) else dict.fromkeys(parts, costs)
    target, chance = next(iter(prices.values())), random.Random(f"noise {seed}")
    known = opening or Opening()
    session, run = controller.open(known), Run()
    read = {name: _Read(known.num_prompt_tokens) for name in parts}
    run.seconds += num_sequences * target.prefill * known.num_prompt_tokens
    errs = disturbed or target.errs

    while run.tokens < num_tokens:
        asked = session.budget().within(num_tokens - run.tokens - 1)
        name, draft, rights = _draft(asked, parts, run.tokens, read)
        n = len(draft)
        accepted = next((j for j in range(n) if not rights[run.tokens + j]), n)
        committed = accepted + 1
        rows = num_sequences * (1 + n)
        target_seconds, draft_seconds = target.target(rows), 0.0
        if name is not None:
            price = prices[name]
            draft_seconds = price.start + price.token * n + price.catch_up * read[name].last
        took = target_seconds + num_sequences * draft_seconds
        run.seconds += took
        expected = parts[name].expected_tokens(run.tokens, n) if name is not None else 1.0
        of_pass, of_draft = errs(len(run.rounds), chance)
        session.observe(
            Outcome(
                asked,
                draft,
                accepted,
                min(accepted + 1, n),
                draft_seconds * of_draft,
                target_seconds * of_pass,
                0.0,
                num_sequences,
                rows,
                run.tokens,
            )
        )
        for one in read.values():
            one.add(committed)
        run.rounds.append(Round(run.tokens, name or "", n, took, expected))
        run.tokens += committed
    return run


class _Read:
    """How much of the text a draft model has read; see `Budget.max_catch_up`."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = self.missing = num_tokens
        self.is_short = False
        self.last = 0
        """The number of tokens that it read for its last draft."""

    def add(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self.missing += num_tokens

    def catch_up(self, limit: int | None) -> None:
        if limit is None:
            self.last = self.num_tokens if self.is_short else self.missing
        else:
            self.last = min(self.missing, limit)
        self.is_short = limit is not None and (self.is_short or self.missing > limit)
        self.missing = 0


def _draft(
    budget: Budget, parts: Mapping[str, Script], at: int, read: Mapping[str, _Read]
) -> tuple[str | None, Draft, Sequence[bool]]:
    """The draft after token `at`, its drafter, and which tokens are right for it."""
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
                read[name].catch_up(own.max_catch_up)
                short = script.right_of_short if read[name].is_short else None
                said = None if script.confidence is None else tuple(confidence)
                draft = Draft((0,) * count, confidence=said, drafter=name or None)
                return name, draft, script.right if short is None else short
        own = own.fallback
    return None, Draft(), ()
