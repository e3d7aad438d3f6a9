"""Products with bfloat16 weights, in which a row's bits do not depend on the other rows.

With a good kernel, a product with few rows is bound by reading the weights. oneDNN's kernel reads
them at full speed for five or six rows; on a processor without matrix instructions, one row takes a
tenth longer and eight rows a third. This one takes hardly longer for twelve rows than for one.

The weights are in the order in which the loop (`llvm.bfloat16`) reads them: for every 32 outputs
and 2 inputs a line holds the two weights of output 0, those of output 1, and so on.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.linear import pad_rows
from paceline.kernels.llvm import bfloat16 as loops
from paceline.kernels.llvm.bfloat16 import MOST_ROWS, OUTPUTS, ProductArguments
from paceline.kernels.operation import Operation, is_cpu_bfloat16, refuse_gradients

_CHUNK = 20 * MOST_ROWS
"""Rows that share one read of the weights; they are copied into the order of reading."""

_ZEROS = torch.zeros(OUTPUTS, dtype=torch.bfloat16, device="cpu")
"""Added in place of a missing bias or residual."""


class Bfloat16Linear:
    """See `linear.Linear`. A row has the same bits whatever the other rows are.

    Args:
        weight: bfloat16 `[out, in]`, `in` even.
        bias: bfloat16 `[out]`, or none.
    """

    least_rows = 1

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        refuse_gradients("the bfloat16 product", weight, bias)
        self._outputs, self._inputs = weight.shape
        for given, shape in ((weight, (self._outputs, self._inputs)), (bias, (self._outputs,))):
            if given is not None and not _fits(given, shape):
                raise ValueError(f"expected bfloat16 {list(shape)} on the CPU; got {_seen(given)}")
        self._filled = -self._outputs % OUTPUTS
        self._weight = pack(weight)
        self._bias = None if bias is None else functional.pad(bias, (0, self._filled))

    @property
    def num_bytes(self) -> int:
        """See `linear.Linear.num_bytes`."""
        return self._weight.nbytes

    def dense(self) -> Tensor:
        """The weights `[out, in]`, with the bits that were packed."""
        return unpack(self._weight)[: self._outputs]

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `linear.Linear`. Bias and residual are added before the result is rounded."""
        if x.dim() != 2 or not _fits(x, (len(x), self._inputs)):
            raise ValueError(f"expected bfloat16 [n, {self._inputs}] on the CPU; got {_seen(x)}")
        if residual is not None:
            if not _fits(residual, (len(x), self._outputs)):
                raise ValueError(
                    f"expected a bfloat16 residual [{len(x)}, {self._outputs}] on the CPU; got "
                    f"{_seen(residual)}"
                )
            residual = functional.pad(residual, (0, self._filled)) if self._filled else residual
        out = multiply(x, self._weight, self._bias, residual)
        return out[:, : self._outputs] if self._filled else out


def pack(weight: Tensor) -> Tensor:
    """Weights `[out, in]` in the loop's order, `[out / 32, in / 2, 32, 2]`, padded with zeros."""
    weight = pad_rows(weight, len(weight) + -len(weight) % OUTPUTS)
    pairs = weight.reshape(-1, OUTPUTS, weight.shape[1] // 2, 2)
    return pairs.permute(0, 2, 1, 3).contiguous()


def unpack(packed: Tensor) -> Tensor:
    """The weights that `pack` was given, including the rows that it added as padding."""
    blocks, pairs = packed.shape[:2]
    return packed.permute(0, 2, 1, 3).reshape(blocks * OUTPUTS, 2 * pairs)


def _fits(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    return tensor.shape == shape and is_cpu_bfloat16(tensor)


def _seen(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _reference(x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    out = x.float() @ unpack(packed).float().T
    for term in (bias, residual):
        if term is not None:
            out = out + term.float()
    return out.to(x.dtype)


def _takes(x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None) -> bool:
    blocks, pairs = packed.shape[:2]
    outputs = blocks * OUTPUTS
    return (
        is_cpu_bfloat16(x, packed)
        and x.shape[1:] == (2 * pairs,)
        and packed.shape[2:] == (OUTPUTS, 2)
        and packed.is_contiguous()
        and (bias is None or _fits(bias, (outputs,)))
        and (residual is None or _fits(residual, (len(x), outputs)))
        and loops.is_available()
    )


def _loop(x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = x.new_empty(len(x), packed.shape[0] * OUTPUTS)
    if len(x) <= _CHUNK:
        _multiply(x, packed, bias, residual, out)
        return out
    for first in range(0, len(x), _CHUNK):
        own = slice(first, first + _CHUNK)
        _multiply(x[own], packed, bias, None if residual is None else residual[own], out[own])
    return out


def _multiply(
    x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor
) -> None:
    rows = len(x)
    if not rows:
        return
    blocks, pairs = packed.shape[:2]
    threads = torch.get_num_threads()
    scratch = x.new_empty(threads * x.numel())
    full = (rows - 1) // MOST_ROWS
    block_bytes = 2 * OUTPUTS
    arguments = ProductArguments(
        x=x.data_ptr(),
        weights=packed.data_ptr(),
        out=out.data_ptr(),
        scratch=scratch.data_ptr(),
        bias=(_ZEROS if bias is None else bias).data_ptr(),
        residual=(_ZEROS if residual is None else residual).data_ptr(),
        blocks=blocks,
        pairs=pairs,
        full_tiles=full,
        bias_block_bytes=0 if bias is None else block_bytes,
        residual_block_bytes=0 if residual is None else block_bytes,
        residual_row_bytes=0 if residual is None else block_bytes * blocks,
    )
    loops.functions()[rows - full * MOST_ROWS](arguments, threads)


multiply = Operation(
    "bfloat16_linear(Tensor x, Tensor packed, Tensor? bias, Tensor? residual) -> Tensor",
    takes=_takes,
    loop=_loop,
    reference=_reference,
    shape=lambda x, packed, bias, residual: x.new_empty(len(x), packed.shape[0] * OUTPUTS),
)
"""x W^T, with bias and residual added before the result is rounded.

`packed` comes from `pack`; bias `[out]` and residual `[n, out]` have all its outputs.
"""
