"""Products with int4 weights and activations that are rounded to 8 bits.

ATen's kernel turns each weight into a float before it multiplies, and is bound by that and not by
the memory. Here the activations are rounded to 8 bits, group by group, and one instruction
multiplies 64 weights.

The weights are in the order in which the loop (`llvm.vnni`) reads them: a record for every 16
outputs and 32 inputs holds 256 bytes of levels, then 16 scales and 16 zeros. In the first 64 bytes,
the low halves of bytes 4 i to 4 i + 3 are the levels of output i at inputs 0 to 3, the high halves
those at inputs 4 to 7.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.kernels.llvm import vnni as loops
from paceline.kernels.llvm.vector_code import LANES
from paceline.kernels.llvm.vnni import FACTORS, GROUP, LEVELS, MOST_ROWS, RECORD, Int4Arguments
from paceline.kernels.operation import Operation, is_cpu_bfloat16

__all__ = ["GROUP", "VnniProduct", "is_available", "multiply", "pack", "unpack"]

is_available = loops.is_available


class VnniProduct:
    """x W^T. A row has the same bits whatever the other rows are.

    Args:
        levels: 0 to 15, `[out, in]`, multiples of 16 and of 32.
        scales: bfloat16 `[out, in / 32, 2]`: a weight is (level - 8) * scale + zero.
    """

    def __init__(self, levels: Tensor, scales: Tensor) -> None:
        self._packed = pack(levels, scales)

    @property
    def num_bytes(self) -> int:
        """The bytes that a product reads."""
        return self._packed.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """From bfloat16 `[n, in]` to bfloat16 `[n, out]`."""
        inputs = self._packed.shape[1] * GROUP
        if x.shape[1:] != (inputs,) or not is_cpu_bfloat16(x):
            raise ValueError(
                f"expected bfloat16 [n, {inputs}] on the CPU; got {x.dtype} {x.shape} on {x.device}"
            )
        return multiply(x, self._packed)

    def dense(self) -> Tensor:
        """The weights `[out, in]` in bfloat16."""
        return unpack(self._packed)


def pack(levels: Tensor, scales: Tensor) -> Tensor:
    """Levels and scales in the loop's order, uint8 `[out / 16, in / 32, 320]`."""
    outputs, inputs = levels.shape
    blocks, groups = outputs // LANES, inputs // GROUP
    quads = levels.to(torch.uint8).view(blocks, LANES, groups, 4, 2, 4)
    pairs = quads[..., 0, :] + 16 * quads[..., 1, :]  # [blocks, lanes, groups, 4, 4]
    pairs = pairs.permute(0, 2, 3, 1, 4).reshape(blocks, groups, LEVELS)
    own = scales.view(blocks, LANES, groups, 2).permute(0, 2, 3, 1).contiguous()
    own = own.view(blocks, groups, 2 * LANES).view(torch.uint8)
    return torch.cat([pairs, own], dim=-1).contiguous()


def unpack(packed: Tensor) -> Tensor:
    """The weights `[out, in]` in bfloat16 that packed levels and scales encode."""
    blocks, groups, _ = packed.shape
    levels, scales = packed.split([LEVELS, RECORD - LEVELS], dim=-1)
    pairs = levels.reshape(blocks, groups, 4, LANES, 1, 4)
    quads = torch.cat([pairs & 15, pairs >> 4], dim=-2)  # [blocks, groups, 4, lanes, 2, 4]
    levels = quads.permute(0, 3, 1, 2, 4, 5).reshape(blocks, LANES, groups, GROUP)
    own = scales.contiguous().view(torch.bfloat16).view(blocks, groups, 2, LANES, 1)
    scale, zero = own.permute(2, 0, 3, 1, 4).unbind()
    dense = levels.bfloat16().sub_(8).mul_(scale).add_(zero)
    return dense.reshape(blocks * LANES, groups * GROUP)


def _round_to_8_bits(x: Tensor) -> Tensor:
    """Activations as the loop rounds them: each group to 255 steps of its own scale, in float32."""
    groups = x.float().unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    # Divide tensor by tensor: torch divides a number by a tensor through the reciprocal.
    inverse = torch.full_like(largest, 127) / largest.clamp(min=1e-30)
    steps = (groups * torch.where(largest > 1e-30, inverse, 0)).round()
    return (steps * (largest / 127)).flatten(1)


def _reference(x: Tensor, packed: Tensor) -> Tensor:
    return (_round_to_8_bits(x) @ unpack(packed).float().T).to(x.dtype)


def _takes(x: Tensor, packed: Tensor) -> bool:
    return (
        is_cpu_bfloat16(x)
        and packed.is_cpu
        and packed.dtype is torch.uint8
        and packed.shape[2:] == (RECORD,)
        and x.shape[1:] == (packed.shape[1] * GROUP,)
        and packed.is_contiguous()
        and loops.is_available()
    )


def _loop(x: Tensor, packed: Tensor) -> Tensor:
    blocks, groups, _ = packed.shape
    x = x.contiguous()
    out = x.new_empty(len(x), blocks * LANES)
    threads = torch.get_num_threads()
    room = MOST_ROWS * groups * (GROUP + FACTORS)
    scratch = x.new_empty(threads * room, dtype=torch.uint8)
    functions = loops.functions()
    for first in range(0, len(x), MOST_ROWS):
        arguments = Int4Arguments(
            x=x.data_ptr() + 2 * first * groups * GROUP,
            weights=packed.data_ptr(),
            out=out.data_ptr() + 2 * first * blocks * LANES,
            scratch=scratch.data_ptr(),
            blocks=blocks,
            groups=groups,
            scratch_bytes=room,
        )
        functions[min(MOST_ROWS, len(x) - first)](arguments, threads)
    return out


multiply = Operation(
    "int4_linear(Tensor x, Tensor packed) -> Tensor",
    takes=_takes,
    loop=_loop,
    reference=_reference,
    shape=lambda x, packed: x.new_empty(len(x), packed.shape[0] * LANES),
)
"""x W^T, with x rounded to 8 bits. `packed` comes from `pack`."""
