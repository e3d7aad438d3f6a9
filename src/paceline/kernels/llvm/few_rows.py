"""Attention of few rows over a cache in bfloat16, by the dot products of AVX-512 BF16.

ATen's fused kernel is made for many rows. Over a cache of 1,500 tokens it took a fifth of a pass of
six rows, more than twice the time of one row. And it rounds a row by what stands beside it; here a
row of a chain has the same bits in any company: its sums run over the cache in the order of the
tokens, and what it does not see adds nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from paceline.kernels.llvm.machine_code import Functions, compiles, float_bits
from paceline.kernels.llvm.vector_code import LANES, Writer, loop

KEYS = 32
"""Keys are taken in blocks of so many."""

_MOST_ROWS = 6
"""More rows in a tile are hardly faster, and take long to compile."""

_SUMS = 24
"""Registers for sums of weighted values."""


def takes(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether `attend_few` takes these; see there."""
    width = query.shape[2]
    return (
        query.dtype is keys.dtype is values.dtype is torch.bfloat16
        and query.device.type == keys.device.type == values.device.type == "cpu"
        and keys.shape[2] == width
        and width % KEYS == 0
        and width <= _SUMS * LANES
        and keys.shape == values.shape
        and keys.shape[1] % KEYS == 0
        and keys.stride()[1:] == values.stride()[1:] == (width, 1)
        and keys.stride(0) == values.stride(0)
        and works(width)
    )


def attend_few(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, length: int, scale: float
) -> Tensor:
    """softmax(scale q k + bias) v, for every row of every head.

    Args:
        query: bfloat16 `[heads, n, width]`, a width that blocks of keys divide.
        keys, values: bfloat16 `[kv_heads, end, width]` of a cache, `end` a multiple of `KEYS`.
            Query heads that share a head of the cache stand one behind the other.
        bias: float32 `[heads / kv_heads * n, end]`, the same n rows for each head: 0 for what a
            row sees, minus infinity else.
        length: of the keys and values that are there. What lies behind, up to `end`, may be
            anything, and no row sees it.
        scale: of the products.

    Returns:
        `[heads, n, width]`.
    """
    heads, n, width = query.shape
    kv_heads, end, _ = keys.shape
    query, bias = query.contiguous(), bias.contiguous()
    out = torch.empty_like(query)
    threads = torch.get_num_threads()
    # With more threads than heads in the cache, each query head is a task.
    parts = heads // kv_heads if threads > kv_heads else 1
    rows = heads // kv_heads * n // parts
    functions, most = _functions(width), _most_rows(width)
    full = (rows - 1) // most
    room = 4 * rows * end + 2 * KEYS * width + 4 * rows
    scratch = query.new_empty(threads * room, dtype=torch.uint8)
    tensors = (query, keys, values, bias, out, scratch)
    numbers = (kv_heads * parts, parts, full, end // KEYS, length, 2 * keys.stride(0), room)
    places = (tensor.data_ptr() for tensor in tensors)
    functions.run(rows - full * most, (*places, *numbers, float_bits(scale)), threads)
    return out


@functools.cache
def works(width: int = 2 * KEYS) -> bool:
    """Whether the loops for heads of this width can be compiled and called here."""
    names = ("avx512f", "avx512bw", "avx512vl", "avx512bf16")
    return compiles(lambda: _functions(width), *names)


def _most_rows(width: int) -> int:
    """Rows that a tile takes at once, so that their sums stay in registers."""
    return min(_MOST_ROWS, _SUMS // (width // LANES))


@functools.cache
def _functions(width: int) -> Functions[int]:
    """By the rows of the last tile."""

    def write(module: Any, names: dict[int, str], team: list[int]) -> None:
        tiles = {
            rows: (_Scores(module, rows, width).write(), _Values(module, rows, width).write())
            for rows in names
        }
        for rows, name in names.items():
            _Attention(module, name, rows, width, team, tiles).write()

    return Functions(range(1, _most_rows(width) + 1), write)


class _Scores(Writer):
    """Writes the products of so many rows with a block of keys.

    It takes the rows; the keys, for every pair of their dimensions those of all keys; where the
    bias stands and where the scores go, and the bytes from one row of both to the next; the scale.
    """

    def __init__(self, module: Any, rows: int, width: int) -> None:
        kinds = ("pointer", "pointer", "pointer", "pointer", "i64", "f32")
        super().__init__(module, f"scores_{rows}", *kinds)
        self.function.linkage = "internal"
        self._rows, self._width = rows, width

    def write(self) -> Any:
        """The whole function."""
        b, t = self.b, self.t
        query, keys, bias, scores, step, scale = self.function.args
        halves = range(KEYS // LANES)
        fma = self.declare("llvm.fma.v16f32", t.floats, t.floats, t.floats, t.floats)

        def pair(index: Any, sums: list[Any]) -> list[Any]:
            block = self.at(keys, index, 4 * KEYS)
            parts = [self.load(self.at(block, half, 4 * LANES), t.ints) for half in halves]
            own = self.at(query, index, 4)
            later = []
            for r in range(self._rows):
                two = self.everywhere(self.load(self.at(own, r, 2 * self._width), t.i32), t.ints)
                later += [self.dot(sums[len(halves) * r + h], parts[h], two) for h in halves]
            return later

        zeros = [self.same(0.0)] * (len(halves) * self._rows)
        sums = loop(b, t.i64(0), t.i64(self._width // 2), zeros, pair)
        factor = self.everywhere(scale, t.floats)
        for r in range(self._rows):
            own = b.mul(step, t.i64(r))
            for h in halves:
                added = self.load(self.at(self.at(bias, own), h, 4 * LANES), t.floats)
                value = b.call(fma, [sums[len(halves) * r + h], factor, added])
                # Not what is not seen: it may be no number, to which nothing can be added.
                hidden = self.same(float("-inf"))
                value = b.select(b.fcmp_ordered("==", added, hidden), hidden, value)
                b.store(value, self.at(self.at(scores, own), h, 4 * LANES), align=1)
        b.ret_void()
        return self.function


class _Values(Writer):
    """Writes the weighted sums of the values for so many rows.

    It takes the weights, bfloat16, and the bytes from one row of them to the next; the sum of each
    row's weights; the values; where the results go; and how many values there are.
    """

    def __init__(self, module: Any, rows: int, width: int) -> None:
        kinds = ("pointer", "i64", "pointer", "pointer", "pointer", "i64")
        super().__init__(module, f"values_{rows}", *kinds)
        self.function.linkage = "internal"
        self._rows, self._width = rows, width

    def write(self) -> Any:
        """The whole function."""
        b, t = self.b, self.t
        weights, step, totals, values, out, length = self.function.args
        pairs = b.lshr(b.add(length, t.i64(1)), t.i64(1))
        columns = self._width // LANES
        starts = [self.at(weights, b.mul(step, t.i64(r))) for r in range(self._rows)]

        def pair(index: Any, sums: list[Any]) -> list[Any]:
            first = self.at(values, index, 4 * self._width)
            # Behind the last value may be what is not a number, even times a weight of 0.
            alone = b.icmp_signed("==", b.add(b.mul(index, t.i64(2)), t.i64(1)), length)
            second = b.select(alone, first, self.at(first, 2 * self._width))
            twos = [
                self.everywhere(self.load(self.at(start, index, 4), t.i32), t.ints)
                for start in starts
            ]
            later = list(sums)
            for column in range(columns):
                low, high = (
                    b.zext(self.load(self.at(row, column, 2 * LANES), t.shorts), t.ints)
                    for row in (first, second)
                )
                both = b.or_(low, b.shl(high, t.ints([16] * LANES)))
                for r, two in enumerate(twos):
                    place = r * columns + column
                    later[place] = self.dot(sums[place], both, two)
            return later

        zeros = [self.same(0.0)] * (columns * self._rows)
        sums = loop(b, t.i64(0), pairs, zeros, pair)
        for r in range(self._rows):
            total = self.load(self.at(totals, r, 4), t.f32)
            share = self.everywhere(b.fdiv(t.f32(1.0), total), t.floats)
            for column in range(columns):
                value = self.bfloat16(b.fmul(sums[r * columns + column], share))
                place = self.at(out, 2 * (r * self._width + column * LANES))
                b.store(value, place, align=1)
        b.ret_void()
        return self.function


class _Attention(Writer):
    """Writes attention for some full tiles of rows, and so many rows behind them.

    A thread does whole heads of the cache, or of the query: scores of all rows block by block of
    keys, weights row by row, values tile by tile. Weights are rounded to bfloat16, as ATen rounds
    them; their sum is not.
    """

    def __init__(
        self,
        module: Any,
        name: str,
        rows: int,
        width: int,
        team: list[int],
        tiles: dict[int, tuple[Any, Any]],
    ) -> None:
        super().__init__(module, name, "pointer")
        self._rows, self._width, self._team, self._tiles = rows, width, team, tiles

    def write(self) -> None:
        """The whole function."""
        b, t, row_bytes = self.b, self.t, 2 * self._width
        fields = self.fields(self.function.args[0], 14)
        query, keys, values, bias, out, scratch = (b.inttoptr(f, t.pointer) for f in fields[:6])
        tasks, parts, full, blocks, length, head_bytes, room, bits = fields[6:]
        scale = b.bitcast(b.trunc(bits, t.i32), t.f32)
        thread = self.thread(self._team)
        most = _most_rows(self._width)
        count = b.add(b.mul(full, t.i64(most)), t.i64(self._rows))
        step = b.mul(blocks, t.i64(4 * KEYS))
        scores = self.at(scratch, b.mul(thread[0], room))
        turned = self.at(scores, b.mul(count, step))
        totals = self.at(turned, KEYS, row_bytes)

        def task(number: Any, _: list[Any]) -> list[Any]:
            head = b.mul(b.sdiv(number, parts), head_bytes)
            behind = b.mul(b.mul(number, count), t.i64(row_bytes))
            own, result = self.at(query, behind), self.at(out, behind)

            def block(index: Any, _: list[Any]) -> list[Any]:
                self._turn(self.at(self.at(keys, head), index, KEYS * row_bytes), turned)
                near = b.mul(index, t.i64(4 * KEYS))

                def tile(first: Any, rows: int) -> None:
                    place = b.add(b.mul(first, step), near)
                    b.call(
                        self._tiles[rows][0],
                        [
                            self.at(own, first, row_bytes),
                            turned,
                            self.at(bias, place),
                            self.at(scores, place),
                            step,
                            scale,
                        ],
                    )

                self.every_tile(full, most, self._rows, tile)
                return []

            loop(b, t.i64(0), blocks, [], block)
            self._weigh(scores, totals, count, step, b.mul(blocks, t.i64(KEYS // LANES)))

            def tile(first: Any, rows: int) -> None:
                b.call(
                    self._tiles[rows][1],
                    [
                        self.at(scores, b.mul(first, step)),
                        step,
                        self.at(totals, first, 4),
                        self.at(values, head),
                        self.at(result, first, row_bytes),
                        length,
                    ],
                )

            self.every_tile(full, most, self._rows, tile)
            return []

        loop(b, *self.share(tasks, thread), [], task)
        b.ret_void()

    def _turn(self, keys: Any, turned: Any) -> None:
        """For every pair of dimensions those of a block of keys, one behind the other."""
        b, t = self.b, self.t

        def pair(index: Any, _: list[Any]) -> list[Any]:
            source, place = self.at(keys, index, 4), self.at(turned, index, 4 * KEYS)
            for key in range(KEYS):
                two = self.load(self.at(source, key, 2 * self._width), t.i32)
                b.store(two, self.at(place, key, 4), align=1)
            return []

        loop(b, t.i64(0), t.i64(self._width // 2), [], pair)

    def _weigh(self, scores: Any, totals: Any, count: Any, step: Any, parts: Any) -> None:
        """Scores to weights, not yet divided by their sum. They lie where the scores were."""
        b, t = self.b, self.t
        most = self.declare("llvm.maxnum.v16f32", t.floats, t.floats, t.floats)
        largest = self.declare("llvm.vector.reduce.fmax.v16f32", t.f32, t.floats)
        add = self.declare("llvm.vector.reduce.fadd.v16f32", t.f32, t.f32, t.floats)

        def row(index: Any, _: list[Any]) -> list[Any]:
            start = self.at(scores, b.mul(index, step))

            def compare(part: Any, so_far: list[Any]) -> list[Any]:
                own = self.load(self.at(start, part, 4 * LANES), t.floats)
                return [b.call(most, [so_far[0], own])]

            (tops,) = loop(b, t.i64(0), parts, [self.same(float("-inf"))], compare)
            top = self.everywhere(b.call(largest, [tops]), t.floats)

            def weigh(part: Any, sums: list[Any]) -> list[Any]:
                own = self.load(self.at(start, part, 4 * LANES), t.floats)
                weight = self.exponential(b.fsub(own, top))
                b.store(self.bfloat16(weight), self.at(start, part, 2 * LANES), align=1)
                return [b.fadd(sums[0], weight)]

            (sums,) = loop(b, t.i64(0), parts, [self.same(0.0)], weigh)
            total = b.call(add, [t.f32(0.0), sums])
            b.store(total, self.at(totals, index, 4), align=4)
            return []

        loop(b, t.i64(0), count, [], row)
