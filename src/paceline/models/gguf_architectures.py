"""The configuration of GGUF files whose architecture transformers does not read from them.

llama.cpp stores a model's settings under names of its own, and some it does not store at all, since
its code for the architecture assumes them. Both are written down here, one function an
architecture. A setting that is not known here is refused: the model might be another one with it.

Source: llama.cpp, `conversion/` for what a file holds, `src/models/` for what is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UnsupportedModel
from paceline.models.gguf_file import Head
from paceline.models.rope import rope_parameters

_NAMES = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
_LAYER_NORM = {"attention.layer_norm_epsilon": "layer_norm_eps"}
_ROPE = (
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)
_IDLE = ("vocab_size", "rope.scaling.finetuned")
"""What the tensors say too, and what describes how the model was made."""
_FULL_ATTENTION_EVERY = 4


@dataclass(slots=True)
class Settings:
    """The settings of one file, of which none may be left unread.

    Args:
        head: the header of the file.
        values: the settings of its architecture, without the architecture's name before them.
        read: the names of those that have been read.
    """

    head: Head
    values: Mapping[str, Any] = field(init=False)
    read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        prefix = f"{self.head.architecture}."
        self.values = {
            key.removeprefix(prefix): _one_for_all_layers(value)
            for key, value in self.head.metadata.items()
            if key.startswith(prefix)
        }

    def get(self, name: str, default: Any = None) -> Any:
        """A setting, or `default` if the file does not hold it."""
        self.read.add(name)
        return self.values.get(name, default)

    def need(self, name: str) -> Any:
        """A setting without which the model is not known."""
        if name not in self.values:
            raise self.unsupported(f"does not say what {name!r} is")
        return self.get(name)

    def has_any(self, *names: str) -> bool:
        """Whether the file holds a tensor of one of these names."""
        return any(entry.name in names for entry in self.head.tensors)

    def rows(self, name: str) -> int:
        """The rows of a tensor."""
        found = [entry.shape[0] for entry in self.head.tensors if entry.name == name]
        if not found:
            raise self.unsupported(f"has no tensor {name!r}")
        return found[0]

    def check_all_read(self) -> None:
        """Refuse settings that nobody read."""
        if left := sorted(set(self.values) - self.read):
            raise self.unsupported(
                f"sets {', '.join(left[:3])}, which Paceline does not know of this architecture; "
                "leaving that out could change the result"
            )

    def unsupported(self, reason: str) -> UnsupportedModel:
        """An error that names the file and its architecture."""
        return UnsupportedModel(
            f"{self.head.path}, architecture {self.head.architecture!r}, {reason}"
        )


def _one_for_all_layers(value: Any) -> Any:
    """The value of a list that says the same of each layer; anything else as it is."""
    same = isinstance(value, list) and len(set(value)) == 1 and not isinstance(value[0], bool)
    return value[0] if same else value


def read_config(head: Head) -> Any:
    """The config of transformers for a file of one of `ARCHITECTURES`.

    Special tokens and tied embeddings are left to the caller, who reads them for every file.

    Raises:
        UnsupportedModel: a setting is missing or unknown.
    """
    from transformers import CONFIG_MAPPING

    settings = Settings(head)
    common = {config: settings.need(name) for name, config in _NAMES.items()}
    heads = common["num_attention_heads"]
    common["num_key_value_heads"] = settings.get("attention.head_count_kv", heads)
    common["vocab_size"] = settings.rows("token_embd.weight")
    if head_dim := settings.get("attention.key_length"):
        common["head_dim"] = head_dim
    if settings.get("attention.value_length", head_dim) != head_dim:
        raise settings.unsupported("has values of another length than its keys")
    model_type, own = ARCHITECTURES[head.architecture](settings, common)
    for name in _IDLE:
        settings.get(name)
    settings.check_all_read()
    ends = {f"{name}_token_id": None for name in ("bos", "eos", "pad")}
    return CONFIG_MAPPING[model_type](**common | ends | own)


Read = tuple[str, dict[str, Any]]
"""The `model_type` of the config, and the settings that only this type has."""


def _glm4(settings: Settings, common: Mapping[str, Any]) -> Read:
    return "glm4", {
        **_named(settings, _RMS),
        "attention_bias": settings.has_any("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"),
        "rope_parameters": _rope(settings, common, partial=True),
    }


def _granite(settings: Settings, common: Mapping[str, Any]) -> Read:
    if not settings.get("rope.scaling.finetuned", True):
        raise settings.unsupported("has no rotary positions, which its model class would add")
    # A Granite 4 model without recurrent layers keeps the settings of those that have them.
    for name in settings.values:
        if name.startswith(("ssm.", "expert_")):
            settings.get(name)
    head_dim = _head_dim(common)
    return "granite", {
        **_named(settings, _RMS),
        # Of such a model the setting is that of experts, which it has none of.
        "intermediate_size": settings.rows("blk.0.ffn_up.weight"),
        "embedding_multiplier": settings.get("embedding_scale") or 1.0,
        "residual_multiplier": settings.get("residual_scale") or 1.0,
        "attention_multiplier": settings.get("attention.scale") or head_dim**-0.5,
        "logits_scaling": settings.need("logit_scale"),
        "attention_bias": settings.has_any("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"),
        "mlp_bias": settings.has_any("blk.0.ffn_up.bias"),
        "rope_parameters": _rope(settings, common),
    }


def _phi2(settings: Settings, common: Mapping[str, Any]) -> Read:
    return "phi", {
        **_named(settings, _LAYER_NORM),
        "rope_parameters": _rope(settings, common, partial=True),
    }


def _cohere2(settings: Settings, common: Mapping[str, Any]) -> Read:
    return "cohere2", {
        **_named(settings, _LAYER_NORM),
        "logit_scale": settings.need("logit_scale"),
        "sliding_window": settings.need("attention.sliding_window"),
        "layer_types": _layer_types(settings, common),
        "attention_bias": settings.has_any("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"),
        "tie_word_embeddings": True,
        "rope_parameters": _rope(settings, common),
    }


def _olmo2(settings: Settings, common: Mapping[str, Any]) -> Read:
    """OLMo 2, and OLMo 3, which has the same architecture with a window for most layers."""
    rope = _rope(settings, common)
    own = {
        **_named(settings, _RMS),
        "attention_bias": settings.has_any("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"),
    }
    window = settings.get("attention.sliding_window", 0)
    if not window:
        return "olmo2", {**own, "rope_parameters": rope}
    return "olmo3", {
        **own,
        "sliding_window": window,
        "layer_types": _layer_types(settings, common),
        # The scaling is for the layers that see everything.
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": rope["rope_theta"]},
        },
    }


def _smollm3(settings: Settings, common: Mapping[str, Any]) -> Read:
    layers = range(1, common["num_hidden_layers"] + 1)
    return "smollm3", {
        **_named(settings, _RMS),
        "no_rope_layers": [int(layer % _FULL_ATTENTION_EVERY != 0) for layer in layers],
        "attention_bias": settings.has_any("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"),
        "mlp_bias": settings.has_any("blk.0.ffn_up.bias"),
        "rope_parameters": _rope(settings, common),
    }


ARCHITECTURES: Mapping[str, Callable[[Settings, Mapping[str, Any]], Read]] = {
    "cohere2": _cohere2,
    "glm4": _glm4,
    "granite": _granite,
    "olmo2": _olmo2,
    "phi2": _phi2,
    "smollm3": _smollm3,
}
"""How each architecture that is read here becomes a config, by its name in GGUF."""

PERMUTED = frozenset({"granite", "smollm3"})
"""Those whose query and key rows llama.cpp permutes, as it does for `llama`."""


def _named(settings: Settings, names: Mapping[str, str]) -> dict[str, Any]:
    return {config: settings.need(name) for name, config in names.items()}


def _head_dim(common: Mapping[str, Any]) -> int:
    return int(common.get("head_dim") or common["hidden_size"] // common["num_attention_heads"])


def _layer_types(settings: Settings, common: Mapping[str, Any]) -> list[str]:
    """Which layers see a window: every one but each fourth, if the file does not say."""
    count = common["num_hidden_layers"]
    pattern = settings.get("attention.sliding_window_pattern", _FULL_ATTENTION_EVERY)
    if isinstance(pattern, int):
        pattern = [(layer + 1) % pattern != 0 for layer in range(count)]
    if len(pattern) != count:
        raise settings.unsupported(f"says of {len(pattern)} of {count} layers what they see")
    return ["sliding_attention" if windowed else "full_attention" for windowed in pattern]


def _rope(
    settings: Settings, common: Mapping[str, Any], *, partial: bool = False
) -> dict[str, Any]:
    """The rotary positions; `partial` if the model class can rotate a part of each head."""
    for name in _ROPE:
        settings.get(name)
    base = {"rope_type": "default", "rope_theta": settings.get("rope.freq_base", 10000.0)}
    head_dim = _head_dim(common)
    rotated = settings.get("rope.dimension_count", head_dim)
    if partial:
        base["partial_rotary_factor"] = _fraction(rotated, head_dim)
    elif rotated != head_dim:
        raise settings.unsupported(
            f"rotates {rotated} of {head_dim} dimensions, and its model class rotates all"
        )
    return dict(rope_parameters(settings.head, base) or base)


def _fraction(part: int, whole: int) -> float:
    """`part / whole`, rounded so that `int(whole * fraction)` is `part` again."""
    fraction = part / whole
    return fraction if int(whole * fraction) == part else math.nextafter(fraction, math.inf)
