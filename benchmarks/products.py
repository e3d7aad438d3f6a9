"""Matrix products with few rows: by how the weights are kept, and by the pages they lie in.

    python benchmarks/products.py --json products.json

- `storage`: milliseconds of the products of one pass of Qwen2.5-Coder-0.5B (24 layers, random
  weights), by storage and rows, and the bytes a second that one row reads.
- `pages`: packed bfloat16 weights of 1.5 GB in pages of 2 MB and of 4 KB, in turns: the ratio of
  the times, the median of pairs. Linux alone.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import paceline  # noqa: F401  before torch: it asks for large pages  # isort: skip
import torch
from _common import write
from rich.console import Console
from torch import Tensor

from paceline.kernels.linear import Linear
from paceline.kernels.packing import PackedLinear, least_packed_rows, make_linear
from paceline.kernels.quantized import AtenProduct, Int4Linear

SHAPES = ((1152, 896), (896, 896), (9728, 896), (896, 4864))
"""Outputs and inputs of the products of a layer of Qwen2.5-Coder-0.5B."""

LAYERS = 24
ROWS = (1, 2, 4, 6, 8, 12, 16)
PR_SET_THP_DISABLE = 41


def weight(shape: tuple[int, int]) -> Tensor:
    """A random weight `[out, in]`."""
    return (0.02 * torch.randn(*shape)).bfloat16()


def milliseconds(run: Callable[[], object]) -> float:
    """Of one run."""
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def sweep(layers: Sequence[Linear], rows: int) -> None:
    """Every product once."""
    inputs: dict[int, Tensor] = {}
    for number, layer in enumerate(layers):
        width = SHAPES[number % len(SHAPES)][1]
        x = inputs.setdefault(width, torch.ones(max(rows, layer.least_rows), width).bfloat16())
        layer(x)


def by_storage(repeats: int) -> dict[str, Any]:
    """The storages in turns, so that the machine's noise falls on all."""
    kinds: dict[str, Callable[[Tensor], Linear]] = {
        "packed": lambda own: make_linear(own, None, "packed"),
        "packed by oneDNN": lambda own: PackedLinear(own, None, least_packed_rows(own.dtype)),
        "int8": lambda own: make_linear(own, None, "int8"),
        "int4": lambda own: make_linear(own, None, "int4"),
        "int4 by torch": lambda own: Int4Linear(own, None, AtenProduct),
    }
    layers = {
        kind: [make(weight(shape)) for _ in range(LAYERS) for shape in SHAPES]
        for kind, make in kinds.items()
    }
    times: dict[str, dict[int, list[float]]] = {kind: {n: [] for n in ROWS} for kind in kinds}
    for repeat in range(repeats + 1):
        for rows in ROWS:
            for kind in kinds:
                took = milliseconds(lambda kind=kind, rows=rows: sweep(layers[kind], rows))  # type: ignore[misc]
                if repeat:
                    times[kind][rows].append(took)
    found: dict[str, Any] = {}
    for kind in kinds:
        medians = {str(rows): statistics.median(values) for rows, values in times[kind].items()}
        size = sum(layer.num_bytes for layer in layers[kind])
        found[kind] = {"ms": medians, "bytes": size, "gb_per_s": size / medians["1"] / 1e6}
    return found


def large_pages() -> int:
    """Bytes of this process in pages of 2 MB."""
    (size,) = re.findall(r"AnonHugePages: +(\d+)", Path("/proc/self/smaps_rollup").read_text())
    return 1024 * int(size)


def by_pages(repeats: int) -> dict[str, Any]:
    """The same products from small and from large pages, in turns."""
    libc = ctypes.CDLL(None)
    sets: dict[str, list[Linear]] = {}
    sizes: dict[str, int] = {}
    for name, disabled in (("4 KB", 1), ("2 MB", 0)):
        libc.prctl(PR_SET_THP_DISABLE, disabled, 0, 0, 0)
        before = large_pages()
        sets[name] = [make_linear(weight((17_920, 1536)), None, "packed") for _ in range(28)]
        sizes[name] = large_pages() - before
    found: dict[str, Any] = {"bytes_in_large_pages": sizes, "ratio": {}}
    for rows in (4, 8):
        x = torch.ones(rows, 1536).bfloat16()
        ratios = []
        for _ in range(repeats + 1):
            took = {
                name: milliseconds(lambda own=own, x=x: [layer(x) for layer in own])  # type: ignore[misc]
                for name, own in sets.items()
            }
            ratios.append(took["2 MB"] / took["4 KB"])
        low, middle, high = statistics.quantiles(ratios[1:], n=4)
        found["ratio"][str(rows)] = {"median": middle, "quartiles": [low, high]}
    return found


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with torch.inference_mode():
        result = {"storage": by_storage(options.repeats), "pages": by_pages(options.repeats)}
    Console().print(result)
    write(options.json, result)


if __name__ == "__main__":
    main()
