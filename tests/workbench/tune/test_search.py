"""The search for a skip set, on objectives whose best set is known."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from paceline.core.target import SkipSet
from paceline.drafting.self_draft import every_second
from paceline.errors import InvalidInput, MissingExtra
from paceline.workbench.tune import Costs, Found, search
from paceline.workbench.tune.search import score

LAYERS = 6
COSTS = Costs(0.04, 0.06, 0.1, (1.0, 1.0, 1.02, 1.05))
SPARE = SkipSet(frozenset({1, 2, 4}), frozenset({3}))
"""Nothing is lost without these; each other part that is skipped halves every rate."""


def quiet(done: int, total: int, text: str) -> None:
    """Tells nobody."""


def rates(skip: SkipSet) -> Sequence[float]:
    missed = len(skip.attention - SPARE.attention) + len(skip.mlp - SPARE.mlp)
    return [0.9 * 0.5**missed, 0.8 * 0.5**missed, 0.7 * 0.5**missed]


def found(trials: int, seed: int = 0) -> Found:
    return search(rates, COSTS, LAYERS, trials=trials, seed=seed, progress=quiet)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_the_best_set(seed: int) -> None:
    result = found(60, seed)
    assert result.best == score(SPARE, rates(SPARE), COSTS, LAYERS)
    assert result.history == tuple(sorted(result.history))
    assert (result.trials, result.interrupted) == (60, False)


def test_the_optimiser_goes_on_from_a_wrong_start() -> None:
    """One part helps only where another is skipped as well, which single trials cannot show."""
    pair = frozenset({2, 3})

    def twisted(skip: SkipSet) -> Sequence[float]:
        both = 0.95 if pair <= skip.mlp and not skip.attention else 0.5
        return [both * 0.3 ** len(skip.mlp ^ pair)] * 2

    result = search(twisted, COSTS, 4, trials=150, seed=0, progress=quiet)
    assert result.best.skip == SkipSet(mlp=pair)


def test_a_seed_gives_the_same_search() -> None:
    tried: list[list[SkipSet]] = [[], []]
    for log in tried:
        search(
            lambda skip, log=log: (log.append(skip), rates(skip))[1],  # type: ignore[misc]
            COSTS,
            LAYERS,
            trials=40,
            seed=3,
            progress=quiet,
        )
    assert tried[0] == tried[1]
    assert tried[0][:2] == [SkipSet(), every_second(LAYERS)]
    assert len(set(tried[0])) == len(tried[0]), "no set is evaluated twice"


def test_ctrl_c_keeps_the_best_so_far() -> None:
    count = 0

    def interrupted(skip: SkipSet) -> Sequence[float]:
        nonlocal count
        count += 1
        if count == 8:
            raise KeyboardInterrupt
        return rates(skip)

    result = search(interrupted, COSTS, LAYERS, trials=50, seed=0, progress=quiet)
    assert (result.trials, result.interrupted) == (7, True)
    assert result.best.speedup == max(result.history)


def test_ctrl_c_before_anything_was_tried_ends_the_command() -> None:
    def at_once(skip: SkipSet) -> Sequence[float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(at_once, COSTS, LAYERS, trials=5, seed=0, progress=quiet)


def test_the_score_takes_the_length_that_suits_best() -> None:
    """By hand: nothing skipped costs 1 a token; (1 + .9) / (1 + 1) for k = 1, and so on."""
    costs = Costs(0.04, 0.06, 0.1, (1.0, 1.0, 1.02, 1.05))
    one = score(SkipSet(), [0.9, 0.8, 0.7], costs, LAYERS)
    assert one.cost == pytest.approx(1.0)
    gains = [1.9 / 2.0, 2.7 / 3.02, 3.4 / 4.05]
    assert one.speedup == pytest.approx(max(gains))
    assert one.num_draft_tokens == 1


def test_a_search_without_trials() -> None:
    with pytest.raises(InvalidInput, match="at least one trial"):
        found(0)


def test_without_optuna_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install 'paceline\[tune\]'"):
        found(3)
