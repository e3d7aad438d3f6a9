"""Attention over many sequences against the formula, row by row, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.targets.attention import Pass, Segment, attend
from paceline.targets.state.kv import KeyValueCache

HEADS, WIDTH, VALUE_WIDTH = 4, 8, 6

TREE = (-1, 0, 0, 1, 2, 4, 1)
"""Parents of new rows; the first is the root."""


@dataclass
class Rows:
    """One sequence of a pass: cached rows, new rows, who is whose ancestor."""

    cached: int
    rows: int
    parents: Sequence[int] | None = None
    pad: int = 0

    def ancestors(self, row: int) -> list[int]:
        """The new rows that `row` sees."""
        if self.parents is None:
            return list(range(row + 1))
        seen = [row]
        while self.parents[seen[-1]] >= 0:
            seen.append(self.parents[seen[-1]])
        return seen

    def position(self, row: int) -> int:
        return self.cached + len(self.ancestors(row)) - 1


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def prepare(
    sequences: Sequence[Rows], kv_heads: int, dtype: torch.dtype = torch.float64
) -> tuple[Pass, tuple[Tensor, Tensor, Tensor]]:
    """A pass over caches that hold random rows, and the queries, keys and values of new rows."""
    segments, positions, first = [], [], 0
    for number, one in enumerate(sequences):
        cache = KeyValueCache(one.cached + one.rows)
        past = (
            random(kv_heads, one.cached, width, seed=100 + 10 * number + width, dtype=dtype)
            for width in (WIDTH, VALUE_WIDTH)
        )
        cache.write(0, *past, 0)
        cache.keep(range(one.cached))
        # What a rejected draft left behind the end must not be seen.
        junk = torch.full((kv_heads, 3, WIDTH), 50.0, dtype=dtype)
        cache.write(0, junk, junk[..., :VALUE_WIDTH], one.cached)
        visible = None
        if one.parents is not None:
            visible = torch.zeros(one.rows, one.rows, dtype=torch.bool)
            for row in range(one.rows):
                visible[row, one.ancestors(row)] = True
        end = one.cached + one.rows + one.pad
        segments.append(Segment(cache, first, one.rows, one.cached, visible, end))
        positions += [one.position(row) for row in range(one.rows)]
        first += one.rows
    new = (
        random(HEADS, first, WIDTH, seed=1, dtype=dtype),
        random(kv_heads, first, WIDTH, seed=2, dtype=dtype),
        random(kv_heads, first, VALUE_WIDTH, seed=3, dtype=dtype),
    )
    nothing = torch.tensor([], dtype=torch.long)
    return Pass(nothing, torch.tensor(positions), segments, nothing), new


def by_formula(
    sequences: Sequence[Rows],
    batch: Pass,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """softmax(q k) v, written out for one row and one head at a time; before `attend` is called."""
    rows = []
    for one, segment in zip(sequences, batch.segments, strict=True):
        past_keys, past_values = (x.clone() for x in segment.state.read(0, one.cached))
        for row in range(one.rows):
            seen = one.ancestors(row)
            places = [*range(one.cached), *(one.position(i) for i in seen)]
            own = one.position(row)
            near = [i for i, place in enumerate(places) if window is None or place > own - window]
            heads = []
            for head in range(query.shape[0]):
                group = head * key.shape[0] // query.shape[0]
                new = [segment.first + i for i in seen]
                keys = torch.cat([past_keys[group], key[group, new]])[near]
                values = torch.cat([past_values[group], value[group, new]])[near]
                scores = [
                    float(query[head, segment.first + row].double() @ k.double()) * scale
                    for k in keys
                ]
                if softcap is not None:
                    scores = [softcap * math.tanh(score / softcap) for score in scores]
                weights = [math.exp(score) for score in scores]
                total = sum(weights) + (0.0 if sinks is None else math.exp(float(sinks[head])))
                out = sum(w * v.double() for w, v in zip(weights, values, strict=True)) / total
                heads.append(out)
            rows.append(torch.stack(heads))
    return torch.stack(rows)


CASES = {
    "one row": [Rows(7, 1)],
    "first row": [Rows(0, 1)],
    "prefill": [Rows(0, 5)],
    "chain": [Rows(7, 4)],
    "many rows": [Rows(5, 40)],
    "tree": [Rows(6, 7, TREE)],
    "padded keys": [Rows(7, 4, pad=9)],
    "one row, padded keys": [Rows(7, 1, pad=9)],
    "ragged": [Rows(3, 1), Rows(9, 7, TREE), Rows(0, 4), Rows(2, 36)],
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 4},
    "window of one": {"window": 1},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "all": {"window": 3, "softcap": 1.5, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_row_follows_the_formula(case: str, options: str, kv_heads: int) -> None:
    sequences, chosen = CASES[case], {"scale": 0.4, **OPTIONS[options]}
    batch, new = prepare(sequences, kv_heads)
    expected = by_formula(sequences, batch, *new, **chosen)
    found = attend(0, *new, batch, **chosen)
    assert found.shape == (sum(one.rows for one in sequences), HEADS, VALUE_WIDTH)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03), (torch.float16, 4e-3)]
)
def test_narrow_types_round_and_no_more(options: str, dtype: torch.dtype, atol: float) -> None:
    sequences, chosen = CASES["ragged"], {"scale": 0.4, **OPTIONS[options]}
    batch, new = prepare(sequences, 2, dtype)
    expected = by_formula(sequences, batch, *new, **chosen)
    found = attend(0, *new, batch, **chosen)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)


def test_new_rows_are_in_the_cache_afterwards() -> None:
    batch, (query, key, value) = prepare(CASES["ragged"], 2)
    attend(0, query, key, value, batch, scale=1.0)
    for segment in batch.segments:
        rows = slice(segment.start, segment.start + segment.rows)
        own = slice(segment.first, segment.first + segment.rows)
        keys, values = segment.state.layers[0]
        assert torch.equal(keys[:, rows], key[:, own])
        assert torch.equal(values[:, rows], value[:, own])


def test_a_mask_is_made_once_a_pass_and_none_where_all_is_seen() -> None:
    batch, (query, _, _) = prepare([Rows(7, 4)], 2)
    (segment,) = batch.segments
    first = segment.bias(batch.positions, None, query, 2)
    assert first is segment.bias(batch.positions, None, query, 2)
    assert first is not segment.bias(batch.positions, 4, query, 2)
    for cached, pad, window, free in ((7, 0, None, True), (7, 0, 8, True), (7, 0, 7, False)):
        batch, (query, _, _) = prepare([Rows(cached, 1, pad=pad)], 2)
        assert (batch.segments[0].bias(batch.positions, window, query, 1) is None) is free
    batch, (query, _, _) = prepare([Rows(7, 1, pad=1)], 2)
    assert batch.segments[0].bias(batch.positions, None, query, 1) is not None
