"""Paceline: speculative decoding for PyTorch and Hugging Face, with the output proved unchanged.

Names are loaded when they are first used, so that `import paceline` costs nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.core.sampling import SamplingParams
    from paceline.errors import PacelineError
    from paceline.generate.api import LanguageModel, load, load_draft
    from paceline.generate.async_engine import Engine
    from paceline.generate.results import Generation
    from paceline.integrations.huggingface import speculate
    from paceline.models.heads import load_head
    from paceline.trace import Recording, read_trace

# A pass reads all the weights, and from pages of 2 MB it reads them about 5 % faster. torch asks
# for such pages where this says so, if it is told before its first tensor. 0 turns it off.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0.dev0"

_HOME = {
    "Engine": "paceline.generate.async_engine",
    "Generation": "paceline.generate.results",
    "LanguageModel": "paceline.generate.api",
    "PacelineError": "paceline.errors",
    "Recording": "paceline.trace.recording",
    "SamplingParams": "paceline.core.sampling",
    "load": "paceline.generate.api",
    "load_draft": "paceline.generate.api",
    "load_head": "paceline.models.heads.loading",
    "read_trace": "paceline.trace.reader",
    "speculate": "paceline.integrations.huggingface",
}

__all__ = [
    "Engine",
    "Generation",
    "LanguageModel",
    "PacelineError",
    "Recording",
    "SamplingParams",
    "load",
    "load_draft",
    "load_head",
    "read_trace",
    "speculate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
