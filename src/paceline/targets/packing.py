"""Linear layers for the CPU: weights reordered for oneDNN, or stored in 8 or 4 bits.

A product with few rows is bound by reading the weights. oneDNN reads them in its own order at
nearly the speed of the memory, for one row as for eight; ATen's plain product does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import InvalidInput

Storage = Literal["auto", "plain", "packed", "int8", "int4"]
"""How a weight is kept. "auto" packs where that was measured to help on this machine."""

STORAGES: tuple[Storage, ...] = ("auto", "plain", "packed", "int8", "int4")

INT4_GROUP = 32
"""Inputs that share one scale and zero point in int4."""


class Linear(Protocol):
    """x W^T + b, with an optional residual added: `[n, in]` to `[n, out]`."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Apply the layer."""
        ...

    @property
    def num_bytes(self) -> int:
        """The memory that a pass reads."""
        ...


class PlainLinear:
    """The weight as it is, multiplied by ATen."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.num_bytes = weight.nbytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear`."""
        out = functional.linear(x, self.weight, self.bias)
        return out if residual is None else out.add_(residual)


class PackedLinear:
    """The weight in oneDNN's order. The caller drops the original, which is not kept here."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.bias = bias
        self.num_bytes = weight.nbytes
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear`. The residual is added before the result is rounded."""
        if residual is None:
            return self._plain(x, self.weight, self.bias, "none", [], "")
        return self._add(x, residual, self.weight, self.bias, "add")


class Int8Linear:
    """Weight-only int8 with one scale an output, round to nearest."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        wide = weight.float()
        scale = wide.abs().amax(dim=1).clamp_(min=1e-12) / 127
        self.weight = (wide / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        self.scale, self.bias = scale.to(torch.bfloat16), bias
        self.num_bytes = self.weight.nbytes + self.scale.nbytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear`."""
        product = torch.ops.aten._weight_int8pack_mm(x.bfloat16(), self.weight, self.scale)
        return _finish(product, x.dtype, self.bias, residual)


class Int4Linear:
    """Weight-only int4, asymmetric, in groups of `INT4_GROUP` inputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        outputs, inputs = weight.shape
        groups = weight.float().view(outputs, inputs // INT4_GROUP, INT4_GROUP)
        low, high = groups.amin(dim=-1), groups.amax(dim=-1)
        scale = ((high - low) / 15).clamp_(min=1e-8)
        # The kernel computes (level - 8) * scale + zero; the levels are chosen for the rounded
        # scale and zero that it will use.
        scale, zero = scale.bfloat16(), (low + 8 * scale).bfloat16()
        levels = ((groups - zero[..., None]) / scale[..., None]).round_().add_(8).clamp_(0, 15)
        self.weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            levels.to(torch.int32).view(outputs, inputs), 1
        )
        self.scales = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous()
        self.bias = bias
        self.num_bytes = outputs * inputs // 2 + self.scales.nbytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear`."""
        product = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.bfloat16().contiguous(), self.weight, INT4_GROUP, self.scales
        )
        return _finish(product, x.dtype, self.bias, residual)


def _finish(
    product: Tensor, dtype: torch.dtype, bias: Tensor | None, residual: Tensor | None
) -> Tensor:
    out = product.to(dtype)
    for term in (bias, residual):
        if term is not None:
            out = out.add_(term)
    return out


def make_linear(weight: Tensor, bias: Tensor | None, storage: Storage) -> Linear:
    """Build a layer from a dense weight `[out, in]`, which the caller should then drop.

    Raises:
        InvalidInput: an unknown storage.
    """
    if storage == "auto":
        storage = "packed" if packing_helps(weight.dtype, weight.device.type) else "plain"
    if storage == "int4" and weight.shape[1] % INT4_GROUP:
        storage = "int8"  # no whole groups: the narrow layers of tiny models
    kinds: dict[str, Callable[[Tensor, Tensor | None], Linear]] = {
        "plain": PlainLinear,
        "packed": PackedLinear,
        "int8": Int8Linear,
        "int4": Int4Linear,
    }
    if storage not in kinds:
        raise InvalidInput(f"storage must be one of {', '.join(STORAGES)}; it is {storage!r}")
    return kinds[storage](weight, bias)


@functools.cache
def packing_helps(dtype: torch.dtype, device: str = "cpu") -> bool:
    """Whether packed products of one and of five rows are faster here, by measuring them once.

    The probe multiplies by weights that are larger than the caches, as a pass does, and takes
    some tenths of a second a dtype. The two are interleaved, so that noise falls on both.
    """
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    with torch.inference_mode():
        weights = [torch.ones(2048, 2048, dtype=dtype) for _ in range(64 // dtype.itemsize)]
        inputs = [torch.ones(rows, 2048, dtype=dtype) for rows in (1, 5)]
        plain = [PlainLinear(weight, None) for weight in weights]
        packed = [PackedLinear(weight, None) for weight in weights]
        times = [(_sweep(plain, inputs), _sweep(packed, inputs)) for _ in range(4)][1:]
    return min(t for _, t in times) < min(t for t, _ in times)


def _sweep(layers: Sequence[Linear], inputs: Sequence[Tensor]) -> float:
    start = perf_counter()
    for x in inputs:
        for layer in layers:
            layer(x)
    return perf_counter() - start


class _PackedModule(torch.nn.Module):
    """Stands in for a `torch.nn.Linear` of a model."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self._linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to `[..., in]`."""
        return self._linear(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


def pack_modules(model: torch.nn.Module, storage: Storage) -> bool:
    """Replace the linear modules of a model, one by one, so that each original is freed at once.

    Returns whether anything was replaced. Plain storage, or a machine where packing does not
    help, leaves the model as it is.
    """
    weights = [module.weight for module in model.modules() if type(module) is torch.nn.Linear]
    if not weights or storage == "plain":
        return False
    if storage == "auto" and not packing_helps(weights[0].dtype, weights[0].device.type):
        return False
    with torch.inference_mode():
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is torch.nn.Linear:
                    bias = None if child.bias is None else child.bias.detach()
                    linear = make_linear(child.weight.detach(), bias, storage)
                    setattr(parent, name, _PackedModule(linear))
    return True
