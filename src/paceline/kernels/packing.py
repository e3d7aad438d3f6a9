"""Linear layers for the CPU: weights reordered for a kernel, in few bits, or as they are.

A product with few rows is bound by reading the weights. A kernel that has them in its own order
reads them at nearly memory bandwidth, for one row or for several; ATen's plain product does not.
For bfloat16 the kernel is Paceline's own if it is measured to be as fast, otherwise oneDNN's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import InvalidInput
from paceline.kernels.bfloat16 import Bfloat16Linear
from paceline.kernels.kept import kept_ratio
from paceline.kernels.linear import Linear, pad_rows
from paceline.kernels.llvm import bfloat16 as loops
from paceline.kernels.operation import refuse_gradients
from paceline.kernels.quantized import INT4_GROUP, Int4Linear, Int8Linear, int4_product
from paceline.kernels.timing import CLEARLY

Storage = Literal["auto", "plain", "packed", "int8", "int4"]
"""How a weight is stored. "auto" packs it if that was measured to help on this machine."""

STORAGES: tuple[Storage, ...] = ("auto", "plain", "packed", "int8", "int4")

_PADDED_ROWS = 4
"""One to three rows are padded to this many if oneDNN's product of four is faster."""

_FASTER = 0.97
"""A product padded to more rows may take at most this share of the time of the other."""


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
    """The weight in oneDNN's order.

    Args:
        weight: `[out, in]`.
        bias: `[out]`, or none.
        least_rows: see `Linear.least_rows`; `least_packed_rows` measures it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, least_rows: int = 1) -> None:
        refuse_gradients("oneDNN's packed product", weight, bias)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.bias = bias
        self.num_bytes = weight.nbytes
        self.least_rows = least_rows
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear`. The residual is added before the result is rounded."""
        if torch.is_grad_enabled():
            refuse_gradients("oneDNN's packed product", x, residual)
        if residual is None:
            return self._plain(x, self.weight, self.bias, "none", [], "")
        return self._add(x, residual, self.weight, self.bias, "add")


def make_linear(weight: Tensor, bias: Tensor | None, storage: Storage) -> Linear:
    """Build a layer from a dense weight `[out, in]`, which the caller should then drop.

    The first call for a storage and a dtype compiles and measures the kernels that it may choose.
    Layers that a kernel cannot take, such as the narrow ones of tiny models, fall back: int4 to
    int8, int8 to "auto".

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
        "packed": _pack,
        "int8": Int8Linear,
        "int4": lambda weight, bias: Int4Linear(weight, bias, int4_product()),
    }
    if storage == "packed" and not _can_pack(weight.dtype, weight.device.type):
        raise InvalidInput(
            f"storage 'packed' needs oneDNN on a CPU that multiplies {weight.dtype}, which is not "
            "the case here; use 'auto' or 'plain'"
        )
    if storage not in kinds:
        raise InvalidInput(f"storage must be one of {', '.join(STORAGES)}; it is {storage!r}")
    return kinds[storage](weight, bias)


def _pack(weight: Tensor, bias: Tensor | None) -> Linear:
    if packed_kind(weight.dtype, weight.shape[1]) is Bfloat16Linear:
        return Bfloat16Linear(weight, bias)
    return PackedLinear(weight, bias, least_packed_rows(weight.dtype))


def packed_kind(dtype: torch.dtype, inputs: int) -> type[Bfloat16Linear | PackedLinear]:
    """The kernel for packed weights of this dtype with this number of inputs."""
    own = dtype is torch.bfloat16 and inputs % 2 == 0 and own_product_is_chosen()
    return Bfloat16Linear if own else PackedLinear


_ARITHMETIC_ROWS = 128
"""A number of rows whose product is bound by arithmetic and not by memory."""

_OWN_PRODUCT_ROWS = (1, 6, 12, _ARITHMETIC_ROWS)
"""Rows for which the two bfloat16 products are compared: decoding, drafts, a prompt."""


@functools.cache
def own_product_is_chosen() -> bool:
    """Whether `Bfloat16Linear` is available and oneDNN is not clearly faster; measured once.

    The geometric mean of the ratios over `_OWN_PRODUCT_ROWS` decides. In the own product a row's
    bits do not depend on the other rows, so it wins a tie. On processors with AMX, oneDNN's takes a
    seventh of the time for a prompt and two thirds for twelve rows, while the own one gains a tenth
    for one row. The two cannot share packed weights, so one is chosen for all rows.
    """
    if not loops.is_available():
        return False
    if not _can_pack(torch.bfloat16, "cpu"):
        return True
    return kept_ratio("onednn / own bfloat16", CLEARLY, _onednn_to_own) > CLEARLY


def _onednn_to_own() -> float:
    with torch.inference_mode():
        weights = [torch.ones(2048, 2048, dtype=torch.bfloat16) for _ in range(8)]
        kinds = [
            [kind(weight, None) for weight in weights] for kind in (PackedLinear, Bfloat16Linear)
        ]
        logs = []
        for rows in _OWN_PRODUCT_ROWS:
            x = torch.ones(rows, 2048, dtype=torch.bfloat16)
            # Many rows are bound by arithmetic, so caches do not matter.
            some = 2 if rows >= _ARITHMETIC_ROWS else len(weights)
            times = [[_sweep(products[:some], [x]) for products in kinds] for _ in range(4)][1:]
            onednn, own = (min(column) for column in zip(*times, strict=True))
            logs.append(math.log(onednn / own))
    return math.exp(sum(logs) / len(logs))


@functools.cache
def packing_helps(dtype: torch.dtype, device: str = "cpu") -> bool:
    """Whether packed products of one and of five rows are faster here; measured once.

    The probe multiplies by weights that are larger than the caches, as a pass does, and takes
    some tenths of a second per dtype. The two are interleaved, so that noise affects both.
    """
    if not _can_pack(dtype, device):
        return False
    name = f"{packed_kind(dtype, 2048).__name__} / plain {dtype}"
    return kept_ratio(name, CLEARLY, lambda: _packed_to_plain(dtype)) < CLEARLY


def _packed_to_plain(dtype: torch.dtype) -> float:
    with torch.inference_mode():
        weights = [torch.ones(2048, 2048, dtype=dtype) for _ in range(32 // dtype.itemsize)]
        inputs = [torch.ones(rows, 2048, dtype=dtype) for rows in (1, 5)]
        plain = [PlainLinear(weight, None) for weight in weights]
        packed = [packed_kind(dtype, 2048)(weight, None) for weight in weights]
        times = [(_sweep(plain, inputs), _sweep(packed, inputs)) for _ in range(4)][1:]
    return min(t for _, t in times) / min(t for t, _ in times)


ROW_COSTS = (1, 4, 6, 7, 8, 10, 12, 16)
"""The numbers of rows for which products are timed."""

_PROBE_BYTES = 128 * 2**20


def row_costs(products: Iterable[Linear], width: int, dtype: torch.dtype) -> dict[int, float]:
    """Measure the time of a model's products by rows, relative to a product of one row.

    Kernels take rows in blocks: on one processor with AVX-512, one to six rows take the same time,
    and eight take a quarter more.

    Args:
        products: of one size. Enough of them are timed that no cache holds them.
        width: the number of their inputs.
        dtype: of the activations.

    Returns:
        Rising times by rows; empty if the products are too small to be timed.
    """
    chosen: list[Linear] = []
    for product in products:
        chosen.append(product)
        if sum(one.num_bytes for one in chosen) >= _PROBE_BYTES:
            break
    else:
        return {}
    with torch.inference_mode():
        least = chosen[0].least_rows
        inputs = {n: torch.ones(max(n, least), width, dtype=dtype) for n in ROW_COSTS}
        times = [{n: _sweep(chosen, [x]) for n, x in inputs.items()} for _ in range(5)][1:]
    found: dict[int, float] = {}
    for rows in ROW_COSTS:
        best = min(took[rows] for took in times)
        found[rows] = max(best, *found.values()) if found else best
    return {rows: took / found[1] for rows, took in found.items()}


@functools.cache
def least_packed_rows(dtype: torch.dtype) -> int:
    """1, or 4 if a packed product of four rows takes less time than one of fewer; measured once.

    oneDNN's kernels for one to three rows do not use the full memory bandwidth of every processor.
    On one with AVX-512, four rows take .9 of the time of one and .8 of that of two. The difference
    is clearest for two rows, so they decide. Passes of up to four rows then have one shape, and
    round in the same way.
    """
    with torch.inference_mode():
        packed = [
            torch.ops.mkldnn._reorder_linear_weight(torch.ones(2048, 2048, dtype=dtype))
            for _ in range(32 // dtype.itemsize)
        ]
        inputs = [torch.ones(rows, 2048, dtype=dtype) for rows in (1, 2, _PADDED_ROWS)]
        times = [[_products(packed, x) for x in inputs] for _ in range(8)][1:]
    one, two, few = (min(column) for column in zip(*times, strict=True))
    return _PADDED_ROWS if few < one and few < _FASTER * two else 1


def _products(packed: Sequence[Tensor], x: Tensor) -> float:
    start = perf_counter()
    for weight in packed:
        torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return perf_counter() - start


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


class PackedModule(torch.nn.Module):
    """Replaces a `torch.nn.Linear` of a model."""

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

    Returns whether anything was replaced. The model is not changed if storage is "plain" or if
    packing does not help on this machine. Weights that a library stores in its own form, such as
    quantized ones, are not replaced either.
    """
    if storage == "plain":
        return False
    linear = next((m for m in model.modules() if _is_plain(m)), None)
    if linear is None:
        return False
    if storage == "auto" and not packing_helps(linear.weight.dtype, linear.weight.device.type):
        return False
    del linear
    # Names, not modules: a list of modules would keep every original until the end.
    names = [name for name, module in model.named_modules() if _is_plain(module)]
    with torch.inference_mode():
        for name in names:
            _replace(model, name, storage)
    return True


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether it is a linear layer with a dense weight, and not of a subclass."""
    return type(module) is torch.nn.Linear and type(module.weight.data) is torch.Tensor


def _replace(model: torch.nn.Module, name: str, storage: Storage) -> None:
    child: Any = model.get_submodule(name)
    bias = None if child.bias is None else child.bias.detach()
    model.set_submodule(name, PackedModule(make_linear(child.weight.detach(), bias, storage)))
