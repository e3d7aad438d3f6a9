"""A model whose answers go round in a circle of eight tokens, whatever the prompt."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests import tiny_folders

PERIOD, STEP, FIRST, WIDTH = 8, 3, 40, 32


def save(folder: Path) -> Path:
    """A folder to load: token t is followed by `FIRST + (t + STEP) % PERIOD`.

    The layers add nothing, an embedding says which of eight classes its token is of, and the head
    reads it.
    """
    words = tiny_folders.tokenizer()
    config = LlamaConfig(
        vocab_size=tiny_folders.PADDED_VOCAB,
        hidden_size=WIDTH,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        tokens = torch.arange(tiny_folders.PADDED_VOCAB)
        classes = torch.eye(PERIOD, WIDTH)
        model.model.embed_tokens.weight.copy_(classes[tokens % PERIOD])
        model.lm_head.weight.zero_()
        for token in range(PERIOD):
            model.lm_head.weight[FIRST + (token + STEP) % PERIOD] = 2 * classes[token]
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def text(first: int, length: int) -> list[int]:
    """A text of the language."""
    tokens = [FIRST + first]
    while len(tokens) < length:
        tokens.append(FIRST + (tokens[-1] + STEP) % PERIOD)
    return tokens


def prompts(count: int) -> list[str]:
    """Texts that differ."""
    return [f"{'the stop ' * (n % 3)}{chr(97 + n % 26)} {n}" for n in range(count)]
