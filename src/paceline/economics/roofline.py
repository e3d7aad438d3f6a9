"""The cost of a pass by the roofline model, and the memory cost of a drafter.

A pass takes as long as the slower of two things: reading the weights and the cache, and doing the
arithmetic. While reading is slower, extra rows are free, which is what makes speculation pay.
(MagicDec, arXiv 2408.11049, section 3.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.economics._checks import check_not_negative, check_positive

_FLOAT32_BYTES = 4
_MASK_BYTES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The two rates that bound a pass: bytes read and arithmetic operations, both per second.

    Raises:
        InvalidInput: a rate is not a finite number above 0.
    """

    bytes_per_second: float
    operations_per_second: float

    def __post_init__(self) -> None:
        check_positive("bytes_per_second", self.bytes_per_second)
        check_positive("operations_per_second", self.operations_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What a pass has to read and to compute.

    Args:
        num_parameters: the parameters that every token goes through.
        weight_bytes: the memory that they take.
        kv_bytes_per_token: the memory that one cached token takes; see `kv_bytes_per_token`.
    """

    num_parameters: float
    weight_bytes: float
    kv_bytes_per_token: float = 0.0

    def __post_init__(self) -> None:
        check_positive("num_parameters", self.num_parameters)
        check_positive("weight_bytes", self.weight_bytes)
        check_not_negative("kv_bytes_per_token", self.kv_bytes_per_token)


def kv_bytes_per_token(
    *, num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_element: float = 2.0
) -> float:
    """The bytes that one token takes in a key-value cache.

    Example:
        >>> kv_bytes_per_token(num_layers=24, num_kv_heads=2, head_dim=64)
        12288.0
    """
    check_positive("num_layers", num_layers)
    check_positive("num_kv_heads", num_kv_heads)
    check_positive("head_dim", head_dim)
    check_positive("bytes_per_element", bytes_per_element)
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_element


def ridge_rows(machine: Machine, bytes_per_parameter: float = 2.0) -> float:
    """The number of rows at which arithmetic takes as long as reading the weights, without context.

    Example:
        >>> h100 = Machine(bytes_per_second=3.35e12, operations_per_second=989e12)
        >>> round(ridge_rows(h100))
        295
    """
    check_positive("bytes_per_parameter", bytes_per_parameter)
    return machine.operations_per_second * bytes_per_parameter / (2 * machine.bytes_per_second)


def pass_seconds(
    machine: Machine, model: ModelSize, num_rows: int, num_cached_tokens: int = 0
) -> float:
    """The time of one pass: max((weights + cache) / bandwidth, 2 * parameters * rows / rate).

    Args:
        machine: the hardware.
        model: the model.
        num_rows: the rows of all sequences of the batch.
        num_cached_tokens: the cached tokens of all sequences together.
    """
    check_positive("num_rows", num_rows)
    check_not_negative("num_cached_tokens", num_cached_tokens)
    num_bytes = model.weight_bytes + model.kv_bytes_per_token * num_cached_tokens
    reading = num_bytes / machine.bytes_per_second
    computing = 2 * model.num_parameters * num_rows / machine.operations_per_second
    return max(reading, computing)


def verify_cost(
    machine: Machine, model: ModelSize, batch_size: int = 1, context_length: int = 0
) -> Callable[[int], float]:
    """T(n) / T(1) as the cost model needs it: n rows for each of `batch_size` sequences.

    Example:
        >>> h100 = Machine(bytes_per_second=3.35e12, operations_per_second=989e12)
        >>> model = ModelSize(num_parameters=8e9, weight_bytes=16e9)
        >>> ratio = verify_cost(h100, model, batch_size=118)
        >>> ratio(1), round(ratio(5), 2)
        (1.0, 2.0)
    """
    check_positive("batch_size", batch_size)
    check_not_negative("context_length", context_length)
    num_cached_tokens = batch_size * context_length
    plain = pass_seconds(machine, model, batch_size, num_cached_tokens)
    return lambda rows: pass_seconds(machine, model, batch_size * rows, num_cached_tokens) / plain


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationMemory:
    """The bytes that speculation needs in addition to the target.

    They are taken from a server's cache, so they reduce its maximum batch.
    """

    weights: float
    cache: float
    logits: float
    hidden_states: float
    mask: float

    @property
    def total(self) -> float:
        """The total."""
        return self.weights + self.cache + self.logits + self.hidden_states + self.mask


def speculation_memory(
    *,
    num_draft_tokens: int,
    vocabulary_size: int,
    batch_size: int = 1,
    draft: ModelSize | None = None,
    num_cached_tokens: int = 0,
    soft_draft: bool = False,
    hidden_size_per_token: int = 0,
    hidden_bytes_per_element: float = 2.0,
    tree: bool = False,
) -> SpeculationMemory:
    """The memory that a drafter and the verification of its drafts take.

    Args:
        num_draft_tokens: the nodes drafted per round and sequence.
        vocabulary_size: the width of the logits, stored in float32: k + 1 rows of the target.
        batch_size: how many sequences are decoded together.
        draft: the draft model; None for a drafter without weights.
        num_cached_tokens: the tokens in the draft's cache, all sequences together.
        soft_draft: whether the drafter's distributions are stored too, another k rows.
        hidden_size_per_token: how many hidden-state values per row a drafter takes from the target;
            3 times the hidden size for EAGLE-3, for example.
        hidden_bytes_per_element: the bytes of each value.
        tree: whether drafts are trees, which need a mask of k * k flags.
    """
    check_not_negative("num_draft_tokens", num_draft_tokens)
    check_not_negative("num_cached_tokens", num_cached_tokens)
    check_not_negative("hidden_size_per_token", hidden_size_per_token)
    check_positive("hidden_bytes_per_element", hidden_bytes_per_element)
    check_positive("vocabulary_size", vocabulary_size)
    check_positive("batch_size", batch_size)
    num_rows = batch_size * (num_draft_tokens + 1)
    num_distributions = num_rows + (batch_size * num_draft_tokens if soft_draft else 0)
    return SpeculationMemory(
        weights=draft.weight_bytes if draft else 0.0,
        cache=draft.kv_bytes_per_token * num_cached_tokens if draft else 0.0,
        logits=num_distributions * vocabulary_size * _FLOAT32_BYTES,
        hidden_states=num_rows * hidden_size_per_token * hidden_bytes_per_element,
        mask=batch_size * num_draft_tokens**2 * _MASK_BYTES if tree else 0,
    )
