"""The loop of `kernels.vnni`, with the 8-bit dot products of AVX-512 VNNI."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from paceline.kernels.llvm.machine_code import Function, compile_functions, compiles
from paceline.kernels.llvm.records import Integer, Pointer
from paceline.kernels.llvm.vector_code import LANES, Writer, loop

GROUP = 32
"""The inputs of a group, which share a scale and a zero, and one scale of the activations."""

LEVELS = LANES * GROUP // 2
"""The bytes of the levels of 16 outputs and one group of inputs."""

RECORD = LEVELS + 2 * 2 * LANES
"""The bytes of these levels with their scales and zeros."""

MOST_ROWS = 6
"""The most rows that a loop takes; more would not fit into the registers."""

_AHEAD = 6400
"""How many bytes ahead to prefetch. Without it, six rows take a third longer; for one row the
processor's own prefetcher keeps up."""

FACTORS = 12
"""The bytes for the scale of a group of activations and two sums over it."""


class Int4Arguments(NamedTuple):
    """Arguments of the loop: `blocks` blocks of 16 outputs, `groups` groups of inputs.

    Each thread has `scratch_bytes` of the scratch memory.
    """

    x: Pointer
    weights: Pointer
    out: Pointer
    scratch: Pointer
    blocks: Integer
    groups: Integer
    scratch_bytes: Integer


@functools.cache
def is_available() -> bool:
    """Whether this processor has the instructions, and the loop can be compiled and called."""
    return compiles(functions, "avx512f", "avx512bw", "avx512vl", "avx512vnni")


@functools.cache
def functions() -> dict[int, Function[Int4Arguments]]:
    """The loops, by the number of rows."""
    return compile_functions(Int4Arguments, range(1, MOST_ROWS + 1), _write)


def _write(module: Any, names: dict[int, str], team: list[int]) -> None:
    for rows, name in names.items():
        _Writer(module, name, rows, team).write()


class _Writer(Writer):
    """Writes the function that multiplies `rows` rows.

    With activations x ~ a q (q in 8 bits, one a per group) an output is the sum over the groups of
    scale * a * sum((level - 8) * q) + zero * a * sum(q). Each thread rounds the activations itself,
    which takes far less time than a barrier, and then computes its outputs.
    """

    def __init__(self, module: Any, name: str, rows: int, team: list[int]) -> None:
        super().__init__(module, name, "pointer")
        self._rows, self._team = rows, team

    def write(self) -> None:
        """The whole function: arguments, activations, outputs."""
        b, t = self.b, self.t
        arguments = self.record(Int4Arguments, self.function.args[0])
        x, weights, out = arguments.x, arguments.weights, arguments.out
        blocks, groups = arguments.blocks, arguments.groups
        thread = self.thread(self._team)
        own = self.at(arguments.scratch, b.mul(thread[0], arguments.scratch_bytes))
        width = b.mul(groups, t.i64(GROUP))
        numbers = [self.at(own, width, r) for r in range(self._rows)]
        after = self.at(own, width, self._rows)
        factors = [self.at(after, groups, r * FACTORS) for r in range(self._rows)]
        for r in range(self._rows):
            self._round(self.at(x, width, 2 * r), numbers[r], factors[r], groups)

        def block(index: Any, _: list[Any]) -> list[Any]:
            records = self.at(weights, b.mul(index, groups), RECORD)
            sums = self._sums(records, numbers, factors, groups)
            for r, value in enumerate(sums):
                row = self.at(out, blocks, 2 * LANES * r)
                b.store(self.bfloat16(value), self.at(row, index, 2 * LANES), align=1)
            return []

        loop(b, *self.share(blocks, thread), [], block)
        b.ret_void()

    def _round(self, x: Any, numbers: Any, factors: Any, groups: Any) -> None:
        """Round one row of activations to 8 bits, and store the factors of each group."""
        b, t = self.b, self.t
        maximum = self.declare("llvm.maxnum.v16f32", t.floats, t.floats, t.floats)
        magnitude = self.declare("llvm.fabs.v16f32", t.floats, t.floats)
        largest = self.declare("llvm.vector.reduce.fmax.v16f32", t.f32, t.floats)
        nearest = self.declare("llvm.rint.v16f32", t.floats, t.floats)
        total = self.declare("llvm.vector.reduce.add.v16i32", t.i32, t.ints)

        def group(index: Any, _: list[Any]) -> list[Any]:
            halves = [self.floats(self.at(self.at(x, index, 2 * GROUP), h, 32)) for h in (0, 1)]
            size = b.call(largest, [b.call(maximum, [b.call(magnitude, [h]) for h in halves])])
            inverse = b.select(
                b.fcmp_ordered(">", size, t.f32(1e-30)), b.fdiv(t.f32(127.0), size), t.f32(0.0)
            )
            spread = self.broadcast(inverse, t.floats)
            rounded = [b.fptosi(b.call(nearest, [b.fmul(h, spread)]), t.ints) for h in halves]
            for h, half in enumerate(rounded):
                place = self.at(self.at(numbers, index, GROUP), h, LANES)
                b.store(b.trunc(half, self.ir.VectorType(t.i8, LANES)), place, align=1)
            together = b.call(total, [b.add(*rounded)])
            scale = b.fdiv(size, t.f32(127.0))
            for n, factor in enumerate(
                (
                    scale,
                    b.fmul(scale, b.sitofp(together, t.f32)),
                    b.mul(together, t.i32(-8)),
                )
            ):
                b.store(factor, self.at(self.at(factors, index, FACTORS), n, 4), align=4)
            return []

        loop(b, t.i64(0), groups, [], group)

    def _sums(self, records: Any, numbers: list[Any], factors: list[Any], groups: Any) -> list[Any]:
        """16 outputs of every row."""
        b, t = self.b, self.t
        dot = self.declare("llvm.x86.avx512.vpdpbusd.512", t.ints, t.ints, t.bytes, t.bytes)
        fma = self.declare("llvm.fma.v16f32", t.floats, t.floats, t.floats, t.floats)
        low = t.bytes([15] * 64)

        def group(index: Any, sums: list[Any]) -> list[Any]:
            record = self.at(records, index, RECORD)
            if self._rows > 1:
                for line in range(0, RECORD, 64):
                    self.prefetch(self.at(record, _AHEAD + line), cache=2)
            quads = []
            for part in range(4):
                pairs = self.load(self.at(record, part, 64), t.bytes)
                high = b.lshr(b.bitcast(pairs, t.ints), t.ints([4] * LANES))
                quads += [b.and_(pairs, low), b.and_(b.bitcast(high, t.bytes), low)]
            scale, zero = (self.floats(self.at(record, LEVELS + 2 * LANES * n)) for n in (0, 1))
            later = []
            for r, so_far in enumerate(sums):
                places = [self.at(self.at(factors[r], index, FACTORS), n, 4) for n in range(3)]
                own, together = (
                    self.broadcast(self.load(place, t.f32), t.floats) for place in places[:2]
                )
                products = self.broadcast(self.load(places[2], t.i32), t.ints)
                for q, quad in enumerate(quads):
                    four = self.load(self.at(self.at(numbers[r], index, GROUP), q, 4), t.i32)
                    four = b.bitcast(self.broadcast(four, t.ints), t.bytes)
                    products = b.call(dot, [products, quad, four])
                product = b.sitofp(products, t.floats)
                weighed = b.call(fma, [product, b.fmul(scale, own), so_far])
                later.append(b.call(fma, [zero, together, weighed]))
            return later

        return loop(b, t.i64(0), groups, [self.splat(0.0)] * self._rows, group)
