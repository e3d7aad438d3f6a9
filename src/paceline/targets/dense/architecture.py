"""The architecture of a model of the Llama family, read from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import UnsupportedModel
from paceline.targets.decoder import mask_token_of

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma"})

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a configuration says about the architecture of a model of the Llama family."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    norm_offset: float
    embedding_scale: float
    activation: str
    max_length: int
    tied: bool
    inverse_frequencies: Tensor
    rotary_scale: float
    mask_token: int | None = None

    @classmethod
    def of(cls, config: Any) -> Architecture:
        """Read a `transformers` configuration.

        Raises:
            UnsupportedModel: another family, or a feature that this decoder does not compute;
                `targets.hf` may.
        """
        if reason := unsupported(config):
            raise UnsupportedModel(f"the lean decoder does not take this model: {reason}")
        gemma = config.model_type == "gemma"
        head_dim = getattr(config, "head_dim", None)
        frequencies, scale = _rotary(config)
        return cls(
            name=config.name_or_path or config.model_type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim or config.hidden_size // config.num_attention_heads,
            norm_eps=config.rms_norm_eps,
            norm_offset=1.0 if gemma else 0.0,
            embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
            activation=config.hidden_act,
            max_length=config.max_position_embeddings,
            tied=bool(config.tie_word_embeddings),
            inverse_frequencies=frequencies,
            rotary_scale=scale,
            mask_token=mask_token_of(config),
        )

    @property
    def num_weights(self) -> int:
        """See `TargetInfo.num_weights`."""
        heads = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        return self.num_layers * self.hidden_size * (heads + 3 * self.intermediate_size)


def unsupported(config: Any) -> str | None:
    """Why the lean decoder cannot take a model of this configuration; None if it can."""
    if config.model_type not in FAMILIES:
        return f"the family {config.model_type!r} is not one of {', '.join(sorted(FAMILIES))}"
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()) or (
        config.model_type == "mistral" and config.sliding_window is not None
    ):
        return "some layers see a sliding window"
    if getattr(config, "use_bidirectional_attention", None):
        return "its attention sees later tokens"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantized"
    if config.hidden_act not in ACTIVATIONS:
        return f"the activation {config.hidden_act!r}"
    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in ("default", "linear", "llama3", "yarn"):
        return f"rotary positions of type {kind!r}"
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        return "partial rotary positions"
    return None


def _rotary(config: Any) -> tuple[Tensor, float]:
    """The inverse frequencies `[head_dim / 2]` and the scale of cosines and sines."""
    kind = config.rope_parameters.get("rope_type", "default")
    if kind != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config)
        return frequencies.float(), float(scale)
    head_dim = getattr(config, "head_dim", None)
    dim = head_dim or config.hidden_size // config.num_attention_heads
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return config.rope_parameters["rope_theta"] ** -exponents, 1.0
