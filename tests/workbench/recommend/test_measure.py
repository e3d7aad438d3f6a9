"""Race and check with scripted runs, by a clock of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from paceline.workbench.bench import running
from paceline.workbench.bench.running import Setting
from paceline.workbench.bench.runs import RoundFacts, Run
from paceline.workbench.bench.schedule import Step
from paceline.workbench.recommend import measure as measuring
from paceline.workbench.recommend.measure import Measured, measure
from paceline.workbench.recommend.report import terminal_sections, verdicts
from paceline.workbench.recommend.results import Recommendation
from paceline.workbench.workload.methods import Method, parse_methods

TEXTS = ["ngram,k=auto", "suffix,k=auto", "ngram,k=5", "suffix,k=8", "recycling,k=6", "jacobi"]
SPEEDS = (1.0, 1.3, 2.0, 1.2, 1.1, 0.8, 0.5)
"""Of plain decoding and of each method; `suffix,k=auto` is the fastest."""


class Machine:
    """Answers at known speeds. A token of plain decoding takes .1 s, and a prompt .5 s."""

    def __init__(self, speeds: tuple[float, ...] = SPEEDS, possible: float = 3.0) -> None:
        self.speeds, self.possible, self.now = speeds, possible, 0.0
        self.slowness = 1.0
        self.runs: list[tuple[Step, int]] = []

    def run(self, setting: Setting, step: Step, **changes: Any) -> Run:
        tokens = changes.get("max_tokens", setting.common["max_tokens"])
        self.runs.append((step, tokens))
        # Prompts differ a little in how much they suit a method.
        speed = self.speeds[step.method] ** (1 + 0.05 * math.sin(7 * step.item + step.method))
        seconds = self.slowness * 0.1 * tokens / speed
        prefill = self.slowness * 0.5
        self.now += prefill + seconds
        rounds = tokens if not step.method else max(1, round(tokens / self.possible))
        facts = RoundFacts(1, 1, 1, 1, 2, 0, 0, 0)
        return Run(
            step.item,
            step.method,
            tuple(range(tokens)),
            "length",
            9,
            (facts,) * rounds,
            prefill,
            seconds,
        )


def measured(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, *, budget: float, prompts: int = 12
) -> Measured:
    monkeypatch.setattr(running, "run", machine.run)
    setting = Setting(
        model=None,  # type: ignore[arg-type]
        prompts=["x"] * prompts,
        methods=[{}] * len(machine.speeds),
        common={"max_tokens": 32},
    )
    found = measure(setting, lambda: machine.now, budget, lambda _: None)
    assert found is not None
    return found


def recommendation(found: Measured) -> Recommendation:
    return Recommendation(parse_methods(TEXTS), found, about={"model": "T"})


def test_the_fastest_is_named_with_a_gain_from_other_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    result = recommendation(measured(monkeypatch, machine, budget=400.0))
    assert result.method.name == "suffix,k=auto"
    assert result.measured.fresh
    raced = {entry.run.item for entry in result.measured.entries}
    assert not raced & {run.item for run in result.measured.checks}
    gain = result.decoding_gain
    assert gain is not None
    assert gain.value == pytest.approx(2.0, rel=0.05)
    assert result.settings()["drafting"] == {"drafter": "suffix", "num_draft_tokens": "auto"}
    assert machine.now < 1.1 * 400
    (advice, *_) = verdicts(result)
    assert advice.text.startswith("`suffix,k=auto`: ")
    assert "--settings" in str(terminal_sections(result))


def test_few_prompts_serve_twice_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = recommendation(measured(monkeypatch, Machine(), budget=400.0, prompts=4))
    assert not result.measured.fresh
    assert "few prompts" in [verdict.word for verdict in verdicts(result)]


def test_plain_decoding_where_nothing_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = (1.0, *(0.8,) * 6)
    result = recommendation(measured(monkeypatch, Machine(slow), budget=400.0))
    assert result.method.name == "none"
    assert result.settings()["drafting"] == {"drafter": "none"}
    assert verdicts(result)[0].word == "use plain decoding"


def test_a_gain_that_the_check_does_not_confirm_is_not_recommended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The winner of the race turns out no faster than plain decoding on the other prompts."""
    found = measured(monkeypatch, Machine(), budget=400.0)
    found.checks = [
        Run(item, method, (1, 2), "length", 9, (), 0.0, 1.0)
        for item in range(4)
        for method in (0, 1)
    ]
    result = recommendation(found)
    assert result.method.name == "none"
    assert "the best, `suffix,k=auto`, had 1.00" in verdicts(result)[0].text


def test_noise_is_no_recommendation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as fast with 1.2 tokens per round cannot be."""
    result = recommendation(measured(monkeypatch, Machine(possible=1.2), budget=400.0))
    assert not result.is_possible
    assert verdicts(result)[0].word == "measure again"
    assert result.to_json()["settings"] is None


@pytest.mark.parametrize("budget", [1.0, 60.0])
def test_where_time_is_short_the_most_promising_are_tried(
    monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    machine = Machine((*SPEEDS, *(1.1,) * 20))
    found = measured(monkeypatch, machine, budget=budget)
    tried = sorted({entry.arm for entry in found.entries})
    assert tried[: measuring.FEWEST_METHODS] == list(range(measuring.FEWEST_METHODS))
    assert sorted([*tried, *found.left_out]) == list(range(27))
    assert found.left_out
    methods = [Method(("ngram",), name=f"m{place}") for place in range(27)]
    words = [verdict.word for verdict in verdicts(Recommendation(methods, found))]
    assert "not tried" in words
    assert ("too little time" in words) == (found.race.num_blocks <= 2)
    assert ("too little time" in words) or budget > 1


def test_a_prompt_that_gives_no_token_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    whole: Callable[..., Run] = machine.run

    def some_empty(setting: Setting, step: Step, **changes: Any) -> Run:
        found = whole(setting, step, **changes)
        if step.item % 3 == 1:
            return Run(step.item, step.method, (), "stop", 9, (), 0.5, 0.0)
        return found

    machine.run = some_empty  # type: ignore[method-assign]
    result = recommendation(measured(monkeypatch, machine, budget=400.0))
    assert result.method.name == "suffix,k=auto"


@pytest.mark.parametrize("slowness", [1.0, 3.0, 6.0, 12.0])
def test_the_budget_is_kept_on_a_slow_machine(
    monkeypatch: pytest.MonkeyPatch, slowness: float
) -> None:
    """A whole answer of plain decoding takes from 3.7 s to 44 s."""
    machine = Machine()
    machine.slowness = slowness
    found = measured(monkeypatch, machine, budget=400.0)
    assert machine.now < 1.1 * 400
    pairs = len(found.checks) // 2
    assert found.checks_missing == max(measuring.ENOUGH_CHECKS - pairs, 0)
    words = [verdict.word for verdict in verdicts(recommendation(found))]
    assert ("too little time" in words) == (pairs < 3 or found.race.num_blocks <= 2)


def test_a_time_that_allows_no_check_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, Machine(), budget=1.0)
    assert not found.checks
    assert found.checks_missing == 3
    about = {"seconds": 25.0, "options": {"budget": 1}}
    result = Recommendation(parse_methods(TEXTS), found, about=about)
    said = {verdict.word: verdict.text for verdict in verdicts(result)}
    assert "its gain was not measured" in said["use"]
    assert "before a prompt of those that measure the gain" in said["too little time"]
    assert "It took 25 s where the budget was 1 s" in said["over the budget"]
    assert result.gain is None
    assert result.to_json()["checks_missing"] == 3
    kept = Recommendation(parse_methods(TEXTS), found, about={**about, "seconds": 1.1})
    assert "over the budget" not in [verdict.word for verdict in verdicts(kept)]
