"""From logits to the law: as `transformers` does it, and as a loop by hand does it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.sampling import SamplingParams
from paceline.errors import InvalidInput, ModelError
from paceline.sampling.warp import (
    SamplingWarp,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize,
    point_mass,
    restrict,
    truncate,
)
from tests.reference import processed_by_hand, their_scores
from tests.rounds import A

VOCAB = 50
INF = math.inf


def random_logits(seed: int, step: float, size: int = VOCAB) -> Tensor:
    """Logits with a spread of 3, rounded to multiples of `step` (many tie), 0 for none."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(size, generator=generator, dtype=torch.float64)
    return (logits / step).round() * step if step else logits


# No tie of equal masses falls on these: neither rounding nor order decides what top-p keeps.
options = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.3, 0.7, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 5, 49, 50, 200]),
        "top_p": st.sampled_from([1.0, 0.0137, 0.3141, 0.6139, 0.9517]),
        "min_p": st.sampled_from([0.0, 0.0531, 0.4127, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
    }
)


@settings(max_examples=300)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 2.0]), options)
def test_scores_and_law_are_those_of_transformers(
    seed: int, step: float, chosen: dict[str, Any]
) -> None:
    params = SamplingParams(**chosen)
    prompt, path = [1, 4, 4, 9], [11, 4]
    logits = random_logits(seed, step)
    expected = their_scores(params, prompt + path, logits)
    warp = SamplingWarp(params, prompt)
    scores = warp.scores_of(warp.process(logits, path))
    law = warp.law(logits, path)
    torch.testing.assert_close(law, scores.softmax(dim=-1), rtol=1e-12, atol=0)
    assert torch.equal(law > 0, scores > -INF)
    if step and params.top_p < 1:
        # Which of several equal tokens their top-p keeps is up to an unstable sort.
        scores, expected = scores.sort().values, expected.sort().values
    assert torch.equal(scores, expected)


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.0]), options)
def test_greedy_takes_the_first_of_the_most_probable_tokens(
    seed: int, step: float, chosen: dict[str, Any]
) -> None:
    params = SamplingParams(**{**chosen, "temperature": 0.0})
    logits = random_logits(seed, step)
    expected = their_scores(
        SamplingParams(repetition_penalty=params.repetition_penalty), [3], logits
    )
    law = SamplingWarp(params, [3]).law(logits)
    assert law.tolist() == [float(i == int(expected.argmax())) for i in range(VOCAB)]


@given(st.integers(0, 1000), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
@settings(max_examples=20)
def test_the_steps_take_many_rows_keep_the_dtype_and_change_nothing(
    seed: int, dtype: torch.dtype
) -> None:
    rows = torch.stack([random_logits(seed + i, 0.5) for i in range(3)]).to(dtype)
    before = rows.clone()
    banned = torch.tensor([2, 7])
    for step in (
        lambda x: keep_top_k(x, 4),
        lambda x: keep_top_p(x, 0.7531),
        lambda x: keep_min_p(x, 0.1),
        lambda x: restrict(x, allowed=torch.arange(9), banned=banned),
        lambda x: truncate(x, SamplingParams(temperature=0.7, top_k=9, top_p=0.9, min_p=0.1)),
    ):
        found = step(rows)
        assert found.dtype == dtype
        assert torch.equal(rows, before)
        assert torch.equal(found, torch.stack([step(row) for row in rows]))


# ---------------------------------------------------------------- penalties, bias, bans: by hand


tokens = st.lists(st.integers(0, 7), max_size=6)


@given(
    st.integers(0, 1000),
    tokens,
    tokens,
    tokens,
    st.sampled_from([1.0, 1.3, 0.8]),
    st.sampled_from([0.0, 0.5, -2.0]),
    st.sampled_from([0.0, 0.25, 2.0, -2.0]),
    st.dictionaries(st.integers(0, 7), st.floats(-100, 100), max_size=3),
    st.none() | st.frozensets(st.integers(0, 7), min_size=5),
    st.frozensets(st.integers(0, 7), max_size=2),
)
def test_penalties_bias_and_bans_see_the_draft_path(
    seed: int,
    prompt: list[int],
    answer: list[int],
    path: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
    allowed: frozenset[int] | None,
    banned: frozenset[int],
) -> None:
    params = SamplingParams(
        temperature=1.0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        allowed_token_ids=allowed,
        banned_token_ids=banned,
    )
    logits = random_logits(seed, 0.5, size=8)
    before = logits.clone()
    drafted = SamplingWarp(params, prompt)
    drafted.observe(answer)
    processed = drafted.process(logits, path)
    expected = processed_by_hand(params, prompt, [*answer, *path], logits)
    assert processed.tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(logits, before)
    # Bit by bit what comes once the path is final, in one round or token by token.
    final = SamplingWarp(params, prompt)
    final.observe([*answer, *path])
    slowly = SamplingWarp(params, prompt)
    for token in [*answer, *path]:
        slowly.observe([token])
    assert torch.equal(processed, final.process(logits))
    assert torch.equal(processed, slowly.process(logits))


def test_penalize_is_what_it_says_on_either_side_of_zero() -> None:
    logits = torch.tensor([2.0, -2.0, 0.0, 1.0, -INF])
    found = penalize(logits, repetition=torch.arange(5), repetition_penalty=2.0)
    assert found.tolist() == [1.0, -4.0, 0.0, 0.5, -INF]
    counts = torch.tensor([0, 3]), torch.tensor([2, 1])
    found = penalize(logits, counts=counts, presence_penalty=0.5, frequency_penalty=0.25)
    assert found.tolist() == [1.0, -2.0, 0.0, 0.25, -INF]


def test_a_bias_of_minus_100_bans_in_practice_and_minus_infinity_in_truth() -> None:
    """sglang #10617: a token with bias -100 still appeared."""
    logits = torch.tensor([5.0, 1.0, 0.0])
    law = SamplingWarp(SamplingParams(temperature=1.0, logit_bias={0: -100.0})).law(logits)
    assert law[0] < 1e-40
    law = SamplingWarp(SamplingParams(logit_bias={0: -INF})).law(logits)
    assert law.tolist() == [0, 1, 0]


def test_tokens_are_held_back_until_the_answer_is_long_enough() -> None:
    warp = SamplingWarp(SamplingParams(), [0, 0], min_tokens=2, hold_back=[1])
    logits = torch.tensor([0.0, 9.0, 1.0])
    assert warp.law(logits).tolist() == [0, 0, 1]
    assert warp.law(logits, [2]).tolist() == [0, 0, 1]
    assert warp.law(logits, [2, 2]).tolist() == [0, 1, 0]
    warp.observe([2])
    assert warp.law(logits).tolist() == [0, 0, 1]
    assert warp.law(logits, [2]).tolist() == [0, 1, 0]


# ---------------------------------------------------------------- processors


def test_processors_run_first_in_order_with_the_whole_history() -> None:
    seen: list[tuple[int, ...]] = []

    def record(history: Sequence[int], scores: Tensor) -> Tensor:
        seen.append(tuple(history))
        return scores

    def prefer(history: Sequence[int], scores: Tensor) -> Tensor:
        scores[len(history) % 3] += 100  # in place, as many do
        return scores

    logits = torch.tensor([1.0, 2.0, 3.0])
    params = SamplingParams(banned_token_ids=frozenset({1}))
    warp = SamplingWarp(params, [7, 8], processors=[record, prefer, record])
    warp.observe([9])
    assert warp.process(logits, [4, 5]).tolist() == [1.0, -INF, 103.0]
    assert seen == [(7, 8, 9, 4, 5)] * 2
    assert logits.tolist() == [1.0, 2.0, 3.0]


# ---------------------------------------------------------------- the edges


@pytest.mark.parametrize("temperature", [1e-8, 1e-30, 1e-45, 1e-300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_very_cold_is_greedy_and_shares_among_ties(temperature: float, dtype: torch.dtype) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.99, min_p=0.001)
    logits = torch.tensor([-30.0, 29.0, 31.0, -INF, 30.999], dtype=dtype)
    assert SamplingWarp(params).law(logits).tolist() == [0, 0, 1, 0, 0]
    ties = torch.tensor([7.0, 5.0, 7.0], dtype=dtype)
    assert SamplingWarp(params).law(ties).tolist() == [0.5, 0, 0.5]


def test_very_hot_is_uniform_over_what_may_come() -> None:
    logits = torch.tensor([-30.0, 29.0, -INF, 30.0])
    law = SamplingWarp(SamplingParams(temperature=1e8)).law(logits)
    assert law.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3], abs=1e-6)


def test_temperature_reshapes_the_law() -> None:
    """The bonus token of SWIFT's sampler (2410.06916) should have come from this law."""
    p, _ = A
    law = SamplingWarp(SamplingParams(temperature=0.6)).law(p.log())
    assert law.tolist() == pytest.approx([0.2766, 0.4468, 0.2766], abs=5e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, INF])
def test_logits_that_are_no_numbers_are_refused(temperature: float, bad: float) -> None:
    warp = SamplingWarp(SamplingParams(temperature=temperature, top_p=0.9))
    with pytest.raises(ModelError, match="NaN" if math.isnan(bad) else "infinity"):
        warp.law(torch.tensor([0.0, bad, 1.0]))
    with pytest.raises(ModelError):
        warp.law(torch.cat([torch.zeros(500), torch.tensor([bad])]))
    with pytest.raises(ModelError, match="the draft model's logits hold"):
        warp.for_drafts().law(torch.tensor([0.0, bad, 1.0]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_options_that_leave_no_token_are_refused(temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature,
        allowed_token_ids=frozenset({0, 1}),
        banned_token_ids=frozenset({0, 1}),
    )
    with pytest.raises(InvalidInput, match="leave no token at position 3"):
        SamplingWarp(params, [2, 2]).law(torch.zeros(3), [2])
    with pytest.raises(InvalidInput, match="leave no token"):
        SamplingWarp(SamplingParams(temperature=temperature)).law(torch.full((3,), -INF))
    held = SamplingWarp(SamplingParams(temperature=temperature), min_tokens=1, hold_back=[0, 1, 2])
    with pytest.raises(InvalidInput, match="leave no token"):
        held.law(torch.zeros(3))


def test_infinitely_improbable_tokens_do_not_disturb() -> None:
    logits = torch.tensor([-INF, 0.0, -INF, math.log(3.0)])
    params = SamplingParams(temperature=1.0, repetition_penalty=1.2, frequency_penalty=1.0)
    warp = SamplingWarp(params, [0, 2])
    warp.observe([2])
    assert warp.law(logits).tolist() == pytest.approx([0, 0.25, 0, 0.75], abs=1e-6)


@pytest.mark.parametrize("size", [1, 2, 129, 300])
def test_point_mass(size: int) -> None:
    logits = torch.zeros(size)
    logits[size // 2 :] = 1.0
    law = point_mass(logits)
    assert int(law.argmax()) == size // 2
    assert law.sum() == 1
