"""Two-sample tests: their false alarms and their power, by simulation; the corrections, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from paceline.errors import InvalidInput
from paceline.workbench.audit.power import achieved_power, num_answers, smallest_effect
from paceline.workbench.audit.sampling import SamplingSettings, compare_samples
from paceline.workbench.audit.twosample import FIRST, RARE, Stratum, compare, holm
from paceline.workbench.audit.verdicts import Verdict

KINDS = 6


def draw(rng, law, n, length=4):
    return [tuple(row) for row in rng.choice(len(law), (n, length), p=law).tolist()]


def moved(law, by):
    """Half of the tokens lose so much mass, the others gain it: a total variation of `by`."""
    order = np.argsort(law)[::-1]
    heavy, light = order[::2], order[1::2]
    found = law.copy()
    found[heavy] *= 1 - by / law[heavy].sum()
    found[light] *= 1 + by / law[light].sum()
    assert np.abs(found - law).sum() / 2 == pytest.approx(by)
    return found


LAWS = [np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04]), np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])]


@pytest.mark.statistical
def test_p_values_are_uniform_under_the_null():
    """200 comparisons, seed 1; false-alarm rate of this test .001 a p-value."""
    rng = np.random.default_rng(1)
    found = []
    for seed in range(200):
        strata = [Stratum(str(i), draw(rng, p, 30), draw(rng, p, 30)) for i, p in enumerate(LAWS)]
        found.append([result.p_value for result in compare(strata, seed=seed)[:3]])
    for p_values in zip(*found, strict=True):
        assert stats.kstest(p_values, "uniform").pvalue > 0.001


@pytest.mark.statistical
def test_the_power_is_at_least_what_is_stated():
    """60 comparisons, seed 2, at power .9: fewer than 46 hits have a probability of .001."""
    rng = np.random.default_rng(2)
    settings = SamplingSettings(effect=0.2, power=0.9, false_alarm_rate=0.01)
    n, runs = settings.num_samples(2), 60
    hits = 0
    for _ in range(runs):
        strata = [
            Stratum(str(i), draw(rng, p, n), draw(rng, moved(p, 0.2), n))
            for i, p in enumerate(LAWS)
        ]
        hits += compare_samples(strata, settings).verdict is Verdict.FAULT
    assert hits >= stats.binom.ppf(0.001, runs, 0.9)


@pytest.mark.statistical
def test_the_achieved_power_is_that_of_the_test_of_first_tokens_alone():
    """100 comparisons, seed 3; the estimate may be off by .15."""
    rng = np.random.default_rng(3)
    n, effect, level, runs = 60, 0.15, 0.01, 100
    hits, estimates = 0, []
    for seed in range(runs):
        pairs = [(draw(rng, p, n), draw(rng, moved(p, effect), n)) for p in LAWS]
        strata = [Stratum(str(i), *pair) for i, pair in enumerate(pairs)]
        first = compare(strata, false_alarm_rate=0.5, seed=seed)[0]
        hits += first.p_value <= level
        estimates.append(
            achieved_power(first, answers=n, num_prompts=2, effect=effect, level=level)
        )
    assert 0.2 < hits / runs < 0.98
    assert np.mean(estimates) <= hits / runs + 0.15


def test_lengths_alone_are_seen_and_by_their_test():
    rng = np.random.default_rng(4)
    short = [(0,) * n for n in rng.integers(1, 6, 80)]
    long = [(0,) * n for n in rng.integers(3, 9, 80)]
    results = {result.name: result for result in compare([Stratum("a", short, long)])}
    assert results["length"].adjusted < 0.001
    assert results["length"].statistic == pytest.approx(
        stats.ks_2samp([len(x) for x in short], [len(x) for x in long]).statistic
    )


def test_the_statistic_of_first_tokens_is_pearson_s():
    rng = np.random.default_rng(5)
    plain, other = draw(rng, LAWS[0], 100), draw(rng, LAWS[1], 100)
    (first, *_) = compare([Stratum("a", plain, other)])
    expected = 0.0
    for place in range(FIRST):
        table = np.zeros((2, KINDS))
        for side, answers in enumerate((plain, other)):
            for answer in answers:
                table[side, answer[place]] += 1
        rare = table.sum(axis=0) < RARE
        merged = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
        merged = merged[:, merged.sum(axis=0) > 0]
        expected += stats.chi2_contingency(merged, correction=False).statistic
    assert first.statistic == pytest.approx(expected)


def test_answers_that_never_vary_tell_nothing_and_raise_no_alarm():
    same = [(1, 2, 3)] * 30
    results = compare([Stratum("a", same, same)])
    assert all(result.p_value == 1.0 and result.strata == 0 for result in results)
    assert compare([Stratum("a", same, [(1, 2, 4)] * 30)])[0].adjusted < 0.001


def test_few_answers_are_inconclusive_and_never_a_pass():
    rng = np.random.default_rng(6)
    for n in (1, 2, 5, 19):
        strata = [Stratum("a", draw(rng, LAWS[0], n), draw(rng, LAWS[0], n))]
        finding = compare_samples(strata, SamplingSettings(samples=n, effect=0.5))
        assert finding.verdict is Verdict.INCONCLUSIVE
        assert finding.summary.startswith("Too few samples")
    strata = [Stratum("a", draw(rng, LAWS[0], 60), draw(rng, LAWS[0], 60))]
    assert compare_samples(strata, SamplingSettings(effect=0.05)).verdict is Verdict.INCONCLUSIVE
    assert compare_samples(strata, SamplingSettings(effect=0.6)).verdict is Verdict.PASS


def test_the_smallest_effect_has_the_power():
    rng = np.random.default_rng(7)
    first = compare([Stratum("a", draw(rng, LAWS[0], 80), draw(rng, LAWS[0], 80))])[0]
    sized = {"answers": 80, "num_prompts": 1, "level": 0.001}
    effect = smallest_effect(first, power=0.9, **sized)
    assert achieved_power(first, effect=effect, **sized) == pytest.approx(0.9, abs=1e-4)


def test_more_power_and_smaller_effects_take_more_answers():
    sized = {"power": 0.9, "false_alarm_rate": 0.001}
    numbers = [num_answers(8, effect=effect, **sized) for effect in (0.3, 0.2, 0.1)]
    assert numbers == sorted(numbers)
    assert num_answers(8, effect=0.1, power=0.99, false_alarm_rate=0.001) > numbers[-1]
    assert num_answers(16, effect=0.1, **sized) < numbers[-1]
    with pytest.raises(InvalidInput, match="more than 20000 answers"):
        num_answers(1, effect=0.001, **sized)


def test_a_side_without_answers_is_refused():
    with pytest.raises(InvalidInput, match="prompt a: both sides need"):
        compare([Stratum("a", [(1,)], [])])


def test_holm():
    assert holm([0.001, 0.5, 0.02, 0.02]) == pytest.approx([0.004, 0.5, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.9]) == [1.0, 1.0]
