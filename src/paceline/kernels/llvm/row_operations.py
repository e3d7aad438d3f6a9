"""The loops of `kernels.row_operations`: norms, rotary positions and gates of bfloat16 rows."""

from __future__ import annotations

import functools
from typing import Any, Generic, NamedTuple, TypeVar

from paceline.kernels.llvm.machine_code import Function, compile_functions, compiles
from paceline.kernels.llvm.records import Float, Integer, Pointer
from paceline.kernels.llvm.vector_code import LANES, Writer, loop


class NormArguments(NamedTuple):
    """Arguments of the norm: `rows` rows of `vectors` vectors of 16 elements."""

    x: Pointer
    weight: Pointer
    out: Pointer
    rows: Integer
    vectors: Integer
    eps: Float


class RotationArguments(NamedTuple):
    """Arguments of the rotation: `heads` heads per row, each of twice `half_vectors` vectors.

    Rows of `x` start `row_bytes` apart.
    """

    x: Pointer
    cos: Pointer
    sin: Pointer
    out: Pointer
    rows: Integer
    heads: Integer
    half_vectors: Integer
    row_bytes: Integer


class GateArguments(NamedTuple):
    """Arguments of the gate: rows of `vectors` vectors of gates, then of values."""

    gate_up: Pointer
    out: Pointer
    rows: Integer
    vectors: Integer


@functools.cache
def is_available() -> bool:
    """Whether this processor has the instructions, and the loops can be compiled and called."""
    return compiles(lambda: (norm(), rotation(), gate()), "avx512f", "avx512bw", "avx512vl")


@functools.cache
def norm() -> Function[NormArguments]:
    """RMSNorm without an offset."""
    return _compile(NormArguments, _Norm)


@functools.cache
def rotation() -> Function[RotationArguments]:
    """Rotary positions."""
    return _compile(RotationArguments, _Rotation)


@functools.cache
def gate() -> Function[GateArguments]:
    """Units gated by SiLU."""
    return _compile(GateArguments, _Gate)


Arguments = TypeVar("Arguments", NormArguments, RotationArguments, GateArguments)


def _compile(record: type[Arguments], writer: type[_RowWriter[Arguments]]) -> Function[Arguments]:
    def write(module: Any, names: dict[None, str], team: list[int]) -> None:
        writer(module, names[None], record, team).write()

    return compile_functions(record, [None], write)[None]


class _RowWriter(Writer, Generic[Arguments]):
    """Writes a function that processes every row; each thread takes its share of them."""

    def __init__(self, module: Any, name: str, record: type[Arguments], team: list[int]) -> None:
        super().__init__(module, name, "pointer")
        self._record: type[Arguments] = record
        self._team = team

    def write(self) -> None:
        """The whole function."""
        arguments = self.record(self._record, self.function.args[0])

        def body(row: Any, _: list[Any]) -> list[Any]:
            self.row(row, arguments)
            return []

        loop(self.b, *self.share(arguments.rows, self.thread(self._team)), [], body)
        self.b.ret_void()

    def row(self, row: Any, arguments: Arguments) -> None:
        """Write the code for one row."""
        raise NotImplementedError


class _Norm(_RowWriter[NormArguments]):
    def row(self, row: Any, arguments: NormArguments) -> None:
        b, t = self.b, self.t
        vectors, weight = arguments.vectors, arguments.weight
        start = b.mul(row, vectors)
        x, out = (self.at(base, start, 2 * LANES) for base in (arguments.x, arguments.out))
        fma = self.declare("llvm.fma.v16f32", t.floats, t.floats, t.floats, t.floats)
        add = self.declare("llvm.vector.reduce.fadd.v16f32", t.f32, t.f32, t.floats)
        root = self.declare("llvm.sqrt.f32", t.f32, t.f32)

        def square(part: Any, sums: list[Any]) -> list[Any]:
            value = self.floats(self.at(x, part, 2 * LANES))
            return [b.call(fma, [value, value, sums[0]])]

        (sums,) = loop(b, t.i64(0), vectors, [t.floats([0.0] * LANES)], square)
        width = b.sitofp(b.mul(vectors, t.i64(LANES)), t.f32)
        mean = b.fdiv(b.call(add, [t.f32(0.0), sums]), width)
        scale = b.fdiv(t.f32(1.0), b.call(root, [b.fadd(mean, arguments.eps)]))
        scale = self.broadcast(scale, t.floats)

        def multiply(part: Any, _: list[Any]) -> list[Any]:
            place = self.at(out, part, 2 * LANES)
            value = b.fmul(self.floats(self.at(x, part, 2 * LANES)), scale)
            value = self.widened(self.bfloat16(value))
            value = b.fmul(value, self.floats(self.at(weight, part, 2 * LANES)))
            b.store(self.bfloat16(value), place, align=1)
            return []

        loop(b, t.i64(0), vectors, [], multiply)


class _Rotation(_RowWriter[RotationArguments]):
    def row(self, row: Any, arguments: RotationArguments) -> None:
        b, t = self.b, self.t
        half = b.mul(arguments.half_vectors, t.i64(2 * LANES))
        width = b.mul(half, t.i64(2))
        cos, sin = (self.at(base, b.mul(row, width)) for base in (arguments.cos, arguments.sin))
        heads = self.at(arguments.x, b.mul(row, arguments.row_bytes))

        def head(number: Any, _: list[Any]) -> list[Any]:
            x = self.at(heads, b.mul(number, width))
            result = self.at(arguments.out, b.mul(b.add(b.mul(number, arguments.rows), row), width))

            def part(index: Any, _: list[Any]) -> list[Any]:
                near = b.mul(index, t.i64(2 * LANES))
                offsets = near, b.add(near, half)
                values = [self.floats(self.at(x, offset)) for offset in offsets]
                for own, other, offset in zip(values, reversed(values), offsets, strict=True):
                    rotated = b.fadd(
                        b.fmul(own, self.floats(self.at(cos, offset))),
                        b.fmul(other, self.floats(self.at(sin, offset))),
                    )
                    b.store(self.bfloat16(rotated), self.at(result, offset), align=1)
                return []

            loop(b, t.i64(0), arguments.half_vectors, [], part)
            return []

        loop(b, t.i64(0), arguments.heads, [], head)


class _Gate(_RowWriter[GateArguments]):
    def row(self, row: Any, arguments: GateArguments) -> None:
        b, t = self.b, self.t
        vectors = arguments.vectors
        width = b.mul(vectors, t.i64(2 * LANES))
        gates = self.at(arguments.gate_up, b.mul(row, width), 2)
        ups, out = self.at(gates, width), self.at(arguments.out, b.mul(row, width))

        def part(index: Any, _: list[Any]) -> list[Any]:
            gate, up = (self.floats(self.at(base, index, 2 * LANES)) for base in (gates, ups))
            below = b.fadd(t.floats([1.0] * LANES), self.exponential(b.fneg(gate)))
            # Round before the multiplication, as the models do.
            opened = self.widened(self.bfloat16(b.fdiv(gate, below)))
            b.store(self.bfloat16(b.fmul(opened, up)), self.at(out, index, 2 * LANES), align=1)
            return []

        loop(b, t.i64(0), vectors, [], part)
