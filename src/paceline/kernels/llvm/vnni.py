"""Products with int4 weights by the 8-bit dot products of AVX-512 VNNI.

ATen's kernel turns each weight into a float before it multiplies, and waits for that and not for
the memory. Here the activations are rounded to 8 bits, group by group, and one instruction
multiplies 64 weights.

The weights lie as the loop reads them: a record for every 16 outputs and 32 inputs holds 256 bytes
of levels, then 16 scales and 16 zeros. In the first 64 bytes, the low halves of bytes 4 i to
4 i + 3 are the levels of output i at inputs 0 to 3, the high halves those at inputs 4 to 7.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from paceline.kernels.llvm.machine_code import Functions, compiles
from paceline.kernels.llvm.vector_code import LANES, Writer, loop

GROUP = 32
"""Inputs that share a scale and a zero, and the rounding of the activations."""

_LEVELS = LANES * GROUP // 2
_RECORD = _LEVELS + 2 * 2 * LANES
_MOST_ROWS = 6
"""Rows that a loop takes at once; more would not fit the registers."""
_AHEAD = 6400
"""Bytes that are asked for before they are read. Without it, six rows take a third longer; for one
the processor keeps up by itself."""
_FACTORS = 12
"""Bytes for the scale of a group of activations and two sums over it."""


class VnniProduct:
    """x W^T. A row's product has the same bits whatever rows stand beside it.

    Args:
        levels: 0 to 15, `[out, in]`, multiples of 16 and of 32.
        scales: bfloat16 `[out, in / 32, 2]`: a weight is (level - 8) * scale + zero.
    """

    def __init__(self, levels: Tensor, scales: Tensor) -> None:
        self._records = _records(levels, scales)
        self._functions = _functions()

    @property
    def num_bytes(self) -> int:
        """The memory that a product reads."""
        return self._records.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """From bfloat16 `[n, in]` to bfloat16 `[n, out]`."""
        blocks, groups, _ = self._records.shape
        fits = x.shape[1:] == (groups * GROUP,) and x.dtype is torch.bfloat16
        if not (fits and x.device.type == "cpu"):
            raise ValueError(
                f"expected bfloat16 [n, {groups * GROUP}] on the CPU; got {x.dtype} {x.shape} on "
                f"{x.device}"
            )
        x = x.contiguous()
        out = x.new_empty(len(x), blocks * LANES)
        threads = torch.get_num_threads()
        room = _MOST_ROWS * groups * (GROUP + _FACTORS)
        scratch = x.new_empty(threads * room, dtype=torch.uint8)
        for first in range(0, len(x), _MOST_ROWS):
            rows, result = x[first : first + _MOST_ROWS], out[first : first + _MOST_ROWS]
            places = (rows.data_ptr(), self._records.data_ptr(), result.data_ptr())
            arguments = (*places, scratch.data_ptr(), blocks, groups, room)
            self._functions.run(len(rows), arguments, threads)
        return out

    def dense(self) -> Tensor:
        """The weights `[out, in]` in bfloat16."""
        blocks, groups, _ = self._records.shape
        levels, scales = self._records.split([_LEVELS, _RECORD - _LEVELS], dim=-1)
        pairs = levels.reshape(blocks, groups, 4, LANES, 1, 4)
        quads = torch.cat([pairs & 15, pairs >> 4], dim=-2)  # [blocks, groups, 4, lanes, 2, 4]
        levels = quads.permute(0, 3, 1, 2, 4, 5).reshape(blocks, LANES, groups, GROUP)
        own = scales.contiguous().view(torch.bfloat16).view(blocks, groups, 2, LANES, 1)
        scale, zero = own.permute(2, 0, 3, 1, 4).unbind()
        dense = levels.bfloat16().sub_(8).mul_(scale).add_(zero)
        return dense.reshape(blocks * LANES, groups * GROUP)


@functools.cache
def vnni_works() -> bool:
    """Whether this processor has the instructions, and the loop can be compiled and called."""
    return compiles(_functions, "avx512f", "avx512bw", "avx512vl", "avx512vnni")


def _records(levels: Tensor, scales: Tensor) -> Tensor:
    """Levels and scales as the loop reads them, uint8 `[out / 16, in / 32, 320]`."""
    outputs, inputs = levels.shape
    blocks, groups = outputs // LANES, inputs // GROUP
    quads = levels.to(torch.uint8).view(blocks, LANES, groups, 4, 2, 4)
    pairs = quads[..., 0, :] + 16 * quads[..., 1, :]  # [blocks, lanes, groups, 4, 4]
    pairs = pairs.permute(0, 2, 3, 1, 4).reshape(blocks, groups, _LEVELS)
    own = scales.view(blocks, LANES, groups, 2).permute(0, 2, 3, 1).contiguous()
    own = own.view(blocks, groups, 2 * LANES).view(torch.uint8)
    return torch.cat([pairs, own], dim=-1).contiguous()


@functools.cache
def _functions() -> Functions[int]:
    return Functions(range(1, _MOST_ROWS + 1), _write)


def _write(module: Any, names: dict[int, str], team: list[int]) -> None:
    for rows, name in names.items():
        _Writer(module, name, rows, team).write()


class _Writer(Writer):
    """Writes the function that multiplies so many rows.

    With activations x ~ a q (q in 8 bits, a for each group) an output is the sum over the groups of
    scale * a * sum((level - 8) * q) + zero * a * sum(q). Each thread rounds the activations for
    itself, which takes far less time than to wait for one another, and then does its outputs.
    """

    def __init__(self, module: Any, name: str, rows: int, team: list[int]) -> None:
        super().__init__(module, name, "pointer")
        self._rows, self._team = rows, team

    def write(self) -> None:
        """The whole function: arguments, activations, outputs."""
        b, t = self.b, self.t
        fields = self.fields(self.function.args[0], 7)
        x, weights, out, scratch = (b.inttoptr(field, t.pointer) for field in fields[:4])
        blocks, groups, room = fields[4:]
        thread = self.thread(self._team)
        own = self.at(scratch, b.mul(thread[0], room))
        width = b.mul(groups, t.i64(GROUP))
        numbers = [self.at(own, width, r) for r in range(self._rows)]
        behind = self.at(own, width, self._rows)
        factors = [self.at(behind, groups, r * _FACTORS) for r in range(self._rows)]
        for r in range(self._rows):
            self._round(self.at(x, width, 2 * r), numbers[r], factors[r], groups)

        def block(index: Any, _: list[Any]) -> list[Any]:
            records = self.at(weights, b.mul(index, groups), _RECORD)
            sums = self._sums(records, numbers, factors, groups)
            for r, value in enumerate(sums):
                row = self.at(out, blocks, 2 * LANES * r)
                b.store(self.bfloat16(value), self.at(row, index, 2 * LANES), align=1)
            return []

        loop(b, *self.share(blocks, thread), [], block)
        b.ret_void()

    def _round(self, x: Any, numbers: Any, factors: Any, groups: Any) -> None:
        """One row of activations to 8 bits, and what belongs to each group."""
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
            spread = self.everywhere(inverse, t.floats)
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
                b.store(factor, self.at(self.at(factors, index, _FACTORS), n, 4), align=4)
            return []

        loop(b, t.i64(0), groups, [], group)

    def _sums(self, records: Any, numbers: list[Any], factors: list[Any], groups: Any) -> list[Any]:
        """16 outputs of every row."""
        b, t = self.b, self.t
        dot = self.declare("llvm.x86.avx512.vpdpbusd.512", t.ints, t.ints, t.bytes, t.bytes)
        fma = self.declare("llvm.fma.v16f32", t.floats, t.floats, t.floats, t.floats)
        low = t.bytes([15] * 64)

        def group(index: Any, sums: list[Any]) -> list[Any]:
            record = self.at(records, index, _RECORD)
            if self._rows > 1:
                for line in range(0, _RECORD, 64):
                    self.prefetch(self.at(record, _AHEAD + line), cache=2)
            quads = []
            for part in range(4):
                pairs = self.load(self.at(record, part, 64), t.bytes)
                high = b.lshr(b.bitcast(pairs, t.ints), t.ints([4] * LANES))
                quads += [b.and_(pairs, low), b.and_(b.bitcast(high, t.bytes), low)]
            scale, zero = (self.floats(self.at(record, _LEVELS + 2 * LANES * n)) for n in (0, 1))
            later = []
            for r, so_far in enumerate(sums):
                places = [self.at(self.at(factors[r], index, _FACTORS), n, 4) for n in range(3)]
                own, together = (
                    self.everywhere(self.load(place, t.f32), t.floats) for place in places[:2]
                )
                products = self.everywhere(self.load(places[2], t.i32), t.ints)
                for q, quad in enumerate(quads):
                    four = self.load(self.at(self.at(numbers[r], index, GROUP), q, 4), t.i32)
                    four = b.bitcast(self.everywhere(four, t.ints), t.bytes)
                    products = b.call(dot, [products, quad, four])
                product = b.sitofp(products, t.floats)
                weighed = b.call(fma, [product, b.fmul(scale, own), so_far])
                later.append(b.call(fma, [zero, together, weighed]))
            return later

        nothing = t.floats([0.0] * LANES)
        return loop(b, t.i64(0), groups, [nothing] * self._rows, group)
