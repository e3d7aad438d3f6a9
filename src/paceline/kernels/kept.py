"""Measured ratios that are kept for the next process, where they leave no doubt.

Whether one kernel is faster than another is the same tomorrow on the same machine, and measuring
it takes a good part of loading a small model. A ratio near its limit is measured anew each time:
noise must not decide for good.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import torch

from paceline.cache_folder import cache_folder

_DECISIVE = math.log(1.25)
"""How far from its limit a ratio is kept, as a logarithm."""

_VERSION = 1
"""Raised whenever a change of the kernels changes what is faster."""


def kept_ratio(name: str, limit: float, measure: Callable[[], float]) -> float:
    """A ratio of times on this machine: kept from an earlier process, or measured now.

    Args:
        name: what is measured.
        limit: the ratio at which the decision changes.
        measure: gives the ratio.
    """
    file = cache_folder() / "measured" / f"{_machine()}.json"
    known = _read(file)
    if name in known:
        return known[name]
    ratio = measure()
    if abs(math.log(ratio / limit)) > _DECISIVE:
        # A cache that cannot be written costs time at the next start, and nothing else.
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
                json.dump({**_read(file), name: ratio}, new)
            os.replace(new.name, file)
    return ratio


def _read(file: Path) -> dict[str, float]:
    with suppress(OSError, ValueError, TypeError, AttributeError):
        found = json.loads(file.read_text(encoding="utf-8"))
        return {name: float(ratio) for name, ratio in found.items() if float(ratio) > 0}
    return {}


@functools.cache
def _machine() -> str:
    """What the times depend on: processor, threads, torch."""
    model = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line for line in lines if line.startswith("model name")), model)
    parts = (model, os.cpu_count(), torch.get_num_threads(), torch.__version__, _VERSION)
    return sha256(repr(parts).encode()).hexdigest()[:16]
