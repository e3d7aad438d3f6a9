"""What a decoder layer does to its rows between the products: norms, rotation, gates.

torch does each in several steps, every one with its own dispatch and, behind products that have
filled the caches with weights, with its own code to fetch again. In bfloat16 on a processor with
AVX-512 each is one compiled loop; elsewhere torch does them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from paceline.kernels.llvm.machine_code import Functions, compiles, float_bits
from paceline.kernels.llvm.vector_code import LANES, Writer, loop

_ALONE = 2**15
"""Numbers up to which one thread is as fast as all."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * (offset + weight), in float32 inside.

    (Zhang & Sennrich 1910.07467.) Without an offset the quotient is rounded to the dtype of `x`
    before it is multiplied, with one behind, as the models do.

    Args:
        x: `[..., width]`.
        weight: `[width]`.
        eps: added to the mean.
        offset: added to the weight.

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0)
    tensor([[0.8485, 1.1314]])
    """
    width = x.shape[-1]
    if offset or width % LANES or not _compiled(x, weight) or weight.shape != (width,):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (
            (wide * (offset + weight.float())).to(x.dtype) if offset else weight * wide.to(x.dtype)
        )
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    numbers = (x.numel() // width, width // LANES, float_bits(eps))
    _run("norm", x.numel(), (x, weight, out), numbers)
    return out


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: x cos + roll(x, width / 2) sin, for every head of every row.

    Args:
        heads: `[n, heads, width]`.
        cos, sin: `[n, 1, width]`; the sines of the first half with a minus.

    Returns:
        `[heads, n, width]`.
    """
    rows, count, width = heads.shape
    angles = (rows, 1, width)
    fit = cos.shape == sin.shape == angles and width % (2 * LANES) == 0
    if not (fit and _compiled(heads, cos, sin)):
        return torch.addcmul(heads * cos, heads.roll(width // 2, -1), sin).transpose(0, 1)
    if heads.stride()[1:] != (width, 1):
        heads = heads.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    out = heads.new_empty(count, rows, width)
    numbers = (rows, count, width // (2 * LANES), 2 * heads.stride(0))
    _run("rotate", heads.numel(), (heads, cos, sin, out), numbers)
    return out


def gated(gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(gate) * up: the gated units of Shazeer 2002.05202.

    Args:
        gate_up: `[n, 2 width]`, the gates before what they are for.
        activation: `torch.nn.functional.silu` is compiled, others are not.

    >>> gated(torch.tensor([[0.0, 1.0, 5.0, 2.0]]), silu)
    tensor([[0.0000, 1.4621]])
    """
    rows, width = len(gate_up), gate_up.shape[1] // 2
    if activation is not silu or width % LANES or not _compiled(gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate).mul_(up)
    gate_up = gate_up.contiguous()
    out = gate_up.new_empty(rows, width)
    _run("gate", gate_up.numel(), (gate_up, out), (rows, width // LANES))
    return out


def _run(name: str, size: int, tensors: tuple[Tensor, ...], numbers: tuple[int, ...]) -> None:
    threads = 1 if size <= _ALONE else torch.get_num_threads()
    _functions().run(name, (*(tensor.data_ptr() for tensor in tensors), *numbers), threads)


def _compiled(*tensors: Tensor) -> bool:
    fit = all(x.dtype is torch.bfloat16 and x.device.type == "cpu" for x in tensors)
    return fit and compiled_work()


@functools.cache
def compiled_work() -> bool:
    """Whether this processor has the instructions, and the loops can be compiled and called."""
    return compiles(_functions, "avx512f", "avx512bw", "avx512vl")


@functools.cache
def _functions() -> Functions[str]:
    return Functions(("norm", "rotate", "gate"), _write)


def _write(module: Any, names: dict[str, str], team: list[int]) -> None:
    for kind, writer in (("norm", _Norm), ("rotate", _Rotation), ("gate", _Gate)):
        writer(module, names[kind], team).write()


class _RowWriter(Writer):
    """Writes a function that does something to every row, each thread to its share of them."""

    tensors: int
    numbers: int

    def __init__(self, module: Any, name: str, team: list[int]) -> None:
        super().__init__(module, name, "pointer")
        self._team = team

    def write(self) -> None:
        """The whole function."""
        b, t = self.b, self.t
        fields = self.fields(self.function.args[0], self.tensors + self.numbers)
        places = [b.inttoptr(field, t.pointer) for field in fields[: self.tensors]]
        numbers = fields[self.tensors :]

        def body(row: Any, _: list[Any]) -> list[Any]:
            self.row(row, places, numbers)
            return []

        loop(b, *self.share(numbers[0], self.thread(self._team)), [], body)
        b.ret_void()

    def row(self, row: Any, places: list[Any], numbers: list[Any]) -> None:
        """What is done to one row; the first of the numbers says how many there are."""
        raise NotImplementedError


class _Norm(_RowWriter):
    tensors, numbers = 3, 3

    def row(self, row: Any, places: list[Any], numbers: list[Any]) -> None:
        b, t = self.b, self.t
        _, parts, bits = numbers
        x, weight, out = places
        x, out = (self.at(base, b.mul(row, parts), 2 * LANES) for base in (x, out))
        fma = self.declare("llvm.fma.v16f32", t.floats, t.floats, t.floats, t.floats)
        add = self.declare("llvm.vector.reduce.fadd.v16f32", t.f32, t.f32, t.floats)
        root = self.declare("llvm.sqrt.f32", t.f32, t.f32)

        def square(part: Any, sums: list[Any]) -> list[Any]:
            value = self.floats(self.at(x, part, 2 * LANES))
            return [b.call(fma, [value, value, sums[0]])]

        (sums,) = loop(b, t.i64(0), parts, [t.floats([0.0] * LANES)], square)
        width = b.sitofp(b.mul(parts, t.i64(LANES)), t.f32)
        mean = b.fdiv(b.call(add, [t.f32(0.0), sums]), width)
        eps = b.bitcast(b.trunc(bits, t.i32), t.f32)
        scale = b.fdiv(t.f32(1.0), b.call(root, [b.fadd(mean, eps)]))
        scale = self.everywhere(scale, t.floats)

        def multiply(part: Any, _: list[Any]) -> list[Any]:
            place = self.at(out, part, 2 * LANES)
            value = b.fmul(self.floats(self.at(x, part, 2 * LANES)), scale)
            value = self.widened(self.bfloat16(value))
            value = b.fmul(value, self.floats(self.at(weight, part, 2 * LANES)))
            b.store(self.bfloat16(value), place, align=1)
            return []

        loop(b, t.i64(0), parts, [], multiply)


class _Rotation(_RowWriter):
    tensors, numbers = 4, 4

    def row(self, row: Any, places: list[Any], numbers: list[Any]) -> None:
        b, t = self.b, self.t
        rows, count, parts, stride = numbers
        half = b.mul(parts, t.i64(2 * LANES))
        width = b.mul(half, t.i64(2))
        heads, cos, sin, out = places
        cos, sin = (self.at(base, b.mul(row, width)) for base in (cos, sin))
        heads = self.at(heads, b.mul(row, stride))

        def head(number: Any, _: list[Any]) -> list[Any]:
            x = self.at(heads, b.mul(number, width))
            result = self.at(out, b.mul(b.add(b.mul(number, rows), row), width))

            def part(index: Any, _: list[Any]) -> list[Any]:
                near = b.mul(index, t.i64(2 * LANES))
                behind = near, b.add(near, half)
                values = [self.floats(self.at(x, offset)) for offset in behind]
                for own, other, offset in zip(values, reversed(values), behind, strict=True):
                    turned = b.fadd(
                        b.fmul(own, self.floats(self.at(cos, offset))),
                        b.fmul(other, self.floats(self.at(sin, offset))),
                    )
                    b.store(self.bfloat16(turned), self.at(result, offset), align=1)
                return []

            loop(b, t.i64(0), parts, [], part)
            return []

        loop(b, t.i64(0), count, [], head)


class _Gate(_RowWriter):
    tensors, numbers = 2, 2

    def row(self, row: Any, places: list[Any], numbers: list[Any]) -> None:
        b, t = self.b, self.t
        parts = numbers[1]
        width = b.mul(parts, t.i64(2 * LANES))
        gates = self.at(places[0], b.mul(row, width), 2)
        ups, out = self.at(gates, width), self.at(places[1], b.mul(row, width))

        def part(index: Any, _: list[Any]) -> list[Any]:
            gate, up = (self.floats(self.at(base, index, 2 * LANES)) for base in (gates, ups))
            below = b.fadd(t.floats([1.0] * LANES), self.exponential(b.fneg(gate)))
            # Rounded before it is multiplied, as the models do.
            opened = self.widened(self.bfloat16(b.fdiv(gate, below)))
            b.store(self.bfloat16(b.fmul(opened, up)), self.at(out, index, 2 * LANES), align=1)
            return []

        loop(b, t.i64(0), parts, [], part)
