"""The loop of `kernels.shared`: products with weights in torch's own order.

Each output is the dot product of two contiguous rows. While a tile of outputs is multiplied, the
weights of the next one are prefetched.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from paceline.kernels.llvm.machine_code import Function, compile_functions, compiles
from paceline.kernels.llvm.records import Integer, Pointer, record_bytes
from paceline.kernels.llvm.vector_code import LANES, Writer, loop

MOST_ROWS = 12
"""The most rows that a loop takes."""

STEP = 64
"""Bytes of a row that are multiplied at once: a register."""

FEWEST_OUTPUTS = 8
"""The most outputs of a tile; a weight must have as many."""

_SECOND_CACHE = 2
"""The cache (L2) to prefetch the next tile's weights into: long rows do not fit into L1."""

INSTRUCTIONS = {
    torch.bfloat16: ("avx512f", "avx512bw", "avx512vl", "avx512bf16"),
    torch.float32: ("avx512f", "avx512bw", "avx512vl"),
}
"""The instructions that the loops for a dtype need, by LLVM's names."""


class Weight(NamedTuple):
    """One of the weights: its `outputs` outputs are columns of the result from `first_column` on.

    From one output to the next the bias advances by `bias_step` bytes; with 0, the same zero is
    read again.
    """

    weight: Pointer
    bias: Pointer
    bias_step: Integer
    outputs: Integer
    first_column: Integer


class RowMajorArguments(NamedTuple):
    """Arguments of the loop: `count` weights, as consecutive `Weight` records at `weights`.

    A row of `x` has `row_bytes` bytes, `steps` times `STEP`. From one column to the next the
    residual advances by `residual_step` bytes; with 0, the same zero is read again.
    """

    x: Pointer
    out: Pointer
    residual: Pointer
    weights: Pointer
    count: Integer
    steps: Integer
    row_bytes: Integer
    out_row_bytes: Integer
    residual_step: Integer
    residual_row_bytes: Integer


@functools.cache
def is_available(dtype: torch.dtype) -> bool:
    """Whether this processor has the instructions, and the loops can be compiled and called."""
    return compiles(lambda: functions(dtype), *INSTRUCTIONS[dtype])


@functools.cache
def functions(dtype: torch.dtype) -> dict[int, Function[RowMajorArguments]]:
    """The loops, by the number of rows."""

    def write(module: Any, names: dict[int, str], team: list[int]) -> None:
        for rows, name in names.items():
            _Product(module, name, rows, team, wide=dtype is torch.float32).write()

    return compile_functions(RowMajorArguments, range(1, MOST_ROWS + 1), write)


def _outputs_at_once(rows: int) -> int:
    """The number for which the accumulators, the rows and a weight fit into 32 registers.

    >>> [_outputs_at_once(rows) for rows in (1, 3, 4, 6, 8, 12)]
    [8, 8, 6, 4, 3, 2]
    """
    return min(FEWEST_OUTPUTS, 24 // rows)


class _Product(Writer):
    """Writes the function that multiplies `rows` rows.

    The outputs of each weight are split among the threads. The last tile ends where the weight
    ends, so some outputs may be computed twice: the same numbers are written again.
    """

    def __init__(self, module: Any, name: str, rows: int, team: list[int], *, wide: bool) -> None:
        super().__init__(module, name, "pointer")
        self._rows, self._team, self._wide = rows, team, wide
        self._outputs = _outputs_at_once(rows)
        self._size = 4 if wide else 2

    def write(self) -> None:
        """The whole function."""
        b, t = self.b, self.t
        many, arguments = (
            t.i64(self._outputs),
            self.record(RowMajorArguments, self.function.args[0]),
        )
        thread, width = self.thread(self._team), arguments.row_bytes

        def weight(number: Any, _: list[Any]) -> list[Any]:
            own = self.record(Weight, self.at(arguments.weights, number, record_bytes(Weight)))
            tiles = b.sdiv(b.add(own.outputs, t.i64(self._outputs - 1)), many)
            last = b.sub(own.outputs, many)

            def tile(index: Any, _: list[Any]) -> list[Any]:
                wanted = b.mul(index, many)
                first = b.select(b.icmp_signed("<", wanted, last), wanted, last)
                weights = self.at(own.weight, b.mul(first, width))
                sums = self._sums(arguments.x, weights, arguments.steps, width)
                for output in range(self._outputs):
                    index = b.add(first, t.i64(output))
                    term = self._number(self.at(own.bias, b.mul(index, own.bias_step)))
                    column = b.add(own.first_column, index)
                    result = self.at(arguments.out, column, self._size)
                    added = self.at(arguments.residual, b.mul(column, arguments.residual_step))
                    for row in range(self._rows):
                        total = b.fadd(self._total(sums[row * self._outputs + output]), term)
                        total = b.fadd(total, self._number(added))
                        b.store(self._rounded(total), result, align=1)
                        result = self.at(result, arguments.out_row_bytes)
                        added = self.at(added, arguments.residual_row_bytes)
                return []

            loop(b, *self.share(tiles, thread), [], tile)
            return []

        loop(b, t.i64(0), arguments.count, [], weight)
        b.ret_void()

    def _sums(self, x: Any, weights: Any, steps: Any, width: Any) -> list[Any]:
        """The dot products by rows and outputs, each as 16 partial sums."""
        b, t, outputs = self.b, self.t, range(self._outputs)
        rows = [self.at(x, b.mul(width, t.i64(row))) for row in range(self._rows)]
        places = [self.at(weights, b.mul(width, t.i64(output))) for output in outputs]
        # Prefetch what the next tile reads at this step, while this one is multiplied.
        ahead = b.mul(width, t.i64(self._outputs))

        def step(index: Any, sums: list[Any]) -> list[Any]:
            offset = b.mul(index, t.i64(STEP))
            inputs = [self._vector(self.at(row, offset)) for row in rows]
            later = list(sums)
            for output, place in enumerate(places):
                here = self.at(place, offset)
                self.prefetch(self.at(here, ahead), _SECOND_CACHE)
                own = self._vector(here)
                for row, values in enumerate(inputs):
                    where = row * self._outputs + output
                    later[where] = self._add_products(sums[where], own, values)
            return later

        zeros = [t.floats([0.0] * LANES)] * (self._rows * self._outputs)
        return loop(b, t.i64(0), steps, zeros, step)

    def _vector(self, place: Any) -> Any:
        return self.load(place, self.t.floats if self._wide else self.t.ints)

    def _add_products(self, sums: Any, left: Any, right: Any) -> Any:
        if not self._wide:
            return self.dot(sums, left, right)
        t = self.t
        fma = self.declare("llvm.fma.v16f32", t.floats, t.floats, t.floats, t.floats)
        return self.b.call(fma, [left, right, sums])

    def _total(self, lanes: Any) -> Any:
        """The sum of 16 lanes, added pairwise in four steps."""
        t = self.t
        add = self.declare("llvm.vector.reduce.fadd.v16f32", t.f32, t.f32, t.floats)
        return self.b.call(add, [t.f32(0.0), lanes], fastmath=("reassoc",))

    def _number(self, place: Any) -> Any:
        """One number of the dtype as a float."""
        b, t = self.b, self.t
        if self._wide:
            return self.load(place, t.f32)
        return b.bitcast(b.shl(b.zext(self.load(place, t.i16), t.i32), t.i32(16)), t.f32)

    def _rounded(self, value: Any) -> Any:
        """A float rounded to the dtype: to nearest, ties to even."""
        b, t = self.b, self.t
        if self._wide:
            return value
        bits = b.bitcast(value, t.i32)
        odd = b.and_(b.lshr(bits, t.i32(16)), t.i32(1))
        up = b.add(bits, b.add(odd, t.i32(0x7FFF)))
        # Rounding could turn NaN into infinity: keep its upper bits and set one more.
        kept = b.or_(bits, t.i32(0x400000))
        bits = b.select(b.fcmp_unordered("uno", value, value), kept, up)
        return b.trunc(b.lshr(bits, t.i32(16)), t.i16)
