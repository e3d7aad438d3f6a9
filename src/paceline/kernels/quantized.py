"""Linear layers with weights in 8 or 4 bits, for draft models, which may be coarse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.linear import pad_rows
from paceline.kernels.operation import refuse_gradients
from paceline.kernels.vnni import GROUP, VnniProduct, is_available

INT4_GROUP = GROUP
"""Inputs that share one scale and zero point in int4."""

_INT4_OUTPUTS = 16
"""The kernels take multiples of this number of outputs; other weights are padded with zeros."""

_INT4_ROWS = 256

_MANY_ROWS = 128
"""From this many rows on, as in a prefill, a product is bound by arithmetic: unpack the weights and
multiply densely."""


class Int8Linear:
    """Weight-only int8 with one scale per output, rounded to nearest."""

    least_rows = 1

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        refuse_gradients("the int8 product", weight, bias)
        wide = weight.float()
        # Rounded first: the levels are chosen for the scale that the kernel will use.
        self.scale = (wide.abs().amax(dim=1).clamp_(min=1e-12) / 127).to(torch.bfloat16)
        self.weight = (wide / self.scale[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        self.bias = bias
        self.num_bytes = self.weight.nbytes + self.scale.nbytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `linear.Linear`."""
        refuse_gradients("the int8 product", x, residual)
        rows = x.bfloat16().contiguous()
        if len(rows) < _MANY_ROWS:
            product = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scale)
        else:
            product = functional.linear(rows, self.weight.bfloat16() * self.scale[:, None])
        return _finish(product, x.dtype, self.bias, residual)


class Product(Protocol):
    """x W^T with int4 weights."""

    @property
    def num_bytes(self) -> int:
        """The bytes that a product reads."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """From bfloat16 `[n, in]`, contiguous, to bfloat16 `[n, out]`."""
        ...

    def dense(self) -> Tensor:
        """The weights `[out, in]` in bfloat16."""
        ...


class AtenProduct:
    """The product of torch's kernel. Arguments as in `kernels.vnni.VnniProduct`."""

    def __init__(self, levels: Tensor, scales: Tensor) -> None:
        self._weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        # The kernel's order cannot be read back, so a prefill unpacks these.
        self._pairs = (levels[:, ::2] + 16 * levels[:, 1::2]).to(torch.uint8)
        self._scales = scales.transpose(0, 1).contiguous()
        self.num_bytes = levels.numel() // 2 + scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._weight, INT4_GROUP, self._scales)

    def dense(self) -> Tensor:
        """See `Product`."""
        levels = torch.stack([self._pairs & 15, self._pairs >> 4], dim=-1).flatten(1)
        groups = levels.unflatten(1, (-1, INT4_GROUP)).bfloat16().sub_(8)
        scale, zero = self._scales.transpose(0, 1)[..., None].unbind(dim=2)
        return groups.mul_(scale).add_(zero).flatten(1)


class Int4Linear:
    """Int4, asymmetric, in groups of `INT4_GROUP` inputs.

    Args:
        weight: `[out, in]`.
        bias: `[out]`, or none.
        product: the kernel. `int4_product` names the best one here.
    """

    least_rows = 1

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        product: Callable[[Tensor, Tensor], Product],
    ) -> None:
        refuse_gradients("the int4 product", weight, bias)
        self._outputs = len(weight)
        weight = pad_rows(weight, -(-len(weight) // _INT4_OUTPUTS) * _INT4_OUTPUTS)
        # Some rows at a time, so that intermediate results stay in the caches.
        parts = [_int4_levels(rows) for rows in weight.split(_INT4_ROWS)]
        levels, scales = (torch.cat(part) for part in zip(*parts, strict=True))
        self._product = product(levels, scales)
        self.bias = bias
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `linear.Linear`."""
        refuse_gradients("the int4 product", x, residual)
        rows = x.bfloat16().contiguous()
        if len(rows) < _MANY_ROWS:
            product = self._product(rows)
        else:
            product = functional.linear(rows, self._product.dense())
        if product.shape[1] > self._outputs:
            product = product[:, : self._outputs]
        return _finish(product, x.dtype, self.bias, residual)


def int4_product() -> type[VnniProduct | AtenProduct]:
    """The int4 kernel to use on this machine: `VnniProduct` if it is available, else torch's.

    The two are not timed. They compute different numbers, because `VnniProduct` rounds the
    activations to 8 bits, so the proposals of a draft model would depend on a timing.
    """
    return VnniProduct if is_available() else AtenProduct


def _int4_levels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Levels 0 to 15 `[out, in]`, and (scale, zero) `[out, groups, 2]` in bfloat16.

    A weight is (level - 8) * scale + zero, as the kernel computes it. Scale and zero first span
    the range of the group, then are fitted to the levels by least squares: on the weights of a
    language model that takes a sixth off the mean squared error. The levels are chosen for the
    rounded scale and zero.
    """
    groups = weight.float().unflatten(1, (-1, INT4_GROUP))
    low, high = groups.amin(dim=-1, keepdim=True), groups.amax(dim=-1, keepdim=True)
    scale = ((high - low) / 15).clamp_(min=1e-8)
    zero = low + 8 * scale
    levels = _nearest(groups, scale, zero)
    middle = levels.mean(dim=-1, keepdim=True)
    spread = levels - middle
    scale = (spread * groups).sum(dim=-1, keepdim=True)
    scale /= spread.square_().sum(dim=-1, keepdim=True).clamp_(min=1)
    scale = scale.clamp_(min=1e-8)
    zero = groups.mean(dim=-1, keepdim=True) - scale * middle
    scale, zero = scale.bfloat16(), zero.bfloat16()
    levels = _nearest(groups, scale, zero).add_(8).to(torch.int32)
    return levels.flatten(1), torch.cat([scale, zero], dim=-1)


def _nearest(groups: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return groups.sub(zero).div_(scale).round_().clamp_(-8, 7)


def _finish(
    product: Tensor, dtype: torch.dtype, bias: Tensor | None, residual: Tensor | None
) -> Tensor:
    out = product.to(dtype)
    for term in (bias, residual):
        if term is not None:
            out = out.add_(term)
    return out
