"""Tiny models of transformers, written as GGUF files the way llama.cpp's converter writes them.

The model that was written is the oracle of the one that is read back.
"""

import math

import gguf
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    Gemma3TextConfig,
    Glm4Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    Starcoder2Config,
)

from tests import tiny_tokenizers

TOKENIZER = tiny_tokenizers.byte_level(chat_template=tiny_tokenizers.CHAT_TEMPLATE)
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
SHAPE = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "bos_token_id": TOKENIZER.bos_token_id,
    "eos_token_id": TOKENIZER.eos_token_id,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
GEMMA3 = {
    "head_dim": 16,
    "query_pre_attn_scalar": 256,  # GGUF does not hold it; transformers assumes this one
    "sliding_window": 8,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "tie_word_embeddings": True,
}
GPT2 = {
    "vocab_size": len(TOKENIZER),
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 128,
    "bos_token_id": TOKENIZER.bos_token_id,
    "eos_token_id": TOKENIZER.eos_token_id,
}
PARTIAL = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
FOUR_LAYERS = SHAPE | {"num_hidden_layers": 4}  # those that differ do so at each fourth layer
GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.3,
    "logits_scaling": 4.0,
}
PHI = {"partial_rotary_factor": 0.5, "intermediate_size": 128, "num_key_value_heads": 4}
OWN_CONFIGS = {
    "glm4": Glm4Config(**SHAPE | {"rope_parameters": PARTIAL}, head_dim=16),
    "glm4, yarn": Glm4Config(**SHAPE | {"rope_parameters": PARTIAL | YARN}, head_dim=16),
    "granite": GraniteConfig(**SHAPE, **GRANITE),
    "granite, linear and biased": GraniteConfig(
        **SHAPE | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
        **GRANITE,
        attention_bias=True,
        mlp_bias=True,
    ),
    # Its converter stores no base frequency: it is 10,000.
    "phi2": PhiConfig(**SHAPE | PHI | {"rope_parameters": PARTIAL | {"rope_theta": 10000.0}}),
    "cohere2": Cohere2Config(
        **FOUR_LAYERS | {"tie_word_embeddings": True}, logit_scale=0.25, sliding_window=8
    ),
    "olmo2": Olmo2Config(**SHAPE),
    "olmo3": Olmo3Config(
        **FOUR_LAYERS
        | {
            "rope_parameters": {
                "sliding_attention": SHAPE["rope_parameters"],
                "full_attention": YARN,
            }
        },
        sliding_window=8,
    ),
    "smollm3": SmolLM3Config(**FOUR_LAYERS),
    "smollm3, tied": SmolLM3Config(**FOUR_LAYERS | {"tie_word_embeddings": True}),
}
"""Of architectures that transformers does not read from GGUF."""
CONFIGS = OWN_CONFIGS | {
    "llama": LlamaConfig(**SHAPE),
    "llama, tied": LlamaConfig(**SHAPE | {"tie_word_embeddings": True}),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
    "phi3": Phi3Config(**SHAPE),
    "phi3, windowed": Phi3Config(**SHAPE, sliding_window=8),
    "starcoder2": Starcoder2Config(**SHAPE | {"sliding_window": None}),
    "gemma3": Gemma3TextConfig(**SHAPE | GEMMA3),
    "gpt2": GPT2Config(**GPT2),
    "gpt2, untied": GPT2Config(**GPT2, tie_word_embeddings=False),
    "qwen3moe": Qwen3MoeConfig(
        **SHAPE,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        head_dim=8,
        norm_topk_prob=True,
    ),
}


def make_model(config, seed=0):
    """The model of a config, with weights that are nowhere the same."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return model


def write_gguf(
    path, model, *, architecture=None, quantise=None, change=None, tensors=None, split=0
):
    """Write `model` as GGUF.

    `change(writer)` may add metadata; `tensors(dict)` may change the tensors;
    `split` is the most tensors a file, 0 keeps them together.
    """
    config = model.config
    architecture = architecture or {
        "gemma3_text": "gemma3",
        "qwen3_moe": "qwen3moe",
        "phi": "phi2",
        "olmo3": "olmo2",
    }.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    _write_config(writer, config)
    _write_tokenizer(writer)
    if change:
        change(writer)
    arrays = _arrays(model, architecture)
    if tensors:
        tensors(arrays)
    for name, array in arrays.items():
        if quantise and array.ndim == 2 and array.shape[-1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(array, quantise), raw_dtype=quantise)
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_config(writer, config):
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    if config.model_type == "phi":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_layer_norm_eps(config.layer_norm_eps)
        rotated = config.rope_parameters["partial_rotary_factor"] * config.hidden_size
        writer.add_rope_dimension_count(int(rotated) // config.num_attention_heads)
        return
    if config.model_type not in ("glm4", "olmo2", "olmo3"):
        writer.add_vocab_size(config.vocab_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "starcoder2":
        writer.add_layer_norm_eps(config.norm_epsilon)
        return
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if config.model_type not in ("olmo2", "olmo3"):
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if config.model_type == "cohere2":
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_logit_scale(config.logit_scale)
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        return
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.model_type in ("gemma3_text", "qwen3", "qwen3_moe", "glm4"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    _write_own(writer, config, rope)
    if config.model_type == "qwen3_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _write_own(writer, config, rope):
    """What only the architectures of `OWN_CONFIGS` have."""
    if config.model_type == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if config.model_type == "olmo3":
        windowed = [kind == "sliding_attention" for kind in config.layer_types]
        writer.add_sliding_window_pattern(windowed)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if config.model_type == "olmo3":
            writer.add_rope_scaling_attn_factors(0.1 * math.log(rope["factor"]) + 1)


def _write_tokenizer(writer):
    import json

    tokens = TOKENIZER.convert_ids_to_tokens(list(range(len(TOKENIZER))))
    added = TOKENIZER.added_tokens_decoder
    kinds = [
        NORMAL if i not in added else CONTROL if added[i].special else USER_DEFINED
        for i in range(len(tokens))
    ]
    merges = json.loads(TOKENIZER.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(TOKENIZER.bos_token_id)
    writer.add_eos_token_id(TOKENIZER.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny_tokenizers.CHAT_TEMPLATE)


def _arrays(model, architecture):
    """The tensors under their GGUF names, with llama.cpp's changes to their values."""
    config = model.config
    known = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    arrays, seen = {}, set()
    for hf_name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        array = tensor.detach().numpy()
        if hf_name.endswith("mlp.experts.gate_up_proj"):
            layer = hf_name.split(".")[2]
            gate, up = np.split(array, 2, axis=1)
            arrays[f"blk.{layer}.ffn_gate_exps.weight"] = gate
            arrays[f"blk.{layer}.ffn_up_exps.weight"] = up
            continue
        if hf_name.endswith("mlp.experts.down_proj"):
            arrays[f"blk.{hf_name.split('.')[2]}.ffn_down_exps.weight"] = array
            continue
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert name, hf_name
        arrays[name] = _as_llama_cpp(architecture, name, array, config)
    return arrays


def _as_llama_cpp(architecture, name, array, config):
    if architecture in ("llama", "granite", "smollm3") and (
        ".attn_q." in name or ".attn_k." in name
    ):
        heads = config.num_attention_heads if "_q." in name else config.num_key_value_heads
        half = array.shape[0] // heads // 2
        shape = (heads, 2, half, *array.shape[1:])
        return array.reshape(shape).swapaxes(1, 2).reshape(array.shape)
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return array + 1
    transposed = ("attn_qkv.weight", "ffn_down.weight", "ffn_up.weight", "attn_output.weight")
    if architecture == "gpt2" and name.endswith(transposed):
        return array.T
    return array
