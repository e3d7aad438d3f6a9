"""Run the race on a loaded model, then measure what its winner gains on other prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from paceline.workbench.bench import running
from paceline.workbench.bench.running import Setting
from paceline.workbench.bench.runs import Run
from paceline.workbench.bench.schedule import Step
from paceline.workbench.recommend.race import FIRST_BLOCKS, Race, race

PLAIN = 0
"""The index of plain decoding among the methods."""

WARM_UP_TOKENS = 12

CHECK_SHARE = 0.35
"""The share of the time for measuring the winner against plain decoding."""

FIRST_SHARE = 0.5
"""The largest share of the race's time for the first prompts, which all methods answer."""

SHORTEST_ANSWER = 24
"""Tokens; in shorter answers a controller has hardly started to learn."""

FEWEST_METHODS = 6
"""At least this many of the most promising methods are tried, however short the time."""

ENOUGH_CHECKS = 3
"""With the winner measured on fewer prompts than this, the report says that time was short."""

ENOUGH_PROMPTS = 8
"""From this many prompts on, a third of them are reserved for measuring the winner."""

Progress = Callable[[str], None]
"""Called before each run with a description of it."""


class Entry(NamedTuple):
    """One run of the race."""

    arm: int
    block: int
    run: Run


@dataclass
class Measured:
    """The measurements.

    Args:
        race: the remaining methods, and the scores of all.
        entries: every run of the race.
        checks: the winner, as method 1, and plain decoding, as method 0, on the same prompts.
        fresh: whether the prompts of `checks` were not used for the choice.
        checks_missing: how many prompts more the winner would have been measured on with more time.
        left_out: the methods that there was no time to try.
        interrupted: whether the user interrupted it.
    """

    race: Race
    entries: list[Entry] = field(default_factory=list)
    checks: list[Run] = field(default_factory=list)
    fresh: bool = True
    checks_missing: int = 0
    left_out: list[int] = field(default_factory=list)
    interrupted: bool = False

    @property
    def winner(self) -> int:
        """The index of the fastest method."""
        return self.race.leader


def measure(
    setting: Setting, clock: Callable[[], float], deadline: float, progress: Progress
) -> Measured | None:
    """Warm up, race, and check the winner, until `deadline` or until the user stops.

    Args:
        setting: what is run. Plain decoding comes first, then the methods, the most promising
            first.
        clock: gives the time in seconds.
        deadline: in the time of `clock`.
        progress: see `Progress`.

    Returns:
        None if it was interrupted before every method had run once.
    """
    found = Measured(Race({}, []))
    try:
        _race(setting, found, clock, clock() + (1 - CHECK_SHARE) * (deadline - clock()), progress)
        if found.race.num_blocks and not found.interrupted:
            _check(setting, found, clock, deadline, progress)
    except KeyboardInterrupt:
        found.interrupted = True
    return found if found.race.active and found.race.num_blocks else None


def score(run: Run) -> float:
    """The logarithm of the tokens per second of the whole answer, including the prefill."""
    return math.log(max(len(run.tokens), 1) / run.total_s)


def _race(
    setting: Setting,
    found: Measured,
    clock: Callable[[], float],
    deadline: float,
    progress: Progress,
) -> None:
    most = int(setting.common["max_tokens"])
    progress("warming up")
    _warm_up(setting, PLAIN, most)
    plain = _warm_up(setting, PLAIN, most)  # the first one also loads and compiles
    arms = [PLAIN]
    # The time of every method's first answers, if none were faster than plain decoding.
    each = FIRST_BLOCKS * plain.prefill_s
    a_token = FIRST_BLOCKS * plain.decode_s / max(len(plain.tokens), 1)
    shortest = min(most, SHORTEST_ANSWER)
    for arm in range(1, len(setting.methods)):
        # Read the clock again, because the warm-up may take long on a busy machine.
        room = FIRST_SHARE * (deadline - clock())
        needed = (len(arms) + 1) * (each + shortest * a_token)
        if len(arms) >= FEWEST_METHODS and needed > room:
            found.left_out.append(arm)
            continue
        _warm_up(setting, arm, most)
        arms.append(arm)
    room = FIRST_SHARE * (deadline - clock())
    affordable = (room / len(arms) - each) / a_token if a_token else most
    tokens = max(shortest, min(most, int(affordable)))
    items = _race_items(len(setting.prompts))

    def run_block(places: Sequence[int], block: int, phase: int) -> list[float] | None:
        scores = dict.fromkeys(places, 0.0)
        # Rotate the order in each block, so that no method always follows the same other one.
        turn = block % len(places)
        for place in (*places[turn:], *places[:turn]):
            progress(f"trying {len(places)} methods")
            step = Step(items[block % len(items)], arms[place])
            try:
                done = running.run(setting, step, max_tokens=most if phase else tokens)
            except KeyboardInterrupt:
                found.interrupted = True
                return None
            found.entries.append(Entry(arms[place], block, done))
            scores[place] = score(done)
        return [scores[place] for place in places]

    result = race(len(arms), run_block, clock, deadline)
    found.race = Race(
        {arms[place]: scores for place, scores in result.scores.items()},
        [arms[place] for place in result.active],
        {arms[place]: block for place, block in result.left_after.items()},
    )


def _warm_up(setting: Setting, method: int, most: int) -> Run:
    """Make a short answer: the first pass of each shape is slower than later ones."""
    return running.run(setting, Step(0, method), max_tokens=min(most, WARM_UP_TOKENS))


def _check(
    setting: Setting,
    found: Measured,
    clock: Callable[[], float],
    deadline: float,
    progress: Progress,
) -> None:
    """Measure the winner and plain decoding alternately, on prompts not used for the choice.

    A pair of answers begins only if at least half of it fits into the time.
    """
    if found.winner == PLAIN:
        return
    items = _check_items(len(setting.prompts))
    found.fresh = not set(items) & {entry.run.item for entry in found.entries}
    start, one = clock(), _expected_pair(setting, found)
    for number, item in enumerate(_cycle(items)):
        if number:
            one = (clock() - start) / number
        if clock() + one / 2 > deadline:
            found.checks_missing = max(min(ENOUGH_CHECKS, len(items)) - number, 0)
            break
        pair = []
        for method in (PLAIN, 1) if number % 2 else (1, PLAIN):
            progress("measuring the best against plain decoding")
            done = running.run(setting, Step(item, found.winner if method else PLAIN))
            pair.append(_as_method(done, method))
        found.checks += pair


def _expected_pair(setting: Setting, found: Measured) -> float:
    """The time of an answer of plain decoding and one of the winner, going by the race."""
    runs = [entry.run for entry in found.entries if entry.arm in (PLAIN, found.winner)]
    most = int(setting.common["max_tokens"])
    seconds = [run.prefill_s + run.decode_s * most / max(len(run.tokens), 1) for run in runs]
    return 2 * fmean(seconds)


def _as_method(run: Run, method: int) -> Run:
    from dataclasses import replace

    return replace(run, method=method)


def _cycle(items: Sequence[int]) -> Iterator[int]:
    while True:
        yield from items


def _race_items(count: int) -> list[int]:
    """The prompts of the race: those that are not reserved for the check."""
    return list(range(count - count // 3 if count >= ENOUGH_PROMPTS else count))


def _check_items(count: int) -> list[int]:
    """The prompts of the check: the last third; all of them if there are few.

    >>> _check_items(9), _check_items(3)
    ([6, 7, 8], [0, 1, 2])
    """
    return list(range(len(_race_items(count)), count)) or list(range(count))
