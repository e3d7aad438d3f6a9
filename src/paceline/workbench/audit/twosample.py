"""Two-sample tests: do plain and speculative answers come from one distribution?

The answers to one prompt are exchangeable under the null hypothesis, so every test permutes them
between the two sides, prompt by prompt. Its p-value is valid whatever the distribution is, and
however the tokens of an answer depend on each other (Good, *Permutation, Parametric and Bootstrap
Tests*, 2005, chapter 3). The statistic is summed over the prompts, so that small deviations add up.

scipy is imported when a test runs, because it is in the extra `workbench`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import InvalidInput, MissingExtra

Units = Sequence[Hashable]
"""An answer: its tokens, or its words if the tokens are unknown."""
Floats = npt.NDArray[np.float64]

FIRST = 4
"""The number of tokens that the test of first tokens uses."""

RARE = 5
"""Tokens seen less often than this, on both sides together, are pooled as "the rest"."""

SCREENING = 999
"""The permutations of the first look. Only if its p is below `SUSPICIOUS` are more drawn."""

SUSPICIOUS = 0.05

_END = ("end",)
_REST = ("rest",)


@dataclass(frozen=True, slots=True)
class Stratum:
    """The answers to one prompt.

    Args:
        name: of the prompt.
        plain, speculative: the answers of both sides.
    """

    name: str
    plain: Sequence[Units]
    speculative: Sequence[Units]


@dataclass(frozen=True, slots=True)
class TestResult:
    """The result of a test.

    Args:
        name: of the test.
        p_value: of the permutation test, over all prompts.
        adjusted: the same, corrected for the number of tests (Holm).
        statistic: summed over the prompts.
        null_mean, null_variance: of the statistic under permutation.
        strata: the number of prompts whose answers vary in what the test counts.
        resamples: the number of permutations that were drawn.
        by_stratum: the p-value of each such prompt alone, by its name; not corrected.
    """

    name: str
    p_value: float
    adjusted: float
    statistic: float
    null_mean: float
    null_variance: float
    strata: int
    resamples: int
    by_stratum: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The result as a row of evidence."""
        worst = min(self.by_stratum, key=self.by_stratum.__getitem__, default=None)
        return {
            "test": self.name,
            "p_value": self.p_value,
            "adjusted_p_value": self.adjusted,
            "statistic": self.statistic,
            "mean_under_permutation": self.null_mean,
            "prompts_that_vary": self.strata,
            "permutations": self.resamples,
            "least_prompt": worst,
            "least_prompt_p_value": None if worst is None else self.by_stratum[worst],
        }


@dataclass(frozen=True, slots=True)
class _Test:
    """A name, what is counted in an answer, and how counts of two sides are compared."""

    name: str
    count: Callable[[Sequence[Units]], Floats]
    distance: Callable[[Floats, Floats, int, int], Floats]


def compare(
    strata: Sequence[Stratum], *, false_alarm_rate: float = 0.001, seed: int = 0
) -> list[TestResult]:
    """Run all tests on answers of both sides.

    - *first tokens*: chi-square of the token at each of the first `FIRST` positions;
    - *tokens* and *pairs of tokens*: chi-square of how often each occurs in an answer;
    - *length*: the Kolmogorov-Smirnov distance of the lengths.

    Args:
        strata: one per prompt.
        false_alarm_rate: of all tests together; it decides how finely p-values are resolved.
        seed: of the permutations.

    Raises:
        InvalidInput: a side without answers.
        MissingExtra: scipy is not installed.
    """
    for stratum in strata:
        if not stratum.plain or not stratum.speculative:
            raise InvalidInput(f"prompt {stratum.name}: both sides need at least one answer")
    rng = np.random.default_rng(seed)
    results = [_run(test, strata, SCREENING, rng) for test in _TESTS]
    if min((result.p_value for result in results), default=1.0) <= SUSPICIOUS:
        # A fresh and finer look whose result counts: the false-alarm rate is that of this look.
        fine = max(SCREENING, math.ceil(5 * len(_TESTS) / false_alarm_rate))
        results = [
            _run(test, strata, fine, rng) if result.p_value <= SUSPICIOUS else result
            for test, result in zip(_TESTS, results, strict=True)
        ]
    adjusted = holm([result.p_value for result in results])
    return [
        TestResult(
            result.name,
            result.p_value,
            p_value,
            result.statistic,
            result.null_mean,
            result.null_variance,
            result.strata,
            result.resamples,
            result.by_stratum,
        )
        for result, p_value in zip(results, adjusted, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected so that the error rate holds for all tests together (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, least = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, least)
    return adjusted


def _run(
    test: _Test, strata: Sequence[Stratum], resamples: int, rng: np.random.Generator
) -> TestResult:
    total, null, used = 0.0, np.zeros(resamples), 0
    by_stratum: dict[str, float] = {}
    for stratum in strata:
        counts = test.count([*stratum.plain, *stratum.speculative])
        if not counts.size or bool((counts == counts[0]).all()):
            continue  # nothing varies, under any permutation, so there is nothing to test
        found = _permute(test, counts, len(stratum.plain), resamples, rng)
        used += 1
        total += float(found.statistic)
        by_stratum[stratum.name] = float(found.pvalue)
        drawn = found.null_distribution
        # With few answers scipy enumerates all permutations; ours are then drawn from them.
        null += drawn if len(drawn) == resamples else rng.choice(drawn, resamples)
    reached = int((null >= total - 1e-9 * max(1.0, abs(total))).sum())
    p_value = (1 + reached) / (1 + resamples) if used else 1.0
    return TestResult(
        test.name,
        p_value,
        p_value,
        total,
        float(null.mean()),
        float(null.var()),
        used,
        resamples,
        by_stratum,
    )


def _permute(
    test: _Test, counts: Floats, num_plain: int, resamples: int, rng: np.random.Generator
) -> Any:
    stats = load_scipy_stats()
    whole, n = counts.sum(axis=0), len(counts)

    def statistic(plain: npt.NDArray[np.int64], other: Any, axis: int = -1) -> Any:
        chosen = np.zeros((*plain.shape[:-1], n))
        np.put_along_axis(chosen, plain, 1.0, axis=-1)
        of_plain = chosen @ counts
        return test.distance(of_plain, whole - of_plain, num_plain, n - num_plain)

    return stats.permutation_test(
        (np.arange(num_plain), np.arange(num_plain, n)),
        statistic,
        permutation_type="independent",
        vectorized=True,
        n_resamples=resamples,
        batch=1000,
        alternative="greater",
        rng=rng,
    )


def load_scipy_stats() -> Any:
    """`scipy.stats`.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingExtra.needed("workbench", "two-sample tests") from error
    return stats


def _chi_square(one: Floats, two: Floats, n_one: int, n_two: int) -> Floats:
    """Pearson's statistic of a table with two rows; an answer may count in several columns."""
    pooled = (one + two) / (n_one + n_two)
    apart = one / n_one - two / n_two
    scale = n_one * n_two / (n_one + n_two)
    found: Floats = (scale * apart**2 / np.where(pooled > 0, pooled, 1.0)).sum(axis=-1)
    return found


def _kolmogorov_smirnov(one: Floats, two: Floats, n_one: int, n_two: int) -> Floats:
    """The largest distance of two cumulative distributions, from answers up to each length."""
    found: Floats = np.abs(one / n_one - two / n_two).max(axis=-1)
    return found


def _first_tokens(answers: Sequence[Units]) -> Floats:
    marks = []
    for answer in answers:
        padded = [*answer[:FIRST], *[_END] * (FIRST - len(answer))]
        marks.append([(place, unit) for place, unit in enumerate(padded)])
    seen = Counter(mark for answer in marks for mark in answer)
    return _count(
        [[mark if seen[mark] >= RARE else (mark[0], _REST) for mark in answer] for answer in marks]
    )


def _ngrams(n: int) -> Callable[[Sequence[Units]], Floats]:
    def count(answers: Sequence[Units]) -> Floats:
        grams = [
            [tuple(answer[i : i + n]) for i in range(len(answer) - n + 1)] for answer in answers
        ]
        seen = Counter(gram for answer in grams for gram in answer)
        return _count(
            [[gram if seen[gram] >= RARE else _REST for gram in answer] for answer in grams]
        )

    return count


def _lengths(answers: Sequence[Units]) -> Floats:
    lengths = np.array([len(answer) for answer in answers])
    at_most: Floats = (lengths[:, None] <= np.unique(lengths)[None, :]).astype(np.float64)
    return at_most


def _count(marks: Sequence[Iterable[Hashable]]) -> Floats:
    """The number of times that each mark occurs in each answer, `[answers, marks]`."""
    columns: dict[Hashable, int] = {}
    for answer in marks:
        for mark in answer:
            columns.setdefault(mark, len(columns))
    counts = np.zeros((len(marks), len(columns)))
    for row, answer in enumerate(marks):
        for mark in answer:
            counts[row, columns[mark]] += 1
    return counts


_TESTS = (
    _Test("first tokens", _first_tokens, _chi_square),
    _Test("tokens", _ngrams(1), _chi_square),
    _Test("pairs of tokens", _ngrams(2), _chi_square),
    _Test("length", _lengths, _kolmogorov_smirnov),
)
NUM_TESTS = len(_TESTS)
