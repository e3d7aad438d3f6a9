"""The loop of `kernels.attention`, with the dot products of AVX-512 BF16."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from paceline.kernels.llvm.machine_code import Function, compile_functions, compiles
from paceline.kernels.llvm.records import Float, Integer, Pointer
from paceline.kernels.llvm.vector_code import LANES, Writer, loop

KEYS = 32
"""Keys are read in blocks of this many."""

_MOST_ROWS = 6
"""More rows in a tile are hardly faster, and take long to compile."""

_ACCUMULATORS = 24
"""Registers for sums of weighted values."""

MOST_WIDTH = _ACCUMULATORS * LANES
"""The widest heads, for which the sums of one row fill the registers."""


class AttentionArguments(NamedTuple):
    """Arguments of the loop.

    Each of `tasks` tasks computes some query heads of one head of the cache; a head has
    `tasks_per_head` tasks. The rows of a task are `full_tiles` full tiles, then those of the last
    tile. The cache has `key_blocks` blocks of `KEYS` keys, of which `length` keys are valid; its
    heads start `head_bytes` apart. Each thread has `scratch_bytes` of the scratch memory.
    """

    query: Pointer
    keys: Pointer
    values: Pointer
    bias: Pointer
    out: Pointer
    scratch: Pointer
    tasks: Integer
    tasks_per_head: Integer
    full_tiles: Integer
    key_blocks: Integer
    length: Integer
    head_bytes: Integer
    scratch_bytes: Integer
    scale: Float


@functools.cache
def is_available(width: int = 2 * KEYS) -> bool:
    """Whether the processor has the instructions, and the loops can be compiled and called.

    Args:
        width: of the heads, a multiple of `KEYS` up to `MOST_WIDTH`.
    """
    names = ("avx512f", "avx512bw", "avx512vl", "avx512bf16")
    return compiles(lambda: functions(width), *names)


def most_rows(width: int) -> int:
    """The most rows of a tile whose sums stay in registers."""
    return min(_MOST_ROWS, _ACCUMULATORS // (width // LANES))


@functools.cache
def functions(width: int) -> dict[int, Function[AttentionArguments]]:
    """The loops for heads of this width, by the rows of the last tile."""

    def write(module: Any, names: dict[int, str], team: list[int]) -> None:
        tiles = {
            rows: (_Scores(module, rows, width).write(), _Values(module, rows, width).write())
            for rows in names
        }
        for rows, name in names.items():
            _Attention(module, name, rows, width, team, tiles).write()

    return compile_functions(AttentionArguments, range(1, most_rows(width) + 1), write)


class _Scores(Writer):
    """Writes the dot products of `rows` query rows with a block of keys.

    Its arguments: the query rows; the transposed keys, for every pair of dimensions those of all
    keys; the bias and the place for the scores, and the bytes from one row of both to the next; the
    scale.
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
                two = self.broadcast(self.load(self.at(own, r, 2 * self._width), t.i32), t.ints)
                later += [self.dot(sums[len(halves) * r + h], parts[h], two) for h in halves]
            return later

        zeros = [self.splat(0.0)] * (len(halves) * self._rows)
        sums = loop(b, t.i64(0), t.i64(self._width // 2), zeros, pair)
        factor = self.broadcast(scale, t.floats)
        for r in range(self._rows):
            own = b.mul(step, t.i64(r))
            for h in halves:
                added = self.load(self.at(self.at(bias, own), h, 4 * LANES), t.floats)
                value = b.call(fma, [sums[len(halves) * r + h], factor, added])
                # A masked key may hold NaN, which adding a bias would not hide.
                hidden = self.splat(float("-inf"))
                value = b.select(b.fcmp_ordered("==", added, hidden), hidden, value)
                b.store(value, self.at(self.at(scores, own), h, 4 * LANES), align=1)
        b.ret_void()
        return self.function


class _Values(Writer):
    """Writes the weighted sums of the values for `rows` rows.

    Its arguments: the weights in bfloat16, and the bytes from one row of them to the next; the sum
    of each row's weights; the values; the place for the results; and the number of values.
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
            # There may be NaN after the last value, and 0 times NaN is not 0.
            alone = b.icmp_signed("==", b.add(b.mul(index, t.i64(2)), t.i64(1)), length)
            second = b.select(alone, first, self.at(first, 2 * self._width))
            twos = [
                self.broadcast(self.load(self.at(start, index, 4), t.i32), t.ints)
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

        zeros = [self.splat(0.0)] * (columns * self._rows)
        sums = loop(b, t.i64(0), pairs, zeros, pair)
        for r in range(self._rows):
            total = self.load(self.at(totals, r, 4), t.f32)
            share = self.broadcast(b.fdiv(t.f32(1.0), total), t.floats)
            for column in range(columns):
                value = self.bfloat16(b.fmul(sums[r * columns + column], share))
                place = self.at(out, 2 * (r * self._width + column * LANES))
                b.store(value, place, align=1)
        b.ret_void()
        return self.function


class _Attention(Writer):
    """Writes attention for full tiles of rows, then a tile of `rows` rows.

    A thread computes whole heads of the cache, or of the query: the scores of all rows block by
    block of keys, the weights row by row, the values tile by tile. Weights are rounded to bfloat16,
    as in ATen; their sum is not.
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
        arguments = self.record(AttentionArguments, self.function.args[0])
        full, blocks = arguments.full_tiles, arguments.key_blocks
        thread = self.thread(self._team)
        most = most_rows(self._width)
        count = b.add(b.mul(full, t.i64(most)), t.i64(self._rows))
        step = b.mul(blocks, t.i64(4 * KEYS))
        scores = self.at(arguments.scratch, b.mul(thread[0], arguments.scratch_bytes))
        transposed = self.at(scores, b.mul(count, step))
        totals = self.at(transposed, KEYS, row_bytes)

        def task(number: Any, _: list[Any]) -> list[Any]:
            head = b.mul(b.sdiv(number, arguments.tasks_per_head), arguments.head_bytes)
            first_row = b.mul(b.mul(number, count), t.i64(row_bytes))
            own, result = (self.at(base, first_row) for base in (arguments.query, arguments.out))

            def block(index: Any, _: list[Any]) -> list[Any]:
                keys = self.at(self.at(arguments.keys, head), index, KEYS * row_bytes)
                self._transpose(keys, transposed)
                near = b.mul(index, t.i64(4 * KEYS))

                def tile(first: Any, rows: int) -> None:
                    place = b.add(b.mul(first, step), near)
                    b.call(
                        self._tiles[rows][0],
                        [
                            self.at(own, first, row_bytes),
                            transposed,
                            self.at(arguments.bias, place),
                            self.at(scores, place),
                            step,
                            arguments.scale,
                        ],
                    )

                self.for_each_tile(full, most, self._rows, tile)
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
                        self.at(arguments.values, head),
                        self.at(result, first, row_bytes),
                        arguments.length,
                    ],
                )

            self.for_each_tile(full, most, self._rows, tile)
            return []

        loop(b, *self.share(arguments.tasks, thread), [], task)
        b.ret_void()

    def _transpose(self, keys: Any, transposed: Any) -> None:
        """Store a block of keys transposed: for each pair of dimensions, those of all keys."""
        b, t = self.b, self.t

        def pair(index: Any, _: list[Any]) -> list[Any]:
            source, place = self.at(keys, index, 4), self.at(transposed, index, 4 * KEYS)
            for key in range(KEYS):
                two = self.load(self.at(source, key, 2 * self._width), t.i32)
                b.store(two, self.at(place, key, 4), align=1)
            return []

        loop(b, t.i64(0), t.i64(self._width // 2), [], pair)

    def _weigh(self, scores: Any, totals: Any, count: Any, step: Any, parts: Any) -> None:
        """Replace scores by weights that are not divided by their sum yet."""
        b, t = self.b, self.t
        most = self.declare("llvm.maxnum.v16f32", t.floats, t.floats, t.floats)
        largest = self.declare("llvm.vector.reduce.fmax.v16f32", t.f32, t.floats)
        add = self.declare("llvm.vector.reduce.fadd.v16f32", t.f32, t.f32, t.floats)

        def row(index: Any, _: list[Any]) -> list[Any]:
            start = self.at(scores, b.mul(index, step))

            def compare(part: Any, so_far: list[Any]) -> list[Any]:
                own = self.load(self.at(start, part, 4 * LANES), t.floats)
                return [b.call(most, [so_far[0], own])]

            (tops,) = loop(b, t.i64(0), parts, [self.splat(float("-inf"))], compare)
            top = self.broadcast(b.call(largest, [tops]), t.floats)

            def weigh(part: Any, sums: list[Any]) -> list[Any]:
                own = self.load(self.at(start, part, 4 * LANES), t.floats)
                weight = self.exponential(b.fsub(own, top))
                b.store(self.bfloat16(weight), self.at(start, part, 2 * LANES), align=1)
                return [b.fadd(sums[0], weight)]

            (sums,) = loop(b, t.i64(0), parts, [self.splat(0.0)], weigh)
            total = b.call(add, [t.f32(0.0), sums])
            b.store(total, self.at(totals, index, 4), align=4)
            return []

        loop(b, t.i64(0), count, [], row)
