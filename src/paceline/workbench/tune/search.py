"""Bayesian optimisation of a skip set (Draft & Verify, arXiv 2309.08168, section 3.2).

The paper maximises tokens a second over 2L numbers between 0 and 1, cut at a half, with a Gaussian
process. Here the variables are what they are, 2L choices, the optimiser is that of optuna for such
(a tree-structured Parzen estimator, Bergstra et al. 2011), and the objective is the speed-up that
acceptance and costs predict, which does not change from run to run as a timing does.
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
from paceline.workbench.tune.evaluate import Costs, Tell, draft_cost

_STEP = "trying sets of layers"

Rates = Callable[[SkipSet], Sequence[float]]
"""From a skip set to how often each position of a draft is accepted, and all before it."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a skip set earns.

    Args:
        skip: the set.
        speedup: predicted, over plain decoding, with the best draft length.
        num_draft_tokens: that length.
        cost: of a draft token, in target passes.
        rates: how often the i-th draft token is accepted, and all before it.
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
        best: of all trials.
        trials: how many sets were tried.
        interrupted: whether the search was stopped before its last trial.
        history: the best speed-up after each trial.
    """

    best: Score
    trials: int
    interrupted: bool
    history: tuple[float, ...] = field(repr=False)


def score(skip: SkipSet, rates: Sequence[float], costs: Costs, num_layers: int) -> Score:
    """The predicted speed-up of a set, at the length from 1 on that suits it best.

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
    rates: Rates, costs: Costs, num_layers: int, *, trials: int, seed: int, tell: Tell
) -> Found:
    """Look for the skip set of the greatest predicted speed-up.

    The first trials leave out nothing, every second layer, and each part alone; then, from the
    parts that were missed least on, more and more together. From there the optimiser goes on.
    Ctrl-C ends the search; what was found so far is kept.

    Args:
        rates: evaluates a set.
        costs: see `evaluate.measure_costs`.
        num_layers: L; there are 2L parts.
        trials: how many sets to try.
        seed: of the optimiser.
        tell: how far it is.

    Raises:
        MissingExtra: optuna is not installed.
        KeyboardInterrupt: before the first trial was done.
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
            tell(number, trials, _STEP)
            if (start := next(starts, None)) is not None:
                study.enqueue_trial(_parameters(start, num_layers))
            trial = study.ask()
            skip = _suggested(trial, num_layers)
            if skip not in known:
                known[skip] = score(skip, rates(skip), costs, num_layers)
            scores.append(known[skip])
            study.tell(trial, scores[-1].speedup)
            history.append(max([scores[-1].speedup, *history[-1:]]))
        tell(trials, trials, _STEP)
    except KeyboardInterrupt:
        if not scores:
            raise
        interrupted = True
    finally:
        optuna.logging.set_verbosity(verbosity)
    return Found(max(scores, key=lambda s: s.speedup), len(scores), interrupted, tuple(history))


def _starts(num_layers: int, scores: Sequence[Score]) -> Iterator[SkipSet]:
    """What to try before there is anything to learn from; reads the scores as they come."""
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
