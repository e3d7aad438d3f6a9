"""The default controller on scripted texts: against plain decoding and the best fixed length."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from paceline.controllers.auto import AutoController
from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Budget, Draft, Outcome
from paceline.errors import InvalidInput
from paceline.testing.simulation import Costs, Rate, Run, Script, simulate

NUM_TOKENS, SEEDS = 300, range(8)
MODEL = Costs(token=0.25, row=0.03, noise=0.05, spikes=0.03, catch_up=0.004)
CHEAP = Costs(token=0.08, row=0.02, noise=0.05, spikes=0.03, catch_up=0.003)
NGRAM = Costs(token=0.0, start=0.001, row=0.04, noise=0.05, spikes=0.03)
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 10, 12)


def mean(values: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def speed(controller: Any, script: Callable[[int], Script], costs: Costs) -> float:
    """The geometric mean over seeds; plain decoding has 1."""
    runs = [simulate(controller, script(s), costs, num_tokens=NUM_TOKENS, seed=s) for s in SEEDS]
    return mean([run.speed for run in runs])


def best_fixed(script: Callable[[int], Script], costs: Costs) -> float:
    return max(speed(FixedController(k), script, costs) for k in LENGTHS)


def soft(rate: Rate | float) -> Callable[[int], Script]:
    rule = rate if callable(rate) else lambda t: rate
    return lambda seed: Script.soft(rule, NUM_TOKENS + 40, seed)


def blind(rate: Rate | float) -> Callable[[int], Script]:
    rule = rate if callable(rate) else lambda t: rate
    return lambda seed: Script.blind(rule, NUM_TOKENS + 40, seed)


def copying(share: float, weak: float) -> Callable[[int], Script]:
    return lambda seed: Script.copying(NUM_TOKENS + 40, seed, share=share, weak=weak)


@pytest.mark.parametrize("costs", [MODEL, CHEAP], ids=["c=.25", "c=.08"])
@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7, 0.85, 0.95, 0.995])
def test_a_steady_text_is_decoded_as_fast_as_by_the_best_length(rate: float, costs: Costs) -> None:
    found = [speed(AutoController(), kind(rate), costs) for kind in (soft, blind)]
    best = [best_fixed(kind(rate), costs) for kind in (soft, blind)]
    # One that says how sure it is lets it stop where a fixed length cannot.
    assert found[0] > 0.96 * best[0]
    assert found[1] > 0.95 * best[1]
    assert mean([a / b for a, b in zip(found, best, strict=True)]) > 0.97


@pytest.mark.parametrize("costs", [MODEL, CHEAP, NGRAM], ids=["c=.25", "c=.08", "ngram"])
@pytest.mark.parametrize("rate", [0.0, 0.02, 0.05])
def test_a_hopeless_text_costs_less_than_two_percent(rate: float, costs: Costs) -> None:
    for kind in (soft, blind):
        assert speed(AutoController(), kind(rate), costs) > 0.98


def test_no_steady_text_is_slower_than_plain() -> None:
    for costs in (MODEL, CHEAP, NGRAM):
        for rate in (0.1, 0.2, 0.25, 0.35):
            assert speed(AutoController(), soft(rate), costs) > 0.98


def test_a_text_that_changes_is_followed() -> None:
    """About as well as by the best fixed length in hindsight, or better than any."""
    periodic = soft(lambda t: 0.9 if t // 60 % 2 == 0 else 0.1)
    late = soft(lambda t: 0.05 if t < NUM_TOKENS / 2 else 0.9)
    early = soft(lambda t: 0.9 if t < NUM_TOKENS / 2 else 0.05)
    found = [
        speed(AutoController(), script, MODEL) / best_fixed(script, MODEL)
        for script in (periodic, late, early)
    ]
    assert min(found) > 0.97
    assert mean(found) > 1.05


@pytest.mark.parametrize(("share", "weak"), [(0.02, 0.03), (0.3, 0.2), (0.7, 0.2)])
def test_n_grams(share: float, weak: float) -> None:
    found = speed(AutoController(), copying(share, weak), NGRAM)
    assert found > 0.94 * best_fixed(copying(share, weak), NGRAM)
    assert found > 0.98


def test_where_passes_over_two_rows_cost_twice_nothing_is_drafted() -> None:
    costs = Costs(token=0.1, steps=(1,), step_cost=1.5, noise=0.05)
    assert best_fixed(soft(0.6), costs) == pytest.approx(1.0)
    assert speed(AutoController(), soft(0.6), costs) > 0.95


def test_a_step_in_the_cost_of_rows_is_stepped_around() -> None:
    costs = Costs(token=0.05, row=0.0, steps=(4,), step_cost=1.0, noise=0.02)
    script = blind(0.85)
    assert speed(AutoController(), script, costs) > 0.93 * best_fixed(script, costs)


def test_batches_share_a_pass() -> None:
    """With 16 sequences rows are dear: what is right alone is too long there."""
    costs = Costs(token=0.02, row=0.03)

    def run(controller: Any, sequences: int) -> Run:
        script = blind(0.7)(0)
        return simulate(controller, script, costs, num_tokens=NUM_TOKENS, num_sequences=sequences)

    alone, together = run(AutoController(), 1), run(AutoController(), 16)
    assert sum(together.lengths[10:]) / len(together.lengths[10:]) < 3
    assert sum(alone.lengths[10:]) / len(alone.lengths[10:]) > 3.5
    best = max(run(FixedController(k), 16).speed for k in LENGTHS)
    assert together.speed > 0.95 * best


@pytest.mark.parametrize(
    ("share", "rate"), [(0.02, 0.8), (0.5, 0.8), (0.8, 0.3), (0.5, 0.02), (0.02, 0.02)]
)
def test_of_two_drafters_each_has_its_places(share: float, rate: float) -> None:
    """At least about as fast as the better of both alone, and as a fixed order of fixed length."""
    prices = {"ngram": NGRAM, "model": MODEL}

    def of(controller: Any, *names: str) -> float:
        runs = []
        for seed in SEEDS:
            every = {"ngram": copying(share, 0.2)(seed), "model": soft(rate)(seed)}
            scripts = {name: every[name] for name in names}
            own = {name: prices[name] for name in names}
            runs.append(simulate(controller, scripts, own, num_tokens=NUM_TOKENS, seed=seed))
        return mean([run.speed for run in runs])

    both = of(AutoController(drafters=("ngram", "model")), "ngram", "model")
    alone = [of(AutoController(drafters=(name,)), name) for name in prices]
    order = max(of(FixedController(k), "ngram", "model") for k in LENGTHS)
    assert both > 0.95 * max(alone)
    assert both > 0.95 * order
    assert both > 0.98


@pytest.mark.parametrize("dear", [1.0, 2.5])
def test_a_drafter_that_is_dear_to_probe_does_not_keep_a_cheap_one_waiting(dear: float) -> None:
    """Neither is ever right. What the cheap one gets of 3,000 rounds, beside it and alone."""
    costs = {"cheap": Costs(token=0.4), "dear": Costs(token=dear)}

    def probes(*names: str) -> int:
        scripts = {name: Script.blind(lambda t: 0.0, 3040, 0) for name in names}
        own = {name: costs[name] for name in names}
        controller = AutoController(drafters=names)
        found = simulate(controller, scripts, own, num_tokens=3000, seed=0)
        return found.drafters.count("cheap")

    assert probes("cheap", "dear") > 0.3 * probes("cheap")


def test_costs_from_a_table_leave_nothing_to_the_clock() -> None:
    settings = AutoController(costs={"target": {1: 1.0, 9: 1.24}, "draft": 0.25})
    assert not settings.uses_clock
    assert AutoController().uses_clock
    runs = [
        simulate(settings, soft(0.7)(0), Costs(token=0.25, noise=noise), num_tokens=200, seed=seed)
        for noise, seed in ((0.0, 0), (0.5, 1), (0.9, 2))
    ]
    assert runs[0].lengths == runs[1].lengths == runs[2].lengths


def test_sessions_know_nothing_of_one_another() -> None:
    controller = AutoController()
    first = simulate(controller, soft(0.05)(0), MODEL, num_tokens=200)
    second = simulate(controller, soft(0.9)(1), MODEL, num_tokens=200)
    again = simulate(AutoController(), soft(0.9)(1), MODEL, num_tokens=200)
    assert first.lengths != second.lengths
    assert second.lengths == again.lengths


def test_passes_that_read_prompts_as_well_say_nothing_of_others() -> None:
    """Another request arrives now and then, and its prompt is read in the pass of a round."""

    def lengths(arrivals: bool) -> list[int]:
        session, found = AutoController().open(), []
        for number in range(40):
            budget = session.budget()
            n = budget.num_draft_tokens
            accepted, reads = min(n, 1 + number % 2), 512 if arrivals and number % 5 == 4 else 0
            rows, seconds = 1 + n + reads, 1 + 0.03 * n + 0.4 * reads
            tested, draft = min(accepted + 1, n), Draft((0,) * n)
            session.observe(
                Outcome(
                    budget,
                    draft,
                    accepted,
                    tested,
                    0.1 * n,
                    seconds,
                    0.0,
                    1,
                    rows,
                    number,
                    prefill_rows=reads,
                )
            )
            found.append(n)
        return found

    assert lengths(True) == lengths(False)


def test_zero_is_plain_decoding() -> None:
    assert AutoController(0).open().budget() == Budget(0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_draft_tokens": -1}, "num_draft_tokens must be at least 0"),
        ({"num_draft_tokens": 2.5}, "whole number"),
        ({"probe_share": 2}, "probe_share must be"),
        ({"costs": 3}, "costs must map 'target'"),
        ({"costs": {"target": {1: 1.0}}}, "costs must map 'target'"),
        ({"costs": {"target": {1: 1.0}, "draft": 0.1, "row": 1}}, "they hold 'row'"),
        ({"costs": {"target": {0: 1.0}, "draft": 0.1}}, "seconds above 0 by rows"),
        ({"costs": {"target": {1: -1.0}, "draft": 0.1}}, "seconds above 0 by rows"),
        ({"costs": {"target": "fast", "draft": 0.1}}, "seconds above 0 by rows"),
        ({"costs": {"target": {}, "draft": 0.1}}, "they are {}$"),
        ({"costs": {"target": {math.inf: 1.0}, "draft": 0.1}}, "seconds above 0 by rows"),
        ({"costs": {"target": {1.5: 1.0, 1: 2.0}, "draft": 0.1}}, "seconds above 0 by rows"),
        ({"drafters": 5}, "drafters must be a list of names"),
        ({"drafters": "ngram,model"}, "drafters must be a list of names"),
        ({"drafters": (1,)}, "drafters must be a list of names"),
        ({"drafters": ("a", "a")}, "drafters must be of different names"),
        ({"costs": {"target": [1.0], "draft": "fast"}}, "costs of draft must be seconds"),
        ({"costs": {"target": [1.0], "draft": -1}}, "costs of draft must be seconds"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        AutoController(**settings)


@pytest.mark.parametrize(
    ("costs", "drafters", "message"),
    [
        ({"draft": {"ngram": 0.1}}, (), "one number where there is one drafter"),
        ({"draft": {"ngram": 0.1}}, ("ngram", "model"), "model is missing"),
        ({"draft": {"ngram": 0.1, "modl": 1, "model": 1}}, ("ngram", "model"), "modl is not one"),
        ({"draft": 0.1, "draft_start": {"ngram": 0.1}}, ("ngram", "model"), "model is missing"),
    ],
)
def test_costs_that_leave_a_drafter_out_are_refused(
    costs: dict[str, Any], drafters: tuple[str, ...], message: str
) -> None:
    controller = AutoController(costs={"target": [1.0], **costs}, drafters=drafters)
    with pytest.raises(InvalidInput, match=message):
        controller.open()


def test_costs_by_drafter_and_of_all() -> None:
    for draft in (0.1, {"ngram": 0.1, "model": 0.2}):
        names = ("ngram", "model")
        assert AutoController(costs={"target": [1.0], "draft": draft}, drafters=names).open()


@pytest.mark.parametrize("given", [{6: 1.0}, {1: 0.0}, {1.5: 1.0}, "fast", [[1]]], ids=str)
def test_costs_by_rows_that_cannot_be_are_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="row_costs must"):
        AutoController(row_costs=given)


@pytest.mark.parametrize("rate", [0.7, 0.8, 0.9])
def test_where_a_pass_becomes_dearer_all_at_once_it_helps_to_know(rate: float) -> None:
    """Six rows for the price of one, then a third more at once, as oneDNN has it."""
    costs = Costs(token=0.002, row=0.0, steps=(6,), step_cost=0.33, noise=0.06)
    known = AutoController(row_costs={1: 1.0, 6: 1.0, 7: 1.33, 16: 1.33})
    found = speed(known, blind(rate), costs)
    assert found > 0.97 * best_fixed(blind(rate), costs)
    # At .9 both go far beyond the step, so that what the clock and the text happened to say first
    # makes the only difference: .7 % over these texts.
    unknown = speed(AutoController(), blind(rate), costs)
    assert found > (0.99 if rate == 0.9 else 1.03) * unknown
