"""The fold over events, on scripted rounds whose figures are worked out by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.events import Finished, FinishReason, Prefilled, Round
from paceline.drafters.ngram import NgramDrafter
from paceline.engine.metrics import Metrics
from tests.rigged import flip, markov, oracle, run, wrong


def round_of(drafted: int, accepted: int, *, ended: bool = False, **changes: int | float) -> Round:
    """A chain round; `ended` says that the answer ended with its last accepted token."""
    values = {
        "id": 0,
        "number": 1,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "max_path_length": drafted,
        "draft_seconds": 0.25,
        "target_seconds": 1.0,
        "verify_seconds": 0.5,
    }
    tokens = (7,) * (accepted + (not ended))
    return Round(tokens=tokens, **{**values, **changes})  # type: ignore[arg-type]


def test_scripted_rounds() -> None:
    """4 of 4, 1 of 4, 0 of 2, nothing drafted, and 2 of 3 where the answer ended.

    Elsewhere the bonus token was counted as drafted and accepted (SGLang #23530).
    """
    metrics = Metrics.of(
        [
            Prefilled(id=0, num_prompt_tokens=3, seconds=2.0),
            round_of(4, 4),
            round_of(4, 1),
            round_of(2, 0),
            round_of(0, 0),
            round_of(3, 2, ended=True),
            Finished(id=0, reason=FinishReason.STOP, num_tokens=11),
        ]
    )
    assert metrics.spec() == {
        "num_rounds": 5,
        "num_drafts": 4,
        "num_draft_tokens": 13,
        "num_accepted_tokens": 7,
        "mean_acceptance_length": 1 + 7 / 5,
        "draft_acceptance_rate": 7 / 13,
        "acceptance_rate_per_position": [3 / 4, 2 / 4, 1 / 4, 1 / 4],
        "acceptance_histogram": [1, 1, 1, 0, 1],
    }
    assert metrics.num_tokens == 5 + 2 + 1 + 1 + 2
    # The rejected token of rounds 2 and 3 was tested; in the last round none was rejected.
    assert metrics.counts.num_tested_tokens == 4 + 2 + 1 + 0 + 2
    assert (metrics.prefill_s, metrics.draft_s, metrics.target_s, metrics.verify_s) == (
        2.0,
        1.25,
        5.0,
        2.5,
    )


def test_nothing_is_null_and_not_zero() -> None:
    """Dividing by zero gave 0 or a crash elsewhere (vLLM #24322)."""
    empty = Metrics().spec()
    plain = Metrics.of([round_of(0, 0)] * 3).spec()
    rejected = Metrics.of([round_of(2, 0)]).spec()
    names = ("mean_acceptance_length", "draft_acceptance_rate", "acceptance_rate_per_position")
    assert [empty[name] for name in names] == [None, None, None]
    assert [plain[name] for name in names] == [1.0, None, None]
    assert [rejected[name] for name in names] == [1.0, 0.0, [0.0, 0.0]]
    assert empty["acceptance_histogram"] is plain["acceptance_histogram"] is None
    assert rejected["acceptance_histogram"] == [1, 0, 0]
    json.dumps([empty, plain, rejected], allow_nan=False)


rounds = st.lists(
    st.integers(0, 6).flatmap(
        lambda drafted: st.builds(round_of, st.just(drafted), st.integers(0, drafted))
    ),
    max_size=8,
)


@given(rounds, rounds)
def test_sums_are_pooled_and_rates_are_rates(one: list[Round], two: list[Round]) -> None:
    both = Metrics.of([*one, *two])
    assert Metrics.of(one) + Metrics.of(two) == both
    spec = both.spec()
    if spec["num_drafts"]:
        assert 0 <= spec["draft_acceptance_rate"] <= 1
        assert all(0 <= rate <= 1 for rate in spec["acceptance_rate_per_position"])
        histogram = spec["acceptance_histogram"]
        assert sum(histogram) == spec["num_drafts"]
        assert sum(i * n for i, n in enumerate(histogram)) == spec["num_accepted_tokens"]
    if spec["num_rounds"]:
        # Every round yields what it accepted and one token.
        assert spec["mean_acceptance_length"] == pytest.approx(both.num_tokens / spec["num_rounds"])


def test_a_shared_pass_counts_in_equal_parts() -> None:
    shared = [round_of(1, 1, id=i, num_sequences=4, target_seconds=2.0) for i in range(4)]
    assert Metrics.of(shared).target_s == 2.0


def test_a_tree_counts_all_its_nodes_but_positions_by_depth() -> None:
    spec = Metrics.of([round_of(7, 2, max_path_length=3)]).spec()
    assert spec["num_draft_tokens"] == 7
    assert spec["draft_acceptance_rate"] == 2 / 7
    assert spec["acceptance_rate_per_position"] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("offset", range(1, 9))
def test_tokens_behind_the_end_are_not_counted(offset: int) -> None:
    """Elsewhere they were (vLLM #56101)."""
    model, prompt = markov(12, 3), (3, 1, 4)
    plain = run(model, prompt, max_tokens=16)
    end = plain.tokens[offset]
    length = plain.tokens.index(end) + 1
    found = run(
        model,
        prompt,
        oracle((*prompt, *plain.tokens)),
        k=15,
        max_tokens=16,
        stop_token_ids=frozenset({end}),
    )
    metrics = Metrics.of(found.events)
    assert metrics.num_tokens == length
    assert metrics.counts.num_accepted_tokens == length
    assert metrics.counts.num_tested_tokens == length


def test_runs_of_known_acceptance() -> None:
    model, prompt = markov(12, 0), (3, 1, 4)
    plain = run(model, prompt, max_tokens=21)
    text = (*prompt, *plain.tokens)
    assert Metrics.of(plain.events).mean_acceptance_length == 1.0
    never = Metrics.of(run(model, prompt, wrong(text, 12), k=4, max_tokens=21).events)
    assert never.draft_acceptance_rate == 0.0
    assert never.mean_acceptance_length == 1.0
    twice = Metrics.of(run(model, prompt, flip(text, 12, 2), k=4, max_tokens=21).events)
    assert twice.mean_acceptance_length == 3.0
    assert twice.num_tokens == 21
    ngram = Metrics.of(run(model, prompt, NgramDrafter(), max_tokens=21).events)
    assert ngram.counts.rounds + ngram.counts.num_accepted_tokens == 21
