"""What the code generators of the loops share: vectors of 16, addresses, loops, threads.

LLVM's builder (llvmlite) takes single instructions; these are the common sequences of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from paceline.kernels.llvm.records import FIELD_BYTES, Kind, kinds

LANES = 16
"""The 32-bit lanes of an AVX-512 register."""


Record = TypeVar("Record", bound=tuple[Any, ...])


class Types(NamedTuple):
    """LLVM's types."""

    void: Any
    i8: Any
    i16: Any
    i32: Any
    i64: Any
    f32: Any
    pointer: Any
    bytes: Any
    shorts: Any
    ints: Any
    floats: Any

    @classmethod
    def make(cls) -> Types:
        """Import llvmlite and make them."""
        from llvmlite import ir

        i8, i16, i32, i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
        f32 = ir.FloatType()
        return cls(
            ir.VoidType(),
            i8,
            i16,
            i32,
            i64,
            f32,
            ir.PointerType(),
            bytes=ir.VectorType(i8, 4 * LANES),
            shorts=ir.VectorType(i16, LANES),
            ints=ir.VectorType(i32, LANES),
            floats=ir.VectorType(f32, LANES),
        )


def loop(
    builder: Any,
    start: Any,
    end: Any,
    carried: Sequence[Any],
    body: Callable[[Any, list[Any]], Sequence[Any]],
) -> list[Any]:
    """Write `for index in range(start, end): carried = body(index, carried)`; returns `carried`."""
    entry = builder.block
    head, inside, after = (builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(start.type)
    index.add_incoming(start, entry)
    values = [builder.phi(value.type) for value in carried]
    for value, first in zip(values, carried, strict=True):
        value.add_incoming(first, entry)
    builder.cbranch(builder.icmp_signed("<", index, end), inside, after)
    builder.position_at_end(inside)
    later = body(index, values)
    index.add_incoming(builder.add(index, start.type(1)), builder.block)
    for value, new in zip(values, later, strict=True):
        value.add_incoming(new, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return values


class Writer:
    """Writes one function that returns void.

    Args:
        module: the module that it goes into.
        name: the name of the function.
        arguments: names of the fields of `Types`.
    """

    def __init__(self, module: Any, name: str, *arguments: str) -> None:
        from llvmlite import ir

        self.module, self.ir, self.t = module, ir, Types.make()
        kinds = [getattr(self.t, argument) for argument in arguments]
        self.function = ir.Function(module, ir.FunctionType(self.t.void, kinds), name)
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))

    def for_each_tile(
        self, full: Any, most: int, rest: int, call: Callable[[Any, int], None]
    ) -> None:
        """Write `call(first, rows)` for each of `full` tiles of `most` rows, then for the rest."""
        b, t = self.b, self.t

        def one(index: Any, _: list[Any]) -> list[Any]:
            call(b.mul(index, t.i64(most)), most)
            return []

        loop(b, t.i64(0), full, [], one)
        call(b.mul(full, t.i64(most)), rest)

    def record(self, kind: type[Record], place: Any) -> Record:
        """Load the arguments of the function: a record of LLVM values, see `records`."""
        b, t = self.b, self.t
        values = []
        for number, field in enumerate(kinds(kind).values()):
            value = self.load(self.at(place, number, FIELD_BYTES), t.i64)
            if field is Kind.POINTER:
                value = b.inttoptr(value, t.pointer)
            elif field is Kind.FLOAT:
                value = b.bitcast(b.trunc(value, t.i32), t.f32)
            values.append(value)
        return kind(*values)

    def thread(self, team: Sequence[int]) -> tuple[Any, Any]:
        """The number of the thread that runs this, and the number of threads.

        Args:
            team: `machine_code.Team.queries`.
        """
        b, t = self.b, self.t
        query = self.ir.FunctionType(t.i32, []).as_pointer()
        number, count = (
            b.zext(b.call(b.inttoptr(t.i64(address), query), []), t.i64) for address in team
        )
        return number, count

    def share(self, count: Any, thread: tuple[Any, Any]) -> tuple[Any, Any]:
        """The start and the end of the thread's share of `count` tasks."""
        b, (number, threads) = self.b, thread
        ends = (number, b.add(number, self.t.i64(1)))
        first, last = (b.sdiv(b.mul(count, end), threads) for end in ends)
        return first, last

    def declare(self, name: str, result: Any, *arguments: Any) -> Any:
        """Declare an LLVM intrinsic."""
        known = self.module.globals.get(name)
        if known is not None:
            return known
        return self.ir.Function(self.module, self.ir.FunctionType(result, arguments), name)

    def at(self, base: Any, offset: Any, size: int = 1) -> Any:
        """The address `offset` times `size` bytes after `base`."""
        t = self.t
        if isinstance(offset, int):
            distance = t.i64(offset * size)
        else:
            distance = self.b.mul(offset, t.i64(size))
        return self.b.gep(base, [distance], source_etype=t.i8)

    def load(self, place: Any, kind: Any) -> Any:
        """Load a value, which need not be aligned."""
        return self.b.load(place, typ=kind, align=1)

    def prefetch(self, place: Any, cache: int) -> None:
        """Prefetch 64 bytes into the L1 cache (3) or the L2 cache (2)."""
        t = self.t
        ask = self.declare("llvm.prefetch.p0", t.void, t.pointer, t.i32, t.i32, t.i32)
        self.b.call(ask, [place, t.i32(0), t.i32(cache), t.i32(1)])

    def broadcast(self, value: Any, kind: Any) -> Any:
        """A vector with a computed value in each lane."""
        undefined, first = kind(self.ir.Undefined), self.t.i32(0)
        alone = self.b.insert_element(undefined, value, first)
        return self.b.shuffle_vector(alone, undefined, self.t.ints([0] * LANES))

    def floats(self, place: Any) -> Any:
        """Load 16 bfloat16 as floats."""
        return self.widened(self.load(place, self.t.shorts))

    def widened(self, shorts: Any) -> Any:
        """16 bfloat16 as floats."""
        b, t = self.b, self.t
        return b.bitcast(b.shl(b.zext(shorts, t.ints), t.ints([16] * LANES)), t.floats)

    def bfloat16(self, value: Any) -> Any:
        """16 floats rounded to bfloat16, to nearest, ties to even."""
        b, t = self.b, self.t
        bits, half = b.bitcast(value, t.ints), t.ints([16] * LANES)
        odd = b.and_(b.lshr(bits, half), t.ints([1] * LANES))
        up = b.add(odd, t.ints([0x7FFF] * LANES))
        return b.trunc(b.lshr(b.add(bits, up), half), t.shorts)

    def dot(self, sums: Any, left: Any, right: Any) -> Any:
        """16 floats plus the products of 16 pairs of bfloat16, each pair in an i32.

        In assembly, because llvmlite has no bfloat16. It needs AVX-512 BF16.
        """
        kind = self.ir.FunctionType(self.t.floats, [self.t.floats, self.t.ints, self.t.ints])
        arguments = [sums, left, right]
        return self.b.asm(kind, "vdpbf16ps $3, $2, $0", "=v,0,v,v", arguments, side_effect=False)

    def exponential(self, value: Any) -> Any:
        """The exponential of 16 floats, with a relative error below 1e-5 from e**-87 to 2**127.

        Results below that are 0, results above it infinity.

        With x / ln 2 = n + r, n whole and |r| at most a half, the exponent bits give 2**n and a
        Taylor series gives 2**r.
        """
        b, t = self.b, self.t
        minimum = self.declare("llvm.minnum.v16f32", t.floats, t.floats, t.floats)
        maximum = self.declare("llvm.maxnum.v16f32", t.floats, t.floats, t.floats)
        nearest = self.declare("llvm.rint.v16f32", t.floats, t.floats)
        fma = self.declare("llvm.fma.v16f32", t.floats, t.floats, t.floats, t.floats)
        clamped = b.call(maximum, [b.call(minimum, [value, self.splat(89.0)]), self.splat(-87.0)])
        power = b.fmul(clamped, self.splat(1 / math.log(2)))
        whole = b.call(nearest, [power])
        rest = b.fsub(power, whole)
        series = [math.log(2) ** i / math.factorial(i) for i in range(8)]
        total = self.splat(series[-1])
        for coefficient in reversed(series[:-1]):
            total = b.call(fma, [total, rest, self.splat(coefficient)])
        exponent = b.add(b.fptosi(whole, t.ints), t.ints([127] * LANES))
        result = b.fmul(total, b.bitcast(b.shl(exponent, t.ints([23] * LANES)), t.floats))
        return b.select(b.fcmp_ordered("<", value, self.splat(-87.0)), self.splat(0.0), result)

    def splat(self, number: float) -> Any:
        """A vector with a float32 constant in each lane."""
        return self.t.floats([number] * LANES)
