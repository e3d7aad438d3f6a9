"""The cache against a list of rows that is copied at every step."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from paceline.targets.state.kv import BLOCK, SLACK, KeyValueCache

HEADS, WIDTHS = 2, (3, 5)


def rows_of(count: int, mark: float) -> tuple[Tensor, Tensor]:
    """Keys and values `[HEADS, count, width]` whose entries tell their row, head and layer."""
    keys, values = (
        mark
        + torch.arange(HEADS * count * width, dtype=torch.float64).view(HEADS, count, width) / 7
        for width in WIDTHS
    )
    return keys, values


def pointers(cache: KeyValueCache) -> list[int]:
    return [tensor.data_ptr() for layer in cache.layers for tensor in layer]


@pytest.mark.parametrize("seed", range(20))
def test_any_history_equals_a_list_of_rows(seed: int) -> None:
    chance = random.Random(seed)
    cache = KeyValueCache(60)
    kept: list[dict[int, tuple[Tensor, Tensor]]] = []
    for step in range(60):
        start, count = cache.length, chance.randint(1, 6)
        written = {layer: rows_of(count, 1000.0 * step + 100 * layer) for layer in (0, 3)}
        for layer, (keys, values) in written.items():
            cache.write(layer, keys, values, start)
        assert cache.length == len(kept)
        chosen = sorted(chance.sample(range(count), chance.randint(0, count)))
        if start + len(chosen) <= 60:
            cache.keep([start + i for i in chosen])
            kept += [{k: (a[:, i], b[:, i]) for k, (a, b) in written.items()} for i in chosen]
        if chance.random() < 0.3:
            length = chance.randint(0, len(kept))
            cache.cut(length)
            del kept[length:]
        assert cache.length == len(kept)
        for layer in (0, 3):
            for part, tensor in enumerate(cache.read(layer, cache.length)):
                assert tensor.shape[1] == len(kept)
                for row, expected in enumerate(kept):
                    assert torch.equal(tensor[:, row], expected[layer][part])


def test_nothing_moves_and_nothing_is_allocated_before_it_is_written() -> None:
    cache = KeyValueCache(10)
    assert cache.layers == []
    cache.write(2, *rows_of(4, 1.0), 0)
    cache.write(0, *rows_of(4, 2.0), 0)
    places = pointers(cache)
    assert [tuple(t.shape) for layer in cache.layers for t in layer] == [
        (HEADS, 96, width) for width in (*WIDTHS, *WIDTHS)
    ]
    cache.keep([0, 2, 3])
    for _ in range(100):
        cache.cut(3)
        for layer in (0, 2):
            cache.write(layer, *rows_of(SLACK, 3.0), 3)
        cache.keep([3, 9, 40])
    assert pointers(cache) == places


def test_layers_come_in_their_order_and_whole() -> None:
    cache = KeyValueCache(4)
    for layer in (1, 0):
        cache.write(layer, *rows_of(2, 10.0 * layer), 0)
    (first, _), (second, _) = cache.layers
    assert first[0, 0, 0] == 0.0
    assert second[0, 0, 0] == 10.0
    assert first.shape[1] == 96


def test_rows_behind_the_end_are_zero_at_first() -> None:
    # A mask adds -inf to a score, and that does not stop what was NaN in memory.
    cache = KeyValueCache(4)
    cache.write(0, *rows_of(2, 1.0), 0)
    for tensor in cache.read(0, 4 + SLACK):
        assert bool((tensor[:, 2:] == 0).all())


def test_reserved_room_is_there_and_keeps_what_was_written() -> None:
    cache = KeyValueCache(4)
    keys, values = rows_of(3, 1.0)
    cache.write(0, keys, values, 0)
    cache.keep([0, 1, 2])
    cache.reserve(4 + SLACK)
    place = pointers(cache)
    more = rows_of(1 + SLACK, 2.0)
    cache.write(0, *more, 3)
    assert pointers(cache) == place
    cache.reserve(500)
    more = rows_of(400, 2.0)
    cache.write(0, *more, 3)
    for tensor, old, new in zip(cache.read(0, 500), (keys, values), more, strict=True):
        assert torch.equal(tensor[:, :3], old)
        assert torch.equal(tensor[:, 3:403], new)
        assert tensor.shape[1] == 500


def test_rows_written_in_inference_mode_can_be_moved_outside_of_it() -> None:
    cache = KeyValueCache(8)
    keys, values = rows_of(4, 1.0)
    with torch.inference_mode():
        cache.write(0, keys, values, 0)
    cache.keep([0, 3])
    assert torch.equal(cache.read(0, 2)[0], keys[:, [0, 3]])


def test_cutting_never_makes_it_longer() -> None:
    cache = KeyValueCache(8)
    cache.write(0, *rows_of(4, 1.0), 0)
    cache.keep([0, 1])
    cache.cut(5)
    assert cache.length == 2


@pytest.mark.parametrize(("capacity", "rows"), [(0, 64), (1, 96), (32, 96), (33, 128), (100, 192)])
def test_there_is_room_for_drafts_in_whole_blocks(capacity: int, rows: int) -> None:
    cache = KeyValueCache(capacity)
    assert cache.rows == rows
    assert rows % BLOCK == 0
    assert rows >= capacity + SLACK
    cache.reserve(rows + 1)
    assert cache.rows == rows + BLOCK
