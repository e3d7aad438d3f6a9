"""Tiny seeded models of many families, in float32, whose logits depend on all of the context."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights

VOCAB = 64

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 8}
_ONE_EACH = {**_SIZES, "num_key_value_heads": 4}
_MIXED_LAYERS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 48,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}

Family = tuple[str, dict[str, Any]]

FAMILIES: dict[str, Family] = {
    "llama": ("Llama", _GROUPED),
    "qwen2": ("Qwen2", _GROUPED),
    "qwen3": ("Qwen3", _GROUPED),
    "gpt2": ("GPT2", {**_GPT2, "n_positions": 128}),
    "mistral": ("Mistral", {**_GROUPED, "sliding_window": None}),
    "mistral-window": ("Mistral", {**_GROUPED, "sliding_window": 8}),
    "phi": ("Phi", _ONE_EACH),
    "phi3": ("Phi3", {**_GROUPED, "sliding_window": 8}),
    "gpt_neox": ("GPTNeoX", _SIZES),
    "gemma": ("Gemma", _GROUPED),
    "gemma2": ("Gemma2", {**_GROUPED, **_MIXED_LAYERS, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3", {**_GROUPED, **_MIXED_LAYERS}),
    "olmo2": ("Olmo2", _ONE_EACH),
    "granite": ("Granite", {**_ONE_EACH, "attention_multiplier": 0.3}),
    "cohere": ("Cohere", _ONE_EACH),
    "stablelm": ("StableLm", _ONE_EACH),
    "opt": ("OPT", {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "mixtral": ("Mixtral", {**_GROUPED, **_EXPERTS}),
    "gpt_oss": ("GptOss", {**_GROUPED, **_MIXED_LAYERS, **_EXPERTS}),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **_ONE_EACH,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
    ),
}
"""The model classes by their first names, with settings that bring out what is special."""

WINDOWED = ("mistral-window", "phi3", "gemma2", "gemma3", "gpt_oss")


def build(name: str, **changes: Any) -> Any:
    """A fresh model of one of `FAMILIES`, with settings changed."""
    family, settings = FAMILIES[name]
    kind = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(**{**settings, **changes})
    return randomise(lambda: getattr(transformers, f"{family}{kind}")(config))


def randomise(make: Callable[[], nn.Module], seed: int = 0) -> Any:
    """The model that `make` makes, in evaluation mode, every weight large enough to matter."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter)
                if parameter.dim() > 1:
                    parameter.copy_(0.25 * noise)
                else:
                    parameter.add_(0.1 * noise)
    return model


@cache
def tiny(name: str) -> Any:
    """A model to share between tests, which must leave it as it is."""
    return build(name)


def lean_target(model: Any, **options: Any) -> CachedTarget:
    """A tiny model behind the lean decoder, in float32; see `CachedTarget` for options."""
    decoder = from_weights(model.state_dict(), model.config, dtype=torch.float32)
    return CachedTarget(decoder, **options)


def own_logits(model: Any, tokens: Any) -> Tensor:
    """The logits `[len(tokens), V]` of the model's own pass over a sequence, without a cache."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits


def tokens_of(count: int, seed: int = 0) -> tuple[int, ...]:
    """Random token ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, VOCAB, (count,), generator=generator).tolist())
