"""The memory that speculation takes in addition to the target: weights, cache, logits, mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.checks import require_int
from paceline.economics.roofline import ModelSize, SpeculationMemory, speculation_memory


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory of one loaded model.

    Args:
        weights: bytes of the weights that a pass reads.
        cache_per_token: bytes of one cached token.
        vocab_size: the width of its logits.
    """

    weights: int
    cache_per_token: int
    vocab_size: int

    def __post_init__(self) -> None:
        for name in ("weights", "cache_per_token", "vocab_size"):
            require_int(name, getattr(self, name), low=0)


def extra_memory(
    target: ModelMemory,
    draft: ModelMemory | None,
    *,
    num_draft_tokens: int,
    batch: int = 1,
    context: int = 1000,
    tree: bool = False,
) -> SpeculationMemory:
    """The memory of a method in addition to the target, for `batch` sequences of `context` tokens.

    A draft model's distributions count as kept, as they are above temperature 0.
    """
    size = None
    if draft is not None:
        size = ModelSize(
            num_parameters=max(1, draft.weights),  # not needed for memory
            weight_bytes=max(1, draft.weights),
            kv_bytes_per_token=draft.cache_per_token,
        )
    return speculation_memory(
        num_draft_tokens=num_draft_tokens,
        vocabulary_size=target.vocab_size,
        batch_size=batch,
        draft=size,
        num_cached_tokens=batch * context,
        soft_draft=draft is not None,
        tree=tree,
    )


def memory_sentence(memory: SpeculationMemory, per_token: int) -> str:
    """The memory in words.

    >>> beside = SpeculationMemory(weights=4e8, cache=0, logits=1e6, hidden_states=0, mask=0)
    >>> memory_sentence(beside, 12288)
    'It needs 401 MB besides the target: 400 MB of weights, 0 MB of cache (12 kB per token), 1 MB \
of logits.'
    """
    parts = {
        "weights": memory.weights,
        "cache": memory.cache,
        "logits": memory.logits,
        "tree mask": memory.mask,
    }
    words = []
    for name, size in parts.items():
        if name == "tree mask" and not size:
            continue
        note = f" ({per_token / 1000:.0f} kB per token)" if name == "cache" and per_token else ""
        words.append(f"{_megabytes(size)} of {name}{note}")
    return f"It needs {_megabytes(memory.total)} besides the target: {', '.join(words)}."


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.0f} MB"


def to_json(memory: SpeculationMemory) -> dict[str, Any]:
    """In bytes, as plain JSON values."""
    return {
        "weights": memory.weights,
        "cache": memory.cache,
        "logits": memory.logits,
        "mask": memory.mask,
        "total": memory.total,
    }
