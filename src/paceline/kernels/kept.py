"""Measured ratios of times, kept for later processes if the result is clear.

Which kernel is faster does not change on a machine, and measuring it takes a large part of the time
to load a small model. A ratio near its limit is measured again in each process, so that noise does
not decide for good.
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
"""How far a ratio has to be from its limit to be kept, as a logarithm."""

_VERSION = 1
"""To be raised whenever a change of the kernels changes which one is faster."""


def kept_ratio(name: str, limit: float, measure: Callable[[], float]) -> float:
    """A ratio of times on this machine: kept from an earlier process, or measured now.

    Args:
        name: the name of the measurement.
        limit: the ratio at which the decision changes.
        measure: measures the ratio.
    """
    file = cache_folder() / "measured" / f"{_machine()}.json"
    known = _read(file)
    if name in known:
        return known[name]
    ratio = measure()
    if abs(math.log(ratio / limit)) > _DECISIVE:
        # Without a writable cache the next start takes longer; nothing else is lost.
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
