"""Products with bfloat16 weights by the dot products of AVX-512 BF16.

A product with few rows is bound by reading the weights, if the kernel lets it be. oneDNN's reads
them at full speed for five or six rows; for one it takes a tenth longer and for eight a third.
This one takes hardly longer for twelve rows than for one, and a row has the same bits in any
company, which oneDNN's kernels do not promise.

The weights lie as the loop reads them: a record for every 32 outputs and 2 inputs holds the two
weights of output 0, those of output 1, and so on.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.linear import pad_rows
from paceline.kernels.llvm.machine_code import Functions, compiles, has_instructions
from paceline.kernels.llvm.vector_code import LANES, Writer, loop

_HALVES = 2
"""Registers of outputs that a loop fills at once."""

_OUTPUTS = _HALVES * LANES
_RECORD = 4 * _OUTPUTS
_MOST_ROWS = 12
"""Rows that a loop takes at once: with 2 registers of sums each they leave room for the rest."""

_CHUNK = 20 * _MOST_ROWS
"""Rows that read the weights together: they are copied into the order in which they are read."""

_NEAR, _FAR = (3072, 3), (8192, 2)
"""Bytes that are asked for before they are read, and the cache they go to (3: the first, 2: the
second). With few rows the processor keeps up by itself; with more, six and eight rows take 15 %
longer without, and the second cache has more room for what is under way."""

_MANY_ROWS = 6
"""From so many rows on it is far."""

_ZEROS = torch.zeros(_OUTPUTS, dtype=torch.bfloat16, device="cpu")
"""What is added where there is no bias or no residual."""


class Bfloat16Linear:
    """See `linear.Linear`. A row has the same bits whatever rows stand beside it.

    Args:
        weight: bfloat16 `[out, in]`, `in` even.
        bias: bfloat16 `[out]`, or none.
    """

    least_rows = 1

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._outputs, self._inputs = weight.shape
        for given, shape in ((weight, (self._outputs, self._inputs)), (bias, (self._outputs,))):
            if given is not None and not _fits(given, shape):
                raise ValueError(f"expected bfloat16 {list(shape)} on the CPU; got {_told(given)}")
        self._filled = -self._outputs % _OUTPUTS
        weight = pad_rows(weight, self._outputs + self._filled)
        pairs = weight.reshape(-1, _OUTPUTS, self._inputs // 2, 2)
        self._records = pairs.permute(0, 2, 1, 3).contiguous()
        self._bias = None if bias is None else functional.pad(bias, (0, self._filled))
        self._functions = _functions()

    @property
    def num_bytes(self) -> int:
        """See `linear.Linear.num_bytes`."""
        return self._records.nbytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `linear.Linear`. Bias and residual are added before the result is rounded."""
        if x.dim() != 2 or not _fits(x, (len(x), self._inputs)):
            raise ValueError(f"expected bfloat16 [n, {self._inputs}] on the CPU; got {_told(x)}")
        if residual is not None:
            if not _fits(residual, (len(x), self._outputs)):
                raise ValueError(
                    f"expected a bfloat16 residual [{len(x)}, {self._outputs}] on the CPU; got "
                    f"{_told(residual)}"
                )
            residual = functional.pad(residual, (0, self._filled)) if self._filled else residual
            residual = residual.contiguous()
        x = x.contiguous()
        out = x.new_empty(len(x), self._outputs + self._filled)
        for first in range(0, len(x), _CHUNK):
            own = slice(first, first + _CHUNK)
            self._multiply(x[own], None if residual is None else residual[own], out[own])
        return out[:, : self._outputs] if self._filled else out

    def _multiply(self, x: Tensor, residual: Tensor | None, out: Tensor) -> None:
        blocks, pairs = self._records.shape[:2]
        threads = torch.get_num_threads()
        scratch = x.new_empty(threads * x.numel())
        bias = _ZEROS if self._bias is None else self._bias
        added = _ZEROS if residual is None else residual
        full = (len(x) - 1) // _MOST_ROWS
        tensors = (x, self._records, out, scratch, bias, added)
        steps = (_step(self._bias), _step(residual), 0 if residual is None else out.stride(0) * 2)
        places = (tensor.data_ptr() for tensor in tensors)
        arguments = (*places, blocks, pairs, full, *steps)
        self._functions.run(len(x) - full * _MOST_ROWS, arguments, threads)


def _fits(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether the loops may read it: they look at nothing but its address."""
    return tensor.shape == shape and tensor.dtype is torch.bfloat16 and tensor.device.type == "cpu"


def _told(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _step(added: Tensor | None) -> int:
    """Bytes from one block of outputs to the next: zeros are read again and again."""
    return 0 if added is None else 2 * _OUTPUTS


@functools.cache
def bfloat16_works() -> bool:
    """Whether this processor has the instructions, and the loops can be compiled and called.

    Not on one with AMX, for which oneDNN has kernels that no loop of dot products keeps up with.
    """
    names = ("avx512f", "avx512bw", "avx512vl", "avx512bf16")
    return compiles(_functions, *names) and not has_instructions("amx-bf16")


@functools.cache
def _functions() -> Functions[int]:
    return Functions(range(1, _MOST_ROWS + 1), _write)


def _write(module: Any, names: dict[int, str], team: list[int]) -> None:
    tiles = {rows: _Tile(module, rows).write() for rows in names}
    for rows, name in names.items():
        _Product(module, name, rows, team, tiles).write()


class _Tile(Writer):
    """Writes the function that computes 32 outputs of so many rows.

    It takes the activations in the order in which it reads them, for every pair of inputs those of
    all rows; the records; where the results go and the bytes from one row of them to the next;
    what is added: a bias, and a residual with its own step; and how many pairs there are.
    """

    def __init__(self, module: Any, rows: int) -> None:
        kinds = ("pointer", "pointer", "pointer", "i64", "pointer", "pointer", "i64", "i64")
        super().__init__(module, f"tile_{rows}", *kinds)
        self.function.linkage = "internal"
        self._rows = rows

    def write(self) -> Any:
        """The whole function."""
        b, t = self.b, self.t
        x, records, out, step, bias, residual, residual_step, pairs = self.function.args
        ahead, cache = _NEAR if self._rows < _MANY_ROWS else _FAR

        def pair(index: Any, sums: list[Any]) -> list[Any]:
            record = self.at(records, index, _RECORD)
            halves = [self.at(record, half, 4 * LANES) for half in range(_HALVES)]
            for half in halves:
                self.prefetch(self.at(half, ahead), cache)
            weights = [self.load(half, t.ints) for half in halves]
            own = self.at(x, index, 4 * self._rows)
            later = []
            for r in range(self._rows):
                two = self.everywhere(self.load(self.at(own, r, 4), t.i32), t.ints)
                for half, weight in enumerate(weights):
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
                behind = 2 * LANES * half
                value = b.fadd(sums[_HALVES * r + half], self.floats(self.at(bias, behind)))
                value = b.fadd(value, self.floats(self.at(own, behind)))
                b.store(self.bfloat16(value), self.at(row, behind), align=1)
        b.ret_void()
        return self.function


class _Product(Writer):
    """Writes the function that multiplies some full tiles of rows, and so many rows behind them.

    Each thread copies the activations for itself, which takes far less time than to wait for one
    another. Then it does its outputs: all rows of a block of them, while its weights are near.
    """

    def __init__(
        self, module: Any, name: str, rows: int, team: list[int], tiles: dict[int, Any]
    ) -> None:
        super().__init__(module, name, "pointer")
        self._rows, self._team, self._tiles = rows, team, tiles

    def write(self) -> None:
        """The whole function."""
        b, t = self.b, self.t
        fields = self.fields(self.function.args[0], 12)
        x, records, out, scratch, bias, residual = (b.inttoptr(f, t.pointer) for f in fields[:6])
        blocks, pairs, full, bias_block, residual_block, residual_step = fields[6:]
        thread = self.thread(self._team)
        width = b.mul(pairs, t.i64(4))
        step = b.mul(blocks, t.i64(2 * _OUTPUTS))
        count = b.add(b.mul(full, t.i64(_MOST_ROWS)), t.i64(self._rows))
        own = self.at(scratch, b.mul(thread[0], b.mul(count, width)))

        def copy(first: Any, rows: int) -> None:
            behind = b.mul(first, width)
            self._interleave(self.at(x, behind), self.at(own, behind), rows, pairs)

        self.every_tile(full, _MOST_ROWS, self._rows, copy)

        def block(index: Any, _: list[Any]) -> list[Any]:
            weights = self.at(records, b.mul(index, pairs), _RECORD)
            result = self.at(out, index, 2 * _OUTPUTS)
            added = self.at(bias, b.mul(index, bias_block))
            carried = self.at(residual, b.mul(index, residual_block))

            def call(first: Any, rows: int) -> None:
                arguments = [
                    self.at(own, b.mul(first, width)),
                    weights,
                    self.at(result, b.mul(first, step)),
                    step,
                    added,
                    self.at(carried, b.mul(first, residual_step)),
                    residual_step,
                    pairs,
                ]
                b.call(self._tiles[rows], arguments)

            self.every_tile(full, _MOST_ROWS, self._rows, call)
            return []

        loop(b, *self.share(blocks, thread), [], block)
        b.ret_void()

    def _interleave(self, x: Any, own: Any, rows: int, pairs: Any) -> None:
        """For every pair of inputs those of all rows, one behind the other."""
        b, t = self.b, self.t
        starts = [self.at(x, b.mul(pairs, t.i64(4 * r))) for r in range(rows)]

        def pair(index: Any, _: list[Any]) -> list[Any]:
            place = self.at(own, index, 4 * rows)
            for r, start in enumerate(starts):
                two = self.load(self.at(start, index, 4), t.i32)
                b.store(two, self.at(place, r, 4), align=1)
            return []

        loop(b, t.i64(0), pairs, [], pair)
