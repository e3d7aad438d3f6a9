"""Tiny byte-level models of a real text, for the benchmarks that train from scratch.

The text is that of Python's own help (`pydoc_data.topics`, PSF licence), which every Python has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig

VOCAB, LENGTH = 256, 128
HELD_OUT = 20
"""One piece of the text in so many is held out."""


def config(width: int, layers: int) -> LlamaConfig:
    """The configuration of a model."""
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )


def pieces() -> tuple[Tensor, Tensor]:
    """The text in pieces `[n, LENGTH + 1]`, to learn from and held out."""
    text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    count = len(text) // (LENGTH + 1)
    cut = torch.tensor(list(text[: count * (LENGTH + 1)])).view(count, LENGTH + 1)
    is_held_out = torch.arange(count) % HELD_OUT == 0
    return cut[~is_held_out], cut[is_held_out]


def fit(
    parameters: Iterable[nn.Parameter],
    texts: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    steps: int,
    rate: float,
    batch: int = 16,
    seed: int = 0,
) -> None:
    """Train: AdamW, a rise over 30 steps and half a cosine, gradients clipped at 1."""
    kept = [one for one in parameters if one.requires_grad]
    optimizer = torch.optim.AdamW(kept, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    random = torch.Generator().manual_seed(seed)
    for step in range(steps):
        share = min(1.0, (step + 1) / 30) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * share
        optimizer.zero_grad()
        loss(texts[torch.randint(len(texts), (batch,), generator=random)]).backward()
        nn.utils.clip_grad_norm_(kept, 1.0)
        optimizer.step()


def cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean over all rows."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), tokens.flatten())


@torch.no_grad()
def bits_per_byte(logits_of: Callable[[Tensor], Tensor], texts: Tensor) -> float:
    """Of the next byte, on held-out pieces."""
    found = [cross_entropy(logits_of(part[:, :-1]), part[:, 1:]) for part in texts.split(64)]
    return float(torch.stack(found).mean()) / math.log(2)


@torch.no_grad()
def written(model: Any, prompts: Tensor, count: int) -> Tensor:
    """The prompts with `count` more bytes, which a model writes greedily."""
    found: Tensor = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=count,
        do_sample=False,
    )
    return found
