"""The time of target passes and draft steps, and the speed-up that a replay's acceptance gives.

Each repeat times every shape of pass once, so that a slow moment of the machine affects all of
them: only their ratios matter. The medians are made non-decreasing in the number of rows (isotonic
regression), so that no speed-up can exceed the tokens per round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from time import perf_counter
from typing import Any

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Target, Work
from paceline.economics import cost, stats
from paceline.economics.acceptance import AcceptanceProfile
from paceline.economics.curve import interpolated
from paceline.economics.stats import AcceptanceCounts

FEWEST_REPEATS, MOST_REPEATS = 9, 31
"""How often each shape of pass is timed, if it fits into `SECONDS`."""

SECONDS = 10.0

DRAWS = 400
"""Resamples for an interval."""

CONFIDENCE = 0.95


@dataclass(frozen=True)
class PassTimes:
    """Timed passes of the target, and steps of draft models, in the same repeats.

    Args:
        seconds: by the rows of a target pass, one time per repeat.
        steps: by the index of a method, the time of a pass of its draft model over one row, one per
            repeat; methods without a draft model have none.
    """

    seconds: Mapping[int, Sequence[float]]
    steps: Mapping[int, Sequence[float]]

    @property
    def num_repeats(self) -> int:
        """How often everything was timed."""
        return len(next(iter(self.seconds.values())))

    @cached_property
    def medians(self) -> dict[int, float]:
        """Seconds by rows, made non-decreasing."""
        rows = sorted(self.seconds)
        return dict(zip(rows, _rising([median(self.seconds[n]) for n in rows]), strict=True))

    def of(self, rows: int) -> float:
        """The time of a pass over this many rows, interpolated linearly.

        >>> PassTimes({1: [1.0], 5: [2.0]}, {}).of(3)
        1.5
        """
        known = sorted(self.medians)
        return interpolated(known, [self.medians[n] for n in known], rows)

    def step(self, method: int) -> float:
        """The time of a step of a method's draft model."""
        return median(self.steps[method])

    def resampled(self, repeats: Sequence[int]) -> PassTimes:
        """The times of the given repeats, for a bootstrap."""

        def drawn(times: Sequence[float]) -> list[float]:
            return [times[place] for place in repeats]

        return PassTimes(
            {rows: drawn(times) for rows, times in self.seconds.items()},
            {place: drawn(times) for place, times in self.steps.items()},
        )


@dataclass(frozen=True, slots=True)
class Predicted:
    """A predicted speed-up.

    Args:
        value: over plain decoding.
        low, high: its interval, over other texts of the same kind and other timings.
    """

    value: float
    low: float
    high: float


def time_passes(
    target: Target,
    drafts: Mapping[int, Target],
    tokens: Sequence[int],
    longest_draft: int,
    clock: Callable[[], float] = perf_counter,
) -> PassTimes:
    """Time target passes over one row and over more, and draft steps, alternately, after a text.

    Args:
        target: the model.
        drafts: the draft model of each method that has one, by the index of the method.
        tokens: the text, at least one token.
        longest_draft: the longest draft of interest.
        clock: gives the time in seconds.
    """
    most = target.info.max_draft_tokens
    longest = longest_draft if most is None else min(longest_draft, most)
    lengths = sorted({0, *(longest * share // 3 for share in (1, 2, 3))})
    shapes: list[tuple[Any, Target, int]] = [(("target", n + 1), target, n) for n in lengths]
    models = {id(draft): draft for draft in drafts.values()}
    shapes += [(("draft", key), model, 0) for key, model in models.items()]
    times: dict[Any, list[float]] = {key: [] for key, _, _ in shapes}
    with ExitStack() as opened:
        roots = {
            key: _root(model, tokens, longest, opened)
            for key, model in {id(target): target, **models}.items()
        }
        start = clock()
        for repeat in range(MOST_REPEATS + 1):
            turn = repeat % len(shapes)
            for key, model, length in shapes[turn:] + shapes[:turn]:
                slot, root = roots[id(model)]
                work = [Work(slot, [root], Draft((root,) * length))]
                begin = clock()
                model.score(work)
                if repeat:  # the first pass of a shape is slower
                    times[key].append(clock() - begin)
            if repeat >= FEWEST_REPEATS and clock() - start > SECONDS:
                break
    return PassTimes(
        {n + 1: times["target", n + 1] for n in lengths},
        {place: times["draft", id(draft)] for place, draft in drafts.items()},
    )


def _root(model: Target, tokens: Sequence[int], longest: int, opened: ExitStack) -> tuple[Any, int]:
    """A slot that holds as much of the text as the model takes, and the next token."""
    info = model.info
    room = None if info.max_length is None else max(1, info.max_length - longest - 1)
    context = [token if token < info.vocab_size else 0 for token in tokens[:room]]
    slot = model.open(len(context) + longest + 1)
    opened.callback(model.close, slot)
    prefill(model, slot, context[:-1])
    return slot, context[-1]


def predicted_speedup(
    counts: AcceptanceCounts, passes: PassTimes, draft_s: Callable[[PassTimes, int], float]
) -> float | None:
    """The speed-up over plain decoding that the cost model gives; None without a round.

    Args:
        counts: acceptance by position.
        passes: of the target.
        draft_s: the time of a draft of a given length, by these timings.
    """
    if not counts.rounds:
        return None
    rates = stats.conditional_acceptance_rate_per_position(counts) or ()
    profile = AcceptanceProfile(tuple(rate or 0.0 for rate in rates), beyond=0.0)
    reach = (*counts.drafted, 0)
    shares = {0: counts.rounds - reach[0]}
    shares |= {place: reach[place - 1] - reach[place] for place in range(1, len(reach))}
    tokens = seconds = 0.0
    for length, rounds in shares.items():
        if rounds:
            tokens += rounds * cost.expected_tokens(profile, length)
            seconds += rounds * (passes.of(length + 1) + draft_s(passes, length))
    return tokens * passes.of(1) / seconds


def predict(
    texts: Sequence[AcceptanceCounts],
    passes: PassTimes,
    draft_s: Callable[[PassTimes, int], float],
    seed: int = 0,
) -> Predicted | None:
    """The predicted speed-up with its interval; None without a round.

    The interval is a bootstrap over texts and over repeats of the timings at the same time.

    Args:
        texts: acceptance by position, of each text.
        passes, draft_s: see `predicted_speedup`.
        seed: of the resampling.
    """
    import numpy as np

    value = predicted_speedup(sum(texts, AcceptanceCounts()), passes, draft_s)
    if value is None:
        return None
    random = np.random.default_rng(seed)
    found = []
    for _ in range(DRAWS):
        drawn = random.integers(len(texts), size=len(texts))
        counts = sum((texts[place] for place in drawn), AcceptanceCounts())
        repeats = random.integers(passes.num_repeats, size=passes.num_repeats).tolist()
        again = predicted_speedup(counts, passes.resampled(repeats), draft_s)
        if again is not None:
            found.append(again)
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(found, [edge, 1 - edge]) if found else (value, value)
    return Predicted(value, min(float(low), value), max(float(high), value))


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest non-decreasing sequence, by least squares."""
    from scipy.optimize import isotonic_regression

    return [float(value) for value in isotonic_regression(values).x]
