"""The loop of `kernels.bfloat16`, with the dot products of AVX-512 BF16."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from paceline.kernels.llvm.machine_code import Function, compile_functions, compiles
from paceline.kernels.llvm.records import Integer, Pointer
from paceline.kernels.llvm.vector_code import LANES, Writer, loop

_HALVES = 2
"""The number of output vectors in a tile."""

OUTPUTS = _HALVES * LANES
"""The number of outputs in a block."""

LINE = 4 * OUTPUTS
"""The bytes of the weights of a block of outputs for one pair of inputs."""

MOST_ROWS = 12
"""The most rows of a tile: with 2 accumulators each they leave registers for the rest."""

_NEAR, _FAR = (3072, 3), (8192, 2)
"""How many bytes ahead to prefetch, and into which cache (3: L1, 2: L2). With few rows the
processor's own prefetcher keeps up; six and eight rows take 15 % longer without a far prefetch,
and the L2 cache has more room for it."""

_MANY_ROWS = 6
"""The fewest rows for which the prefetch is far."""


class ProductArguments(NamedTuple):
    """Arguments of the loop: `full_tiles` tiles of `MOST_ROWS` rows, then those of the last tile.

    There are `blocks` blocks of `OUTPUTS` outputs and `pairs` pairs of inputs. Bias and residual
    have steps in bytes from one block to the next, and the residual one from row to row; with a
    step of 0, the same zeros are read again.
    """

    x: Pointer
    weights: Pointer
    out: Pointer
    scratch: Pointer
    bias: Pointer
    residual: Pointer
    blocks: Integer
    pairs: Integer
    full_tiles: Integer
    bias_block_bytes: Integer
    residual_block_bytes: Integer
    residual_row_bytes: Integer


@functools.cache
def is_available() -> bool:
    """Whether this processor has the instructions, and the loops can be compiled and called."""
    return compiles(functions, "avx512f", "avx512bw", "avx512vl", "avx512bf16")


@functools.cache
def functions() -> dict[int, Function[ProductArguments]]:
    """The loops, by the rows of the last tile."""
    return compile_functions(ProductArguments, range(1, MOST_ROWS + 1), _write)


def _write(module: Any, names: dict[int, str], team: list[int]) -> None:
    tiles = {rows: _Tile(module, rows).write() for rows in names}
    for rows, name in names.items():
        _Product(module, name, rows, team, tiles).write()


class _Tile(Writer):
    """Writes the function that computes a tile: 32 outputs of `rows` rows.

    Its arguments: the activations, for every pair of inputs those of all rows; the weights; the
    place for the results and the bytes from one row of them to the next; the bias, and the residual
    with its own step; and the number of pairs.
    """

    def __init__(self, module: Any, rows: int) -> None:
        kinds = ("pointer", "pointer", "pointer", "i64", "pointer", "pointer", "i64", "i64")
        super().__init__(module, f"tile_{rows}", *kinds)
        self.function.linkage = "internal"
        self._rows = rows

    def write(self) -> Any:
        """The whole function."""
        b, t = self.b, self.t
        x, weights, out, step, bias, residual, residual_step, pairs = self.function.args
        ahead, cache = _NEAR if self._rows < _MANY_ROWS else _FAR

        def pair(index: Any, sums: list[Any]) -> list[Any]:
            line = self.at(weights, index, LINE)
            halves = [self.at(line, half, 4 * LANES) for half in range(_HALVES)]
            for half in halves:
                self.prefetch(self.at(half, ahead), cache)
            loaded = [self.load(half, t.ints) for half in halves]
            own = self.at(x, index, 4 * self._rows)
            later = []
            for r in range(self._rows):
                two = self.broadcast(self.load(self.at(own, r, 4), t.i32), t.ints)
                for half, weight in enumerate(loaded):
                    later.append(self.dot(sums[_HALVES * r + half], weight, two))
            return later

        zeros = [t.floats([0.0] * LANES)] * (_HALVES * self._rows)
        sums = loop(b, t.i64(0), pairs, zeros, pair)
        for r in range(self._rows):
            row, own = (
                self.at(base, b.mul(by, t.i64(r)))
                for base, by in ((out, step), (residual, residual_step))
            )
            for half in range(_HALVES):
                offset = 2 * LANES * half
                value = b.fadd(sums[_HALVES * r + half], self.floats(self.at(bias, offset)))
                value = b.fadd(value, self.floats(self.at(own, offset)))
                b.store(self.bfloat16(value), self.at(row, offset), align=1)
        b.ret_void()
        return self.function


class _Product(Writer):
    """Writes the function that multiplies full tiles of rows, then a tile of `rows` rows.

    Each thread makes its own copy of the activations, which takes far less time than a barrier.
    Then it computes its blocks of outputs: all rows of a block while its weights are in the cache.
    """

    def __init__(
        self, module: Any, name: str, rows: int, team: list[int], tiles: dict[int, Any]
    ) -> None:
        super().__init__(module, name, "pointer")
        self._rows, self._team, self._tiles = rows, team, tiles

    def write(self) -> None:
        """The whole function."""
        b, t = self.b, self.t
        arguments = self.record(ProductArguments, self.function.args[0])
        blocks, pairs, full = arguments.blocks, arguments.pairs, arguments.full_tiles
        thread = self.thread(self._team)
        width = b.mul(pairs, t.i64(4))
        step = b.mul(blocks, t.i64(2 * OUTPUTS))
        count = b.add(b.mul(full, t.i64(MOST_ROWS)), t.i64(self._rows))
        own = self.at(arguments.scratch, b.mul(thread[0], b.mul(count, width)))

        def copy(first: Any, rows: int) -> None:
            offset = b.mul(first, width)
            self._interleave(self.at(arguments.x, offset), self.at(own, offset), rows, pairs)

        self.for_each_tile(full, MOST_ROWS, self._rows, copy)

        def block(index: Any, _: list[Any]) -> list[Any]:
            weights = self.at(arguments.weights, b.mul(index, pairs), LINE)
            result = self.at(arguments.out, index, 2 * OUTPUTS)
            bias = self.at(arguments.bias, b.mul(index, arguments.bias_block_bytes))
            residual = self.at(arguments.residual, b.mul(index, arguments.residual_block_bytes))

            def call(first: Any, rows: int) -> None:
                operands = [
                    self.at(own, b.mul(first, width)),
                    weights,
                    self.at(result, b.mul(first, step)),
                    step,
                    bias,
                    self.at(residual, b.mul(first, arguments.residual_row_bytes)),
                    arguments.residual_row_bytes,
                    pairs,
                ]
                b.call(self._tiles[rows], operands)

            self.for_each_tile(full, MOST_ROWS, self._rows, call)
            return []

        loop(b, *self.share(blocks, thread), [], block)
        b.ret_void()

    def _interleave(self, x: Any, own: Any, rows: int, pairs: Any) -> None:
        """Store the activations interleaved: for each pair of inputs, those of all rows."""
        b, t = self.b, self.t
        starts = [self.at(x, b.mul(pairs, t.i64(4 * r))) for r in range(rows)]

        def pair(index: Any, _: list[Any]) -> list[Any]:
            place = self.at(own, index, 4 * rows)
            for r, start in enumerate(starts):
                two = self.load(self.at(start, index, 4), t.i32)
                b.store(two, self.at(place, r, 4), align=1)
            return []

        loop(b, t.i64(0), pairs, [], pair)
