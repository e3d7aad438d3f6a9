"""Measuring in place: every shape once a round, drafts fitted, memory read off."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.core.protocols import Work
from paceline.core.target import Scores
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.errors import InvalidInput
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier
from paceline.workbench.plan.measure import measure_memory, measure_method, measure_passes
from paceline.workbench.plan.memory import extra_memory
from tests.tiny_models import build, tokens_of


class Slow(TableTarget):
    """A pass takes 1 ms and .2 ms a row."""

    def score(self, work: Sequence[Work]) -> list[Scores]:
        found = super().score(work)
        end = time.perf_counter() + 1e-3 + 2e-4 * sum(item.draft.num_rows for item in work)
        while time.perf_counter() < end:
            pass
        return found


def slow() -> Slow:
    return Slow(torch.full((7,), 1 / 7, dtype=torch.float64), max_length=64)


def test_passes_are_as_slow_as_they_are() -> None:
    found = measure_passes(
        slow(), [1, 2, 3], context=8, long_context=40, rows=(1, 2, 5, 9), repeats=5
    )
    assert {(p.rows, p.batch, p.context) for p in found.points} >= {
        (1, 1, 8),
        (5, 8, 8),
        (9, 1, 40),
    }
    for rows in (1, 4, 9):
        # Scripted time is a lower bound; what the table itself takes comes on top.
        assert found.seconds(rows) >= 1e-3 + 2e-4 * rows
    assert found.seconds(9) > found.seconds(1)


def test_every_slot_is_closed_and_steps_are_told() -> None:
    target, told, open_slots = slow(), [], set[int]()

    class Counting(Slow):
        def open(self, capacity: int) -> Any:
            slot = super().open(capacity)
            open_slots.add(id(slot))
            return slot

        def close(self, slot: Any) -> None:
            open_slots.discard(id(slot))
            super().close(slot)

    counting = Counting(torch.full((7,), 1 / 7, dtype=torch.float64), max_length=64)
    measure_passes(
        counting, [1], context=8, rows=(1, 5), repeats=1, progress=lambda *step: told.append(step)
    )
    assert not open_slots
    assert [done for done, _, _ in told] == list(range(told[0][1]))
    assert target.info.max_length == 64


def test_drafts_of_n_grams_cost_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's clock ticks in milliseconds; from event to event it is a tenth of a second."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: 0.1 * next(ticks))
    monkeypatch.setattr("paceline.workbench.plan.measure.time", clock)
    rows = torch.eye(7, dtype=torch.float64).roll(1, dims=1)  # counts up, over and over
    found = measure_method(
        TableTarget(rows, max_length=64), NgramDrafter(), TokenVerifier(), [list(range(7)) * 3]
    )
    assert 0 < found.draft(5) < 0.01
    assert 0.08 < found.rest < 0.1


def test_plain_decoding_drafts_nothing() -> None:
    found = measure_method(slow(), NoDrafter(), TokenVerifier(), [[1, 2]], max_tokens=6)
    assert (found.draft_fixed, found.draft_per_token) == (0, 0)


def test_without_text_there_is_nothing_to_measure() -> None:
    with pytest.raises(InvalidInput, match="at least one token"):
        measure_passes(slow(), [])
    with pytest.raises(InvalidInput, match="at least one prompt"):
        measure_method(slow(), NoDrafter(), TokenVerifier(), [])


def test_memory_is_that_of_the_tensors() -> None:
    model = build("llama")
    decoder = from_weights(
        model.state_dict(), model.config, dtype=torch.float32, storage="plain", head_storage="plain"
    )
    found = measure_memory(decoder, tokens_of(6))
    config = model.config
    head_dim = config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * 4
    assert (found.cache_per_token, found.vocab_size) == (per_token, config.vocab_size)
    assert found.weights == CachedTarget(decoder).decoder.num_bytes
    beside = extra_memory(found, found, num_draft_tokens=4, batch=2, context=100)
    assert beside.weights == found.weights
    assert beside.cache == 200 * per_token
    # p at five rows and q at four, for two sequences, in float32.
    assert beside.logits == 2 * (5 + 4) * config.vocab_size * 4
