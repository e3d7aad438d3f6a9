"""A tiny model with its tokenizer in a folder, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny_models import build
from tests.tiny_tokenizers import CHAT_TEMPLATE, byte_level

PADDED_VOCAB = 320
"""The size of the models' vocabularies, a little more than the tokenizer's."""


def tokenizer(**options: Any) -> Any:
    return byte_level(chat_template=CHAT_TEMPLATE, **options)


def model(family: str = "llama", **changes: Any) -> Any:
    settings = {"vocab_size": PADDED_VOCAB, "max_position_embeddings": 256, **changes}
    return build(family, **settings)


def save(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """A folder to load. The model ends its answers with `</s>`."""
    words = tokenizer()
    model(family, eos_token_id=words.eos_token_id, **changes).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
