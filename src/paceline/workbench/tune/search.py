"""Bayesian optimisation of a skip set (Draft & Verify, arXiv 2309.08168, section 3.2).

The paper maximises tokens per second over 2L numbers between 0 and 1, thresholded at a half, with a
Gaussian process. Here the variables are 2L binary choices, the optimiser is optuna's for such
choices (a tree-structured Parzen estimator, Bergstra et al. 2011), and the objective is the
speed-up predicted from acceptance and costs, which does not vary from run to run like a timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.target import SkipSet
from paceline.drafting.self_draft import every_second, skip_set
from paceline.economics.acceptance import AcceptanceProfile
from paceline.economics.cost import speedup
from paceline.errors import InvalidInput, MissingExtra
from paceline.workbench.tune.evaluate import Costs, Progress, draft_cost

_STEP = "trying sets of layers"

Rates = Callable[[SkipSet], Sequence[float]]
"""From a skip set to how often each position is accepted together with all before it."""


@dataclass(frozen=True, slots=True)
class Score:
    """The value of a skip set.

    Args:
        skip: the set.
        speedup: predicted, over plain decoding, with the best draft length.
        num_draft_tokens: that length.
        cost: of a draft token, in target passes.
        rates: how often the i-th draft token is accepted together with all before it.
    """

    skip: SkipSet
    speedup: float
    num_draft_tokens: int
    cost: float
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search.

    Args:
        best: the best of all trials.
        trials: the number of sets that were tried.
        interrupted: whether the search was interrupted before its last trial.
        history: the best speed-up after each trial.
    """

    best: Score
    trials: int
    interrupted: bool
    history: tuple[float, ...] = field(repr=False)


def score(skip: SkipSet, rates: Sequence[float], costs: Costs, num_layers: int) -> Score:
    """The predicted speed-up of a set at its best draft length, at least 1.

    Example:
        >>> costs = Costs(0.0, 0.25, 0.25, (1.0, 1.0, 1.0))
        >>> skip = SkipSet(frozenset({1}), frozenset({0, 1}))
        >>> found = score(skip, [1.0, 1.0], costs, 2)
        >>> found.num_draft_tokens, found.cost, found.speedup
        (2, 0.25, 2.0)
    """
    profile = AcceptanceProfile.from_unconditional(rates)
    cost = draft_cost(costs, skip, num_layers)
    gains = [speedup(profile, cost, k, costs.verify_cost) for k in range(1, len(rates) + 1)]
    best = max(range(len(gains)), key=gains.__getitem__)
    return Score(skip, gains[best], best + 1, cost, tuple(rates))


def search(
    rates: Rates, costs: Costs, num_layers: int, *, trials: int, seed: int, progress: Progress
) -> Found:
    """Look for the skip set of the greatest predicted speed-up.

    The first trials skip nothing, every second layer, and each part alone; then more and more parts
    together, starting with those whose loss hurt least. From there the optimiser continues. Ctrl-C
    ends the search and keeps the best set so far.

    Args:
        rates: evaluates a set.
        costs: see `evaluate.measure_costs`.
        num_layers: L; there are 2L parts.
        trials: the number of sets to try.
        seed: of the optimiser.
        progress: called with (done, total, what).

    Raises:
        MissingExtra: optuna is not installed.
        KeyboardInterrupt: interrupted before the first trial was done.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra.needed("tune", "searches for settings") from error
    if trials < 1:
        raise InvalidInput(f"a search needs at least one trial; it has {trials}")
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=0)
    )
    scores: list[Score] = []
    history: list[float] = []
    starts = _starts(num_layers, scores)
    known: dict[SkipSet, Score] = {}
    interrupted = False
    try:
        for number in range(trials):
            progress(number, trials, _STEP)
            if (start := next(starts, None)) is not None:
                study.enqueue_trial(_parameters(start, num_layers))
            trial = study.ask()
            skip = _suggested(trial, num_layers)
            if skip not in known:
                known[skip] = score(skip, rates(skip), costs, num_layers)
            scores.append(known[skip])
            study.tell(trial, scores[-1].speedup)
            history.append(max([scores[-1].speedup, *history[-1:]]))
        progress(trials, trials, _STEP)
    except KeyboardInterrupt:
        if not scores:
            raise
        interrupted = True
    finally:
        optuna.logging.set_verbosity(verbosity)
    return Found(max(scores, key=lambda s: s.speedup), len(scores), interrupted, tuple(history))


def _starts(num_layers: int, scores: Sequence[Score]) -> Iterator[SkipSet]:
    """The first trials, before there is anything to learn from; reads `scores` as they come."""
    yield SkipSet()
    yield every_second(num_layers)
    parts = [(kind, layer) for kind in ("attention", "mlp") for layer in range(num_layers)]
    for part in parts:
        yield _of([part])
    alone = dict(zip(parts, scores[2:], strict=False))
    order = sorted(parts, key=lambda part: -sum(alone[part].rates))
    for count in range(2, num_layers + 1):
        yield _of(order[:count])


def _of(parts: Sequence[tuple[str, int]]) -> SkipSet:
    return skip_set(
        [layer for kind, layer in parts if kind == "attention"],
        [layer for kind, layer in parts if kind == "mlp"],
    )


def _parameters(skip: SkipSet, num_layers: int) -> dict[str, Any]:
    return {
        f"{kind}.{layer}": layer in getattr(skip, kind)
        for kind in ("attention", "mlp")
        for layer in range(num_layers)
    }


def _suggested(trial: Any, num_layers: int) -> SkipSet:
    return skip_set(
        *(
            [
                layer
                for layer in range(num_layers)
                if trial.suggest_categorical(f"{kind}.{layer}", (False, True))
            ]
            for kind in ("attention", "mlp")
        )
    )
