"""Linear layers for the CPU: weights reordered for a kernel, in few bits, or as they are.

A product with few rows is bound by reading the weights. A kernel that has them in its own order
reads them at nearly the speed of the memory, for one row as for many; ATen's plain product does
not. The kernel is our own for bfloat16 where it is measured to be as fast, and oneDNN's elsewhere.
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
"""How a weight is kept. "auto" packs where that was measured to help on this machine."""

STORAGES: tuple[Storage, ...] = ("auto", "plain", "packed", "int8", "int4")

_PADDED_ROWS = 4
"""What one to three rows are padded to, where oneDNN's product of four is faster."""

_FASTER = 0.97
"""Padding to more rows has to take this share of the time at the most."""


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
        refuse_gradients("oneDNN's packed product", x, residual)
        if residual is None:
            return self._plain(x, self.weight, self.bias, "none", [], "")
        return self._add(x, residual, self.weight, self.bias, "add")


def make_linear(weight: Tensor, bias: Tensor | None, storage: Storage) -> Linear:
    """Build a layer from a dense weight `[out, in]`, which the caller should then drop.

    The first call for a storage and a dtype compiles and measures the kernels that it may choose.
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
"""Rows whose products are bound by arithmetic and not by the memory."""

_OWN_PRODUCT_ROWS = (1, 6, 12, _ARITHMETIC_ROWS)
"""Rows by which our bfloat16 product is compared with oneDNN's: decoding, drafts, a prompt."""


@functools.cache
def own_product_is_chosen() -> bool:
    """Whether our bfloat16 product is available and oneDNN's is not clearly faster, measured once.

    The geometric mean of the ratios over `_OWN_PRODUCT_ROWS` decides. Our product gives a row the
    same bits in any company, so it wins a tie. On processors with AMX, oneDNN's takes a seventh of
    the time for a prompt and two thirds for twelve rows, while ours gains a tenth for one row: the
    two cannot share the packed weights, so one is chosen for all rows.
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
            # Many rows are bound by arithmetic, so that caches do not matter.
            some = 2 if rows >= _ARITHMETIC_ROWS else len(weights)
            times = [[_sweep(products[:some], [x]) for products in kinds] for _ in range(4)][1:]
            onednn, own = (min(column) for column in zip(*times, strict=True))
            logs.append(math.log(onednn / own))
    return math.exp(sum(logs) / len(logs))


@functools.cache
def packing_helps(dtype: torch.dtype, device: str = "cpu") -> bool:
    """Whether packed products of one and of five rows are faster here, by measuring them once.

    The probe multiplies by weights that are larger than the caches, as a pass does, and takes
    some tenths of a second a dtype. The two are interleaved, so that noise falls on both.
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
"""The numbers of rows whose products are timed."""

_PROBE_BYTES = 128 * 2**20


def row_costs(products: Iterable[Linear], width: int, dtype: torch.dtype) -> dict[int, float]:
    """The time of a model's products by rows, in products of one row, measured now.

    Kernels take rows in blocks: on one processor with AVX-512 one to six take the same time, and
    eight take a quarter more.

    Args:
        products: of one size. As many are timed as no cache holds.
        width: their inputs.
        dtype: of the activations.

    Returns:
        Rising times by rows; nothing where the products are too small to say anything.
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
    help, leaves the model as it is; so do weights that a library keeps in a form of its own,
    quantized ones say.
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
    """Whether it is a linear layer with a dense weight, no subclass that stands for one."""
    return type(module) is torch.nn.Linear and type(module.weight.data) is torch.Tensor


def _replace(model: torch.nn.Module, name: str, storage: Storage) -> None:
    child: Any = model.get_submodule(name)
    bias = None if child.bias is None else child.bias.detach()
    model.set_submodule(name, PackedModule(make_linear(child.weight.detach(), bias, storage)))
