"""What a decoder layer computes between the products: norms, rotary positions, gates.

torch computes each in several steps. Every step has its own dispatch, and its code has to be
fetched again, because the products before have filled the caches with weights. In bfloat16 on a
processor with AVX-512 each is one compiled loop (`llvm.row_operations`); elsewhere torch computes
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from paceline.kernels.llvm import row_operations as loops
from paceline.kernels.llvm.vector_code import LANES
from paceline.kernels.operation import Operation, is_cpu_bfloat16
from paceline.kernels.timing import clearly_faster

_ONE_THREAD = 2**15
"""Up to this many elements, one thread is as fast as all of them."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * (offset + weight), in float32 inside.

    (Zhang & Sennrich 1910.07467.) Without an offset the quotient is rounded to the dtype of `x`
    before it is multiplied; with an offset, after. The models do the same.

    Args:
        x: `[..., width]`.
        weight: `[width]`.
        eps: added to the mean.
        offset: added to the weight.

    Raises:
        UnsupportedModel: gradients are wanted, and a compiled loop would compute it.

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0)
    tensor([[0.8485, 1.1314]])
    """
    return _rms_norm(x, weight, eps, offset)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: x cos + roll(x, width / 2) sin, for every head of every row.

    Args:
        heads: `[n, heads, width]`.
        cos, sin: `[n, 1, width]`; the sines of the first half negated.

    Returns:
        `[heads, n, width]`.

    Raises:
        UnsupportedModel: gradients are wanted, and a compiled loop would compute it.
    """
    return _rotate(heads, cos, sin)


def gated(gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(gate) * up: the gated units of Shazeer 2002.05202.

    Args:
        gate_up: `[n, 2 width]`, the gates before the values that they multiply.
        activation: `torch.nn.functional.silu` is compiled, others are not.

    Raises:
        UnsupportedModel: gradients are wanted, and a compiled loop would compute it.

    >>> gated(torch.tensor([[0.0, 1.0, 5.0, 2.0]]), silu)
    tensor([[0.0000, 1.4621]])
    """
    return _silu_gated(gate_up) if activation is silu else _gated_by_torch(gate_up, activation)


def prepare() -> None:
    """Compile and time the loops, so that the first pass does not wait for it."""
    is_chosen()


@functools.cache
def is_chosen() -> bool:
    """Whether the loops are available here and not clearly slower than torch; measured once."""
    if not loops.is_available():
        return False
    x = torch.ones(6, 1024, dtype=torch.bfloat16, device="cpu")
    weight = x[0]
    return not clearly_faster(
        lambda: [_norm_by_torch(x, weight, 1e-6, 0.0) for _ in range(5)],
        lambda: [_norm(x, weight, 1e-6, 0.0) for _ in range(5)],
    )


def _norm_by_torch(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * (offset + weight.float())).to(x.dtype) if offset else weight * wide.to(x.dtype)


def _norm_takes(x: Tensor, weight: Tensor, eps: float, offset: float) -> bool:
    width = x.shape[-1]
    fits = not offset and width % LANES == 0 and weight.shape == (width,)
    return fits and is_cpu_bfloat16(x, weight) and is_chosen()


def _norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    width, size = x.shape[-1], x.numel()
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    arguments = loops.NormArguments(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        rows=size // width,
        vectors=width // LANES,
        eps=eps,
    )
    loops.norm()(arguments, _threads(size))
    return out


def _rotate_by_torch(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * cos, swapped, sin).transpose(0, 1)


def _rotate_takes(heads: Tensor, cos: Tensor, sin: Tensor) -> bool:
    rows, _, width = heads.shape
    fits = cos.shape == sin.shape == (rows, 1, width) and width % (2 * LANES) == 0
    return fits and is_cpu_bfloat16(heads, cos, sin) and is_chosen()


def _rotate_loop(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rows, count, width = heads.shape
    if heads.stride()[1:] != (width, 1):
        heads = heads.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    out = heads.new_empty(count, rows, width)
    arguments = loops.RotationArguments(
        x=heads.data_ptr(),
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        out=out.data_ptr(),
        rows=rows,
        heads=count,
        half_vectors=width // (2 * LANES),
        row_bytes=2 * heads.stride(0),
    )
    loops.rotation()(arguments, _threads(out.numel()))
    return out


def _gated_by_torch(gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return activation(gate).mul_(up)


def _gate_takes(gate_up: Tensor) -> bool:
    return gate_up.shape[1] % (2 * LANES) == 0 and is_cpu_bfloat16(gate_up) and is_chosen()


def _gate(gate_up: Tensor) -> Tensor:
    rows, both = gate_up.shape
    width = both // 2
    gate_up = gate_up.contiguous()
    out = gate_up.new_empty(rows, width)
    arguments = loops.GateArguments(
        gate_up=gate_up.data_ptr(), out=out.data_ptr(), rows=rows, vectors=width // LANES
    )
    loops.gate()(arguments, _threads(gate_up.numel()))
    return out


def _threads(size: int) -> int:
    return 1 if size <= _ONE_THREAD else torch.get_num_threads()


_rms_norm = Operation(
    "rms_norm(Tensor x, Tensor weight, float eps, float offset) -> Tensor",
    takes=_norm_takes,
    loop=_norm,
    reference=_norm_by_torch,
    shape=lambda x, weight, eps, offset: x.new_empty(x.shape),
)
_rotate = Operation(
    "rotate(Tensor heads, Tensor cos, Tensor sin) -> Tensor",
    takes=_rotate_takes,
    loop=_rotate_loop,
    reference=_rotate_by_torch,
    shape=lambda heads, cos, sin: heads.new_empty(heads.shape[1], heads.shape[0], heads.shape[2]),
)
_silu_gated = Operation(
    "silu_gated(Tensor gate_up) -> Tensor",
    takes=_gate_takes,
    loop=_gate,
    reference=lambda gate_up: _gated_by_torch(gate_up, silu),
    shape=lambda gate_up: gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2),
)
