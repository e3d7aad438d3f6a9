"""Products with weights that lie as torch has them: somebody else's, which nobody may reorder.

A product with few rows is bound by reading the weights. ATen's reads a plain weight at little more
than half of the memory's speed; a loop that asks for the next rows of the weight while it
multiplies the present ones reads it as fast as a packed one. So a model that its owner holds is
decoded at full speed, takes no second place in memory, and stays as it is.

Each output is a dot product of two rows that lie in one piece. Several weights with the same inputs
are multiplied by one call, as those of query, key and value.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.llvm.machine_code import Functions, compiles
from paceline.kernels.llvm.vector_code import LANES, Writer, loop

MOST_ROWS = 12
"""Rows that the loops take; more are bound by arithmetic, and torch multiplies them."""

_STEP = 64
"""Bytes of a row that are multiplied at once: a register."""

_FEWEST_OUTPUTS = 8
"""The most outputs that a loop fills at once; a weight must have as many."""

_SECOND_CACHE = 2
"""Where the rows of the next outputs are fetched to: with long rows the first has no room."""

_FIELDS = 9
"""The numbers before the table of weights, see `_Product`."""

_WEIGHT_FIELDS = 5
"""The numbers of one weight in it."""

_ZERO = {
    dtype: torch.zeros(1, dtype=dtype, device="cpu") for dtype in (torch.bfloat16, torch.float32)
}
"""What is added where there is no bias or no residual, again and again."""

_INSTRUCTIONS = {
    torch.bfloat16: ("avx512f", "avx512bw", "avx512vl", "avx512bf16"),
    torch.float32: ("avx512f", "avx512bw", "avx512vl"),
}

_ZERO = {dtype: torch.zeros(1, dtype=dtype, device="cpu") for dtype in _INSTRUCTIONS}
"""What is added where there is no bias or no residual, again and again."""


class SharedLinear:
    """A `linear.Linear` over weights that it shares with their owner; it keeps nothing else.

    Changes of their numbers are seen, and of where they lie. A row has the same bits in any company
    of up to `MOST_ROWS`. What the loops do not take (other dtypes and devices, more rows, tensors
    that want gradients) torch multiplies.

    Args:
        weights: `[out_i, in]` each; the outputs stand one after the other.
        biases: `[out_i]` each, or None.
    """

    least_rows = 1

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
        self.weights, self.biases = tuple(weights), tuple(biases)
        self._given = [tensor for tensor in (*weights, *biases) if tensor is not None]
        self._places: list[int] = []
        self._table: _Table | None = None

    @property
    def num_bytes(self) -> int:
        """See `linear.Linear.num_bytes`."""
        return sum(weight.nbytes for weight in self.weights)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `linear.Linear`. Bias and residual are added before the result is rounded."""
        if (table := self.table(x, residual)) is not None:
            return multiply(x, table, residual)
        pairs = zip(self.weights, self.biases, strict=True)
        parts = [functional.linear(x, weight, bias) for weight, bias in pairs]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return out if residual is None else out.add_(residual)

    def table(self, x: Tensor, residual: Tensor | None = None) -> _Table | None:
        """What the loops need to know of the weights, None where torch has to multiply."""
        places = [tensor.data_ptr() for tensor in self._given]
        if places != self._places:
            self._places, self._table = places, _table_of(self.weights, self.biases)
        table = self._table
        if (
            table is None
            or not 0 < len(x) <= MOST_ROWS
            or not _fits(x, table, table.inputs)
            or not (residual is None or _fits(residual, table, table.outputs))
            or (torch.is_grad_enabled() and any(one.requires_grad for one in (x, *self._given)))
        ):
            return None
        return table


class _Table(NamedTuple):
    """Weights as the loops take them.

    Args:
        dtype: theirs.
        inputs, outputs: of all together.
        numbers: see `_Product`, whose table this is.
    """

    dtype: torch.dtype
    inputs: int
    outputs: int
    numbers: tuple[int, ...]


def _fits(rows: Tensor, table: _Table, width: int) -> bool:
    """Whether the loops may read these rows: they look at nothing but the address."""
    return rows.dtype is table.dtype and rows.dim() == 2 and rows.shape[1] == width and rows.is_cpu


def _table_of(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> _Table | None:
    dtype, inputs = weights[0].dtype, weights[0].shape[-1]
    if dtype not in _INSTRUCTIONS or (inputs * dtype.itemsize) % _STEP:
        return None
    numbers, column = [len(weights)], 0
    for weight, bias in zip(weights, biases, strict=True):
        count = len(weight)
        shapes: list[tuple[Tensor, tuple[int, ...]]] = [(weight, (count, inputs))]
        shapes += [] if bias is None else [(bias, (count,))]
        if count < _FEWEST_OUTPUTS or not all(
            _lies_plain(one, shape, dtype) for one, shape in shapes
        ):
            return None
        term, step = (_ZERO[dtype], 0) if bias is None else (bias, dtype.itemsize)
        numbers += [weight.data_ptr(), term.data_ptr(), step, count, column]
        column += count
    return _Table(dtype, inputs, column, tuple(numbers)) if row_major_works(dtype) else None


def _lies_plain(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return (
        tensor.dtype is dtype
        and tensor.shape == shape
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
    )


def multiply(x: Tensor, table: _Table, residual: Tensor | None = None) -> Tensor:
    """The products with all weights, biases and residual added, rounded once: `[n, outputs]`.

    Args:
        x: `[n, inputs]`, with 1 to `MOST_ROWS` rows.
        table: of the weights.
        residual: `[n, outputs]`.
    """
    x, size = x.contiguous(), table.dtype.itemsize
    added, step = (_ZERO[table.dtype], 0) if residual is None else (residual.contiguous(), size)
    out, width = x.new_empty(len(x), table.outputs), table.inputs * size
    strides = (width // _STEP, width, table.outputs * size, step, table.outputs * step)
    places = (tensor.data_ptr() for tensor in (x, out, added))
    arguments = (*places, *strides, *table.numbers)
    _functions(table.dtype).run(len(x), arguments, torch.get_num_threads())
    return out


@functools.cache
def row_major_works(dtype: torch.dtype) -> bool:
    """Whether this processor has the instructions, and the loops can be compiled and called."""
    return compiles(lambda: _functions(dtype), *_INSTRUCTIONS[dtype])


@functools.cache
def _functions(dtype: torch.dtype) -> Functions[int]:
    def write(module: Any, names: dict[int, str], team: list[int]) -> None:
        for rows, name in names.items():
            _Product(module, name, rows, team, wide=dtype is torch.float32).write()

    return Functions(range(1, MOST_ROWS + 1), write)


def _outputs_at_once(rows: int) -> int:
    """So many that the sums, the rows and a weight fit into 32 registers.

    >>> [_outputs_at_once(rows) for rows in (1, 3, 4, 6, 8, 12)]
    [8, 8, 6, 4, 3, 2]
    """
    return min(_FEWEST_OUTPUTS, 24 // rows)


class _Product(Writer):
    """Writes the function that multiplies this many rows.

    Its argument is the address of these numbers: the addresses of the rows, of the results and of
    the residual; the steps of a row; the bytes of a row, and of one of the results; the bytes from
    one number of the residual to the next, and from row to row (0: the same again); how many
    weights there are. Then for each weight its address; that of its bias, and the bytes from one
    number of it to the next; its outputs; which column of the results they begin at.

    Threads share the outputs of each weight. The last ones may be computed twice, since the last
    tile ends where the weight ends: the same numbers are written again.
    """

    def __init__(self, module: Any, name: str, rows: int, team: list[int], *, wide: bool) -> None:
        super().__init__(module, name, "pointer")
        self._rows, self._team, self._wide = rows, team, wide
        self._outputs = _outputs_at_once(rows)
        self._size = 4 if wide else 2

    def write(self) -> None:
        """The whole function."""
        b, t = self.b, self.t
        start, many = self.function.args[0], t.i64(self._outputs)
        fields = self.fields(start, _FIELDS)
        x, out, residual = (b.inttoptr(place, t.pointer) for place in fields[:3])
        steps, width, stride, residual_step, residual_stride, count = fields[3:]
        thread, table = self.thread(self._team), self.at(start, 8 * _FIELDS)

        def weight(number: Any, _: list[Any]) -> list[Any]:
            own = self.fields(self.at(table, number, 8 * _WEIGHT_FIELDS), _WEIGHT_FIELDS)
            place, bias = (b.inttoptr(address, t.pointer) for address in own[:2])
            bias_step, outputs, column = own[2:]
            tiles = b.sdiv(b.add(outputs, t.i64(self._outputs - 1)), many)
            last = b.sub(outputs, many)

            def tile(index: Any, _: list[Any]) -> list[Any]:
                wanted = b.mul(index, many)
                first = b.select(b.icmp_signed("<", wanted, last), wanted, last)
                sums = self._sums(x, self.at(place, b.mul(first, width)), steps, width)
                for output in range(self._outputs):
                    behind = b.add(first, t.i64(output))
                    term = self._number(self.at(bias, b.mul(behind, bias_step)))
                    behind = b.add(column, behind)
                    result = self.at(out, behind, self._size)
                    added = self.at(residual, b.mul(behind, residual_step))
                    for row in range(self._rows):
                        total = b.fadd(self._total(sums[row * self._outputs + output]), term)
                        total = b.fadd(total, self._number(added))
                        b.store(self._rounded(total), result, align=1)
                        result, added = self.at(result, stride), self.at(added, residual_stride)
                return []

            loop(b, *self.share(tiles, thread), [], tile)
            return []

        loop(b, t.i64(0), count, [], weight)
        b.ret_void()

    def _sums(self, x: Any, weights: Any, steps: Any, width: Any) -> list[Any]:
        """The dot products, by rows and outputs, each still spread over 16 lanes."""
        b, t, outputs = self.b, self.t, range(self._outputs)
        rows = [self.at(x, b.mul(width, t.i64(row))) for row in range(self._rows)]
        places = [self.at(weights, b.mul(width, t.i64(output))) for output in outputs]
        # What the next tile reads at this step, while this one is multiplied.
        ahead = b.mul(width, t.i64(self._outputs))

        def step(index: Any, sums: list[Any]) -> list[Any]:
            behind = b.mul(index, t.i64(_STEP))
            inputs = [self._vector(self.at(row, behind)) for row in rows]
            later = list(sums)
            for output, place in enumerate(places):
                here = self.at(place, behind)
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
        """The sum of 16 lanes, in pairs, so that it takes four steps."""
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
        """A float in the dtype: to nearest, ties to even."""
        b, t = self.b, self.t
        if self._wide:
            return value
        bits = b.bitcast(value, t.i32)
        odd = b.and_(b.lshr(bits, t.i32(16)), t.i32(1))
        up = b.add(bits, b.add(odd, t.i32(0x7FFF)))
        # NaN would be rounded to infinity: it keeps its upper bits, and one more.
        kept = b.or_(bits, t.i32(0x400000))
        bits = b.select(b.fcmp_unordered("uno", value, value), kept, up)
        return b.trunc(b.lshr(bits, t.i32(16)), t.i16)
