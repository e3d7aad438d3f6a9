"""Fixed lengths from answers that were drafted otherwise, on texts whose truth is computed.

A text has easy stretches, where a draft token is accepted with probability .95, and hard ones with
.25. Whether a place is accepted belongs to the text, as it does for a greedy draft model.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from paceline.economics.stats import AcceptanceCounts, mean_acceptance_length
from paceline.workbench.bench.runs import RoundFacts, marks_of
from paceline.workbench.plan.acceptance import MeasuredSpeed
from paceline.workbench.plan.costs import MethodCosts, PassCosts, PassTime
from paceline.workbench.plan.decide import Method, decide
from paceline.workbench.plan.marks import counts_by_length, labels, merged
from paceline.workbench.plan.predict import expected_tokens, predict

PASSES = PassCosts((PassTime(1, 1, 100, 0.1), PassTime(17, 1, 100, 0.12)))
COSTS = MethodCosts(0.0, 0.012)


def text(seed: int, stretches: int = 60) -> list[bool]:
    """Whether a draft token is accepted at each place."""
    chance = random.Random(seed)
    found: list[bool] = []
    for number in range(stretches):
        rate = 0.95 if number % 2 else 0.25
        found += [chance.random() < rate for _ in range(chance.randint(10, 40))]
    return found


def decoded(places: list[bool], length: Callable[[int], int]) -> tuple[str, AcceptanceCounts]:
    """Marks and counts of decoding along a text.

    Args:
        places: of the text.
        length: of the next draft, given how many tokens of the last one were accepted.
    """
    rounds, start, last = [], 0, 0
    while start < len(places):
        allowed = min(length(last), len(places) - start - 1)
        last = 0
        while last < allowed and places[start + last]:
            last += 1
        rounds.append(RoundFacts(last + 1, allowed, allowed, last, allowed + 1, 0, 0, 0))
        start += last + 1
    counts = AcceptanceCounts.from_rounds((r.path_length, r.num_accepted_tokens) for r in rounds)
    return marks_of(rounds), counts


def adaptive(last: int) -> int:
    """A controller that drafts far after a good round, and little after a bad one."""
    return 12 if last >= 2 else 2 if last else 1


def truth(places: list[bool], k: int) -> float:
    found = mean_acceptance_length(decoded(places, lambda _: k)[1])
    assert found is not None
    return found


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 10])
def test_shorter_drafts_from_the_marks_of_long_ones(k: int) -> None:
    """Counts by position are off by more than a tenth for short drafts; the walk is within 3 %."""
    texts = [text(seed) for seed in range(8)]
    runs = [decoded(places, lambda _: 12) for places in texts]
    found = counts_by_length([labels(marks, 12) for marks, _ in runs], 12)[k]
    rounds = [truth(places, k) for places in texts]
    wanted = sum(map(len, texts)) / sum(len(p) / t for p, t in zip(texts, rounds, strict=True))
    assert mean_acceptance_length(found) == pytest.approx(wanted, rel=0.03)
    counted = expected_tokens(sum((counts for _, counts in runs), AcceptanceCounts()), k)
    if k <= 5:
        assert counted < 0.9 * wanted


def test_a_selected_sample_is_not_extrapolated() -> None:
    """Of drafts that a controller chose, far positions look like easy text everywhere; no length
    is planned that the bounds do not agree on, and what is planned is right."""
    texts = [text(seed) for seed in range(8)]
    runs = [decoded(places, adaptive) for places in texts]
    counts = sum((counts for _, counts in runs), AcceptanceCounts())
    assert counts.accepted[8] / counts.tested[8] > 0.85
    found = counts_by_length([labels(marks, None) for marks, _ in runs], 16)
    assert 12 not in found
    for k, known in found.items():
        wanted = sum(map(len, texts)) / sum(len(p) / truth(p, k) for p in texts)
        assert mean_acceptance_length(known) == pytest.approx(wanted, rel=0.05)


def speed(places: list[bool], length: Callable[[int], int]) -> tuple[float, float, float]:
    """The true speed-up of a policy, its tokens and its seconds a round."""
    marks, counts = decoded(places, length)
    assert len(marks) == len(places)
    drafted = [*counts.drafted, 0]
    seconds = 0.0
    shares = [counts.rounds, *drafted]
    for k in range(len(shares) - 1):
        seconds += (shares[k] - shares[k + 1]) * (PASSES.seconds(1 + k) + COSTS.draft(k))
    tokens = len(places) / counts.rounds
    return tokens * PASSES.seconds(1) * counts.rounds / seconds, tokens, seconds / counts.rounds


@pytest.mark.parametrize("with_fixed", [False, True])
def test_what_is_named_is_within_5_percent_of_the_best(with_fixed: bool) -> None:
    """Six texts. The best of auto and of every fixed length is computed; a plan from the marks of
    auto alone names auto or a known length, and with k = 6 beside it one of all.

    Taken for counts of fixed drafts, those of auto promise a quarter more than such drafts give.
    """
    lengths = range(1, 17)
    for seed in range(6):
        places = text(seed)
        marks, counts = decoded(places, adaptive)
        answers = [labels(marks, None)]
        if with_fixed:
            answers = [merged([*answers, labels(decoded(places, lambda _: 6)[0], 6)])]
        gain, tokens, seconds = speed(places, adaptive)
        auto = MeasuredSpeed("m,k=auto", gain, gain, gain, tokens, seconds, 4.0)
        known = counts_by_length(answers, 16)
        best = decide([Method("m", known, COSTS, "model", adaptive=(auto,))], PASSES).best
        assert best is not None
        fixed = {k: speed(places, lambda _, k=k: k)[0] for k in lengths}  # type: ignore[misc]
        named = gain if best.num_draft_tokens == "auto" else fixed[best.fixed_length]
        candidates = [gain, *(fixed.values() if with_fixed else (fixed[k] for k in known))]
        assert named >= 0.95 * max(candidates)
        naive = max(
            (predict("m", counts, k, PASSES, COSTS, draws=50) for k in range(1, 13)),
            key=lambda row: row.speedup,
        )
        assert fixed[naive.fixed_length] < 0.8 * naive.speedup
