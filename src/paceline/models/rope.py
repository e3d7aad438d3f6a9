"""A GGUF file's rotary embedding settings, in the terms of a transformers config.

transformers' GGUF support reads only the base frequency, and for some architectures not even that.
A model with scaled frequencies would load silently and compute something else at every position. So
the settings are read here, and an unknown scaling is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.errors import UnsupportedModel
from paceline.models.gguf_file import Head

_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192


def rope_parameters(head: Head, base: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The `rope_parameters` of the config; `base` is what transformers read from the file.

    Raises:
        UnsupportedModel: the scaling cannot be expressed.
    """
    kind = head.metadata.get(f"{head.architecture}.rope.scaling.type", "none")
    factor = head.metadata.get(f"{head.architecture}.rope.scaling.factor", 1.0)
    factors = [t for t in head.tensors if t.name == "rope_freqs.weight"]
    # Nested mappings, one per kind of layer, cannot take one scaling for all.
    flat = base is not None and not any(isinstance(value, Mapping) for value in base.values())
    if base is not None and flat:
        theta = head.metadata.get(f"{head.architecture}.rope.freq_base", base.get("rope_theta"))
        base = {**base, "rope_theta": theta}
    if kind in ("none", "") and not factors:
        return base
    if base is None or not flat:
        raise _unknown(head, kind)
    if factors:
        return {**base, **_llama3(head, float(base["rope_theta"]))}
    if kind == "linear":
        return {**base, "rope_type": "linear", "factor": float(factor)}
    if kind == "yarn":
        return {**base, **_yarn(head, float(factor))}
    raise _unknown(head, kind)


def _yarn(head: Head, factor: float) -> dict[str, Any]:
    """YaRN's scaling (Peng et al. 2309.00071), whose attention factor follows from the factor.

    Files leave the attention factor out, or hold 1 (times the one that follows), or that itself.
    """
    said = {
        key.removeprefix(f"{head.architecture}.rope.scaling."): value
        for key, value in head.metadata.items()
        if key.startswith(f"{head.architecture}.rope.scaling.")
    }
    context = said.get("original_context_length")
    implied = 0.1 * math.log(factor) + 1
    is_own = any(
        not any(math.isclose(said.get(name, 1.0), value, rel_tol=1e-5) for value in (1.0, implied))
        for name in ("attn_factor", "yarn_attn_factor")
    )
    # The last two are unknown to transformers; 1 and absence are what it implies.
    is_own |= said.get("yarn_ext_factor", 1.0) != 1.0 or "yarn_log_multiplier" in said
    if not context or is_own:
        raise _unknown(head, "yarn with settings of its own")
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(context),
        "beta_fast": float(said.get("yarn_beta_fast", 32.0)),
        "beta_slow": float(said.get("yarn_beta_slow", 1.0)),
    }


def _llama3(head: Head, theta: float) -> dict[str, Any]:
    """Llama 3's scaling, which GGUF stores as the divisor of each frequency.

    The divisors depend on four numbers. Every released model has the same three, and the fourth is
    the largest divisor; the result is checked against the file.
    """
    divisors = _read_divisors(head)
    factor = round(max(divisors), 4)
    for index, divisor in enumerate(divisors):
        wavelength = 2 * math.pi * theta ** (2 * index / (2 * len(divisors)))
        expected = _llama3_divisor(wavelength, factor)
        if not math.isclose(divisor, expected, rel_tol=1e-4):
            raise _unknown(head, "of frequencies one by one")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def _llama3_divisor(wavelength: float, factor: float) -> float:
    if wavelength < _LLAMA3_CONTEXT / _LLAMA3_HIGH:
        return 1.0
    if wavelength > _LLAMA3_CONTEXT / _LLAMA3_LOW:
        return factor
    smooth = (_LLAMA3_CONTEXT / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    return 1 / ((1 - smooth) / factor + smooth)


def _read_divisors(head: Head) -> list[float]:
    from array import array

    entry = next(t for t in head.tensors if t.name == "rope_freqs.weight")
    if entry.type_id != 0:  # float32
        raise _unknown(head, "of frequencies in a type other than float32")
    with head.path.open("rb") as file:
        file.seek(entry.offset)
        divisors = array("f", file.read(entry.size))
    return list(divisors)


def _unknown(head: Head, kind: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{head.path} scales its rotary embedding ({kind}) in a way that is not supported for "
        "GGUF files; use the model's folder in Hugging Face layout"
    )
