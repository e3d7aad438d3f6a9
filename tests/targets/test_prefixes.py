"""What was read once is not read again: the same rows, within a limit; the unused go first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.errors import InvalidInput
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.targets.slot import Slot
from tests.recurrent import Recurrent
from tests.tiny_models import build, tokens_of

TEXT = tokens_of(40)
MAKERS: dict[str, Callable[[], CachedTarget]] = {
    "keys and values": lambda: CachedTarget(HFDecoder(build("llama"))),
    "snapshots": lambda: CachedTarget(Recurrent(200, "end")),
    "invariant": lambda: CachedTarget(HFDecoder(build("llama")), fixed_rows=4, fixed_keys=32),
}


def read(target: CachedTarget, ends: list[int]) -> Slot:
    """A slot that has read the text up to each of the ends, and remembers it."""
    slot = target.open(60)
    for start, end in zip([0, *ends], ends, strict=False):
        prefill(target, slot, TEXT[start:end])
        target.prefixes.remember(slot, start)
    return slot


@pytest.fixture(params=MAKERS)
def target(request: pytest.FixtureRequest) -> CachedTarget:
    made = MAKERS[request.param]()
    made.prefixes.resize(1 << 24)
    return made


def test_what_was_recalled_is_what_was_read(target: CachedTarget) -> None:
    """Bit for bit; and neither slot sees what the other goes on with."""
    first, second = read(target, [16, 30]), target.open(60)
    assert target.prefixes.recall(second, TEXT[:16])
    assert target.prefixes.recall(second, TEXT[16:30])
    assert target.length(second) == 30
    assert second.text == first.text
    prefill(target, first, (5, 5, 5))
    own = Work(second, TEXT[30:34])
    found = target.score([own])[0].logits
    fresh = target.open(60)
    for start, end in ((0, 16), (16, 30)):
        prefill(target, fresh, TEXT[start:end])
    assert torch.equal(found, target.score([Work(fresh, TEXT[30:34])])[0].logits)
    target.close(first)
    assert torch.equal(found, target.score([own])[0].logits)


def test_only_the_same_chunk_after_the_same_text_is_recalled(target: CachedTarget) -> None:
    read(target, [16, 30])
    slot = target.open(60)
    other = ((TEXT[0] + 1) % 100, *TEXT[1:16])
    assert not target.prefixes.recall(slot, TEXT[:15])
    assert not target.prefixes.recall(slot, TEXT[16:30])
    assert not target.prefixes.recall(slot, other)
    assert not target.prefixes.recall(slot, ())
    assert target.length(slot) == 0
    prefill(target, slot, other)
    assert not target.prefixes.recall(slot, TEXT[16:30])
    assert target.length(slot) == 16


def test_a_slot_can_be_cut_after_it_recalled(target: CachedTarget) -> None:
    read(target, [16, 30])
    slot = target.open(60)
    assert target.prefixes.recall(slot, TEXT[:16])
    assert target.prefixes.recall(slot, TEXT[16:30])
    target.rollback(slot, 20)
    found = target.score([Work(slot, (7,))])[0].logits
    fresh = target.open(60)
    prefill(target, fresh, TEXT[:20])
    expected = target.score([Work(fresh, (7,))])[0].logits
    assert torch.allclose(found, expected, atol=1e-5)


def test_the_end_of_what_was_not_used_longest_goes_first() -> None:
    target = MAKERS["keys and values"]()
    target.prefixes.resize(1 << 24)
    read(target, [10, 20, 30])
    each = target.prefixes.num_bytes // 3
    used = target.open(60)
    assert target.prefixes.recall(used, TEXT[:10])
    target.prefixes.resize(2 * each)
    fresh = target.open(60)
    assert target.prefixes.recall(fresh, TEXT[:10])
    assert target.prefixes.recall(fresh, TEXT[10:20])
    assert not target.prefixes.recall(fresh, TEXT[20:30])
    assert target.prefixes.num_bytes == 2 * each
    target.prefixes.resize(0)
    assert target.prefixes.num_bytes == 0
    assert not target.prefixes.is_on


def test_what_is_held_goes_when_the_last_lets_go() -> None:
    target = MAKERS["keys and values"]()
    prefixes = target.prefixes
    read(target, [10])
    assert prefixes.num_bytes == 0
    with prefixes.held():
        with prefixes.held():
            read(target, [10, 20])
        assert prefixes.recall(target.open(60), TEXT[:10])
    assert not prefixes.is_on
    assert prefixes.num_bytes == 0
    assert not prefixes.recall(target.open(60), TEXT[:10])


def test_it_counts_what_was_asked_for_and_found() -> None:
    target = MAKERS["keys and values"]()
    target.prefixes.resize(1 << 24)
    read(target, [10])
    slot = target.open(60)
    assert target.prefixes.recall(slot, TEXT[:10])
    assert not target.prefixes.recall(slot, TEXT[10:15])
    assert (target.prefixes.num_asked_tokens, target.prefixes.num_found_tokens) == (15, 10)


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_bytes must be at least 0"):
        MAKERS["keys and values"]().prefixes.resize(-1)
