"""Products with weights in torch's own order, which belong to the caller's model.

A product with few rows is bound by reading the weights. ATen's reads a plain weight at little more
than half the memory bandwidth; a loop that prefetches the next rows of the weight while it
multiplies the present ones (`llvm.row_major`) reads it as fast as a packed one. So a model that the
caller holds is decoded at full speed without being copied or changed.

Several weights with the same inputs, such as query, key and value, are multiplied in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.llvm import row_major as loops
from paceline.kernels.llvm.records import layout
from paceline.kernels.llvm.row_major import MOST_ROWS, RowMajorArguments, Weight
from paceline.kernels.operation import is_ordinary, wants_gradients

_ZERO = {dtype: torch.zeros(1, dtype=dtype, device="cpu") for dtype in loops.INSTRUCTIONS}
"""Added in place of a missing bias or residual, for every column."""


class SharedLinear:
    """A `linear.Linear` over weights that it shares with their owner; it keeps nothing else.

    Changes of their values and of their storage are seen. In a product of up to `MOST_ROWS` rows, a
    row has the same bits whatever the other rows are. Torch multiplies what the loops do not take:
    other dtypes and devices, more rows, tensors that want gradients, fake tensors, and graphs that
    are being compiled.

    Args:
        weights: `[out_i, in]` each; their outputs are concatenated.
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
        """The weights in the form that the loops take; None if torch has to multiply."""
        if not is_ordinary(x, residual, *self._given):
            return None
        places = [tensor.data_ptr() for tensor in self._given]
        if places != self._places:
            self._places, self._table = places, _table_of(self.weights, self.biases)
        table = self._table
        if (
            table is None
            or not 0 < len(x) <= MOST_ROWS
            or not _fits(x, table, table.inputs)
            or not (residual is None or _fits(residual, table, table.outputs))
            or wants_gradients(x, residual, *self._given)
        ):
            return None
        return table


class _Table(NamedTuple):
    """Weights in the form that the loops take.

    Args:
        dtype: of the weights.
        inputs, outputs: the numbers of inputs and, all together, of outputs.
        num_weights: the number of weights.
        weights: a packed `loops.Weight` for each.
    """

    dtype: torch.dtype
    inputs: int
    outputs: int
    num_weights: int
    weights: Tensor


def _fits(rows: Tensor, table: _Table, width: int) -> bool:
    """Whether the loops can read these rows. They get only the address, so it checks the layout."""
    return rows.dtype is table.dtype and rows.dim() == 2 and rows.shape[1] == width and rows.is_cpu


def _table_of(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> _Table | None:
    dtype, inputs = weights[0].dtype, weights[0].shape[-1]
    if dtype not in loops.INSTRUCTIONS or (inputs * dtype.itemsize) % loops.STEP:
        return None
    packed, column, pack = b"", 0, layout(Weight).pack
    for weight, bias in zip(weights, biases, strict=True):
        count = len(weight)
        shapes: list[tuple[Tensor, tuple[int, ...]]] = [(weight, (count, inputs))]
        shapes += [] if bias is None else [(bias, (count,))]
        if count < loops.FEWEST_OUTPUTS or not all(
            _lies_plain(one, shape, dtype) for one, shape in shapes
        ):
            return None
        term, step = (_ZERO[dtype], 0) if bias is None else (bias, dtype.itemsize)
        own = Weight(
            weight=weight.data_ptr(),
            bias=term.data_ptr(),
            bias_step=step,
            outputs=count,
            first_column=column,
        )
        packed += pack(*own)
        column += count
    if not loops.is_available(dtype):
        return None
    return _Table(
        dtype, inputs, column, len(weights), torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    )


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
    out, width = x.new_empty(x.shape[0], table.outputs), table.inputs * size
    arguments = RowMajorArguments(
        x=x.data_ptr(),
        out=out.data_ptr(),
        residual=added.data_ptr(),
        weights=table.weights.data_ptr(),
        count=table.num_weights,
        steps=width // loops.STEP,
        row_bytes=width,
        out_row_bytes=table.outputs * size,
        residual_step=step,
        residual_row_bytes=table.outputs * step,
    )
    loops.functions(table.dtype)[x.shape[0]](arguments, torch.get_num_threads())
    return out
