"""Linear layers for the CPU: weights reordered for oneDNN, or stored in 8 or 4 bits.

A product with few rows is bound by reading the weights. oneDNN reads them in its own order at
nearly the speed of the memory, for one row as for eight; ATen's plain product does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import InvalidInput

Storage = Literal["auto", "plain", "packed", "int8", "int4"]
"""How a weight is kept. "auto" packs where that was measured to help on this machine."""

STORAGES: tuple[Storage, ...] = ("auto", "plain", "packed", "int8", "int4")

INT4_GROUP = 32
"""Inputs that share one scale and zero point in int4."""

_INT4_OUTPUTS = 16
"""The kernel takes multiples of so many outputs: others are filled up with zeros."""

_INT4_ROWS = 256


_CLEARLY = 0.9
"""Packing has to take this share of the plain time at the most: noise must not decide."""

_FEW_ROWS = 4

_FASTER = 0.97
"""Padding to more rows has to take this share of the time at the most."""

_MANY_ROWS = 128
"""From here on a product is bound by arithmetic, as in a prefill: unpack, then multiply densely."""


class Linear(Protocol):
    """x W^T + b, with an optional residual added: `[n, in]` to `[n, out]`."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Apply the layer."""
        ...

    @property
    def num_bytes(self) -> int:
        """The memory that a pass reads."""
        ...

    @property
    def least_rows(self) -> int:
        """Fewer rows than this take longer: pad them, and drop the padding behind."""
        ...


class PlainLinear:
    """The weight as it is, multiplied by ATen."""

    least_rows = 1

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
        self.least_rows = least_packed_rows(weight.dtype)
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear`. The residual is added before the result is rounded."""
        if residual is None:
            return self._plain(x, self.weight, self.bias, "none", [], "")
        return self._add(x, residual, self.weight, self.bias, "add")


class Int8Linear:
    """Weight-only int8 with one scale an output, round to nearest."""

    least_rows = 1

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        wide = weight.float()
        # Rounded first: the levels are chosen for the scale that the kernel will use.
        self.scale = (wide.abs().amax(dim=1).clamp_(min=1e-12) / 127).to(torch.bfloat16)
        self.weight = (wide / self.scale[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        self.bias = bias
        self.num_bytes = self.weight.nbytes + self.scale.nbytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear`."""
        rows = x.bfloat16().contiguous()
        if len(rows) < _MANY_ROWS:
            product = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scale)
        else:
            product = functional.linear(rows, self.weight.bfloat16() * self.scale[:, None])
        return _finish(product, x.dtype, self.bias, residual)


class Int4Linear:
    """Weight-only int4, asymmetric, in groups of `INT4_GROUP` inputs."""

    least_rows = 1

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._outputs = len(weight)
        weight = pad_rows(weight, -(-len(weight) // _INT4_OUTPUTS) * _INT4_OUTPUTS)
        # Some rows at a time, so that what is computed on the way stays in the caches.
        parts = [_int4_levels(rows) for rows in weight.split(_INT4_ROWS)]
        levels, scales = (torch.cat(part) for part in zip(*parts, strict=True))
        self.weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        # The kernel's own order cannot be read back; a prefill unpacks these.
        self._pairs = (levels[:, ::2] + 16 * levels[:, 1::2]).to(torch.uint8)
        self.scales = scales.transpose(0, 1).contiguous()
        self.bias = bias
        self.num_bytes = weight.numel() // 2 + self.scales.nbytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear`."""
        rows = x.bfloat16().contiguous()
        if len(rows) < _MANY_ROWS:
            product = torch.ops.aten._weight_int4pack_mm_for_cpu(
                rows, self.weight, INT4_GROUP, self.scales
            )
        else:
            product = functional.linear(rows, self._dense())
        return _finish(product[:, : self._outputs], x.dtype, self.bias, residual)

    def _dense(self) -> Tensor:
        levels = torch.stack([self._pairs & 15, self._pairs >> 4], dim=-1).flatten(1)
        groups = levels.unflatten(1, (-1, INT4_GROUP)).bfloat16().sub_(8)
        scale, zero = self.scales.transpose(0, 1)[..., None].unbind(dim=2)
        return groups.mul_(scale).add_(zero).flatten(1)


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


def make_linear(weight: Tensor, bias: Tensor | None, storage: Storage) -> Linear:
    """Build a layer from a dense weight `[out, in]`, which the caller should then drop.

    What the kernels cannot take, as the narrow layers of tiny models, falls back: int4 to int8,
    int8 to "auto".

    Raises:
        InvalidInput: an unknown storage.
    """
    if storage == "int4" and weight.shape[1] % INT4_GROUP:
        storage = "int8"
    if storage == "int8" and weight.shape[1] % 32:
        storage = "auto"  # torch's kernel reads past the end of rows that do not fill its vectors
    if storage == "auto":
        storage = "packed" if packing_helps(weight.dtype, weight.device.type) else "plain"
    kinds: dict[str, Callable[[Tensor, Tensor | None], Linear]] = {
        "plain": PlainLinear,
        "packed": PackedLinear,
        "int8": Int8Linear,
        "int4": Int4Linear,
    }
    if storage == "packed" and not _can_pack(weight.dtype, weight.device.type):
        raise InvalidInput(
            f"storage 'packed' needs oneDNN on a CPU that multiplies {weight.dtype}, which is not "
            "the case here; use 'auto' or 'plain'"
        )
    if storage not in kinds:
        raise InvalidInput(f"storage must be one of {', '.join(STORAGES)}; it is {storage!r}")
    return kinds[storage](weight, bias)


@functools.cache
def packing_helps(dtype: torch.dtype, device: str = "cpu") -> bool:
    """Whether packed products of one and of five rows are faster here, by measuring them once.

    The probe multiplies by weights that are larger than the caches, as a pass does, and takes
    some tenths of a second a dtype. The two are interleaved, so that noise falls on both.
    """
    if not _can_pack(dtype, device):
        return False
    with torch.inference_mode():
        weights = [torch.ones(2048, 2048, dtype=dtype) for _ in range(32 // dtype.itemsize)]
        inputs = [torch.ones(rows, 2048, dtype=dtype) for rows in (1, 5)]
        plain = [PlainLinear(weight, None) for weight in weights]
        packed = [PackedLinear(weight, None) for weight in weights]
        times = [(_sweep(plain, inputs), _sweep(packed, inputs)) for _ in range(4)][1:]
    return min(t for _, t in times) < _CLEARLY * min(t for t, _ in times)


@functools.cache
def least_packed_rows(dtype: torch.dtype) -> int:
    """1, or 4 where a packed product of four rows takes less time than one of fewer, measured once.

    oneDNN's kernels for one to three rows do not keep the memory busy on every processor. On one
    with AVX-512 four rows take .9 of the time of one and .8 of that of two. Two rows show it most
    clearly, so they decide. Passes of up to four rows then have one shape, and round alike.
    """
    with torch.inference_mode():
        packed = [
            torch.ops.mkldnn._reorder_linear_weight(torch.ones(2048, 2048, dtype=dtype))
            for _ in range(32 // dtype.itemsize)
        ]
        inputs = [torch.ones(rows, 2048, dtype=dtype) for rows in (1, 2, _FEW_ROWS)]
        times = [[_products(packed, x) for x in inputs] for _ in range(8)][1:]
    one, two, few = (min(column) for column in zip(*times, strict=True))
    return _FEW_ROWS if few < one and few < _FASTER * two else 1


def _products(packed: Sequence[Tensor], x: Tensor) -> float:
    start = perf_counter()
    for weight in packed:
        torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return perf_counter() - start


def pad_rows(x: Tensor, rows: int) -> Tensor:
    """Zeros below `x` `[n, d]`, up to `rows` rows; `x` itself where it has as many.

    >>> pad_rows(torch.ones(1, 2), 2)
    tensor([[1., 1.],
            [0., 0.]])
    """
    missing = rows - len(x)
    return x if missing <= 0 else functional.pad(x, (0, 0, 0, missing))


def _can_pack(dtype: torch.dtype, device: str) -> bool:
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


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
        rows = x.flatten(0, -2)
        out = self._linear(pad_rows(rows, self._linear.least_rows))
        return out[: len(rows)].unflatten(0, x.shape[:-1])


def pack_modules(model: torch.nn.Module, storage: Storage) -> bool:
    """Replace the linear modules of a model, one by one, so that each original is freed at once.

    Returns whether anything was replaced. Plain storage, or a machine where packing does not
    help, leaves the model as it is.
    """
    if storage == "plain":
        return False
    linear = next((m for m in model.modules() if type(m) is torch.nn.Linear), None)
    if linear is None:
        return False
    if storage == "auto" and not packing_helps(linear.weight.dtype, linear.weight.device.type):
        return False
    del linear
    # Names, not modules: a list of modules would keep every original until the end.
    names = [name for name, module in model.named_modules() if type(module) is torch.nn.Linear]
    with torch.inference_mode():
        for name in names:
            _replace(model, name, storage)
    return True


def _replace(model: torch.nn.Module, name: str, storage: Storage) -> None:
    child: Any = model.get_submodule(name)
    bias = None if child.bias is None else child.bias.detach()
    model.set_submodule(name, _PackedModule(make_linear(child.weight.detach(), bias, storage)))
