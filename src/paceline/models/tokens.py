"""A model's tokenizer, and the tokens that end its answers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.models.cache import read_json
from paceline.models.gguf_file import Head
from paceline.models.reasons import one_line, what_transformers_raises

END_OF_ANSWER = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<|return|>",
        "<EOT>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
"""The control tokens that end an answer in common chat formats."""


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a folder in Hugging Face layout.

    Raises:
        ModelError: it has none, or one that cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except what_transformers_raises() as error:
        raise ModelError(
            f"cannot load a tokenizer from {folder} ({one_line(error):.300})"
        ) from error


def eos_token_ids(*sources: Any) -> frozenset[int]:
    """The tokens that end an answer, from the first source that names any.

    `generate` of transformers only uses the generation config, so put that first to get the same
    answers: `eos_token_ids(model.generation_config, model.config, tokenizer)`.

    Args:
        sources: generation configs, configs and tokenizers, or the folder of a model (whose
            generation config comes before its config).

    Example:
        >>> from types import SimpleNamespace
        >>> sorted(eos_token_ids(None, SimpleNamespace(eos_token_id=[7, 5])))
        [5, 7]
    """
    for source in sources:
        for value in _named(source):
            if value is not None:
                return frozenset([value] if isinstance(value, int) else map(int, value))
    return frozenset()


def end_token_ids(head: Head) -> list[int]:
    """The tokens that end an answer: first the one that the file names, then the others.

    GGUF names one end of text and at most one end of turn and of message, but chat models use
    others too. As in llama.cpp, a control token with a well-known name counts, except the unknown
    token, to which some vocabularies give such a name.
    """
    metadata = head.metadata
    named = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    control, unknown = 3, metadata.get("tokenizer.ggml.unknown_token_id")
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    known = [
        token
        for token, (text, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == control and text in END_OF_ANSWER and token != unknown
    ]
    return list(dict.fromkeys([*(token for token in named if token is not None), *known]))


def _named(source: Any) -> Iterable[int | Iterable[int] | None]:
    if not isinstance(source, (str, Path)):
        yield getattr(source, "eos_token_id", None)
        return
    for name in ("generation_config.json", "config.json"):
        yield (read_json(Path(source) / name) or {}).get("eos_token_id")
