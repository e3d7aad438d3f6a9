r"""How a byte-level tokenizer splits text before merging, by the name in a GGUF file.

A GGUF file contains the vocabulary and the merges, but only the name of the split. Merges that were
learned with one split give other tokens with another, so an unknown name is refused. The patterns
are those of the models' own tokenizers; each splits the pieces left by the previous one into
matches and the text between them. Source of the names: llama.cpp, `llama-vocab.cpp`.
"""

from __future__ import annotations

import warnings
from typing import Any

from paceline.errors import UnsupportedModel
from paceline.models.gguf_file import Head

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_MARKED_WORD = rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACE}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_MARKS}|{_SPACE}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
)
_TEKKEN = rf"{_CASED % ('', '')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_GPT4O = (
    rf"{_CASED % (_CONTRACTION + '?', _CONTRACTION + '?')}|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACE}",
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
            "dbrx",
            "smaug-bpe",
            "glm4",
            "chatglm-bpe",
        ),
        (_LLAMA3,),
    ),
    **dict.fromkeys(
        (
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ),
        (_QWEN2,),
    ),
    "qwen35": (_QWEN35,),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), (_GPT4O,)),
    **dict.fromkeys(
        (
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ),
        (_DIGIT, GPT2),
    ),
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ),
        (GPT2,),
    ),
    "falcon": (r"[\p{P}$+<=>^~|`]+", GPT2, r"[0-9][0-9][0-9]"),
    "default": (r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "deepseek-coder": (
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), (_BLOOM,)),
    "viking": (_BLOOM, _DIGIT),
    "seed-coder": (rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}",),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    "minicpm5": (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_MARKS}|{_SPACE}"),
    "ufakzeka": (rf"{_WORD}|\p{{N}}|{_MARKS}|{_SPACE}",),
    "laguna": (r"[^\n]+|[\n]+", _QWEN2),
    "exaone-moe": (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
}
"""The patterns by name, in the order in which they split."""

WHOLE_WORDS = frozenset(
    {
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "tekken",
        "minicpm5",
    }
)
"""Those for which a piece that is a token is that token, whatever its merges would give."""


def set_pre_tokenizer(tokenizer: Any, head: Head) -> None:
    """Set the split that the file names; does nothing if its tokenizer is not byte-level BPE.

    Args:
        tokenizer: a `PreTrainedTokenizerFast` made from the file; changed in place.
        head: the header of the file.

    Raises:
        UnsupportedModel: the name is unknown.
    """
    if head.metadata.get("tokenizer.ggml.model") != "gpt2":
        return
    name = head.metadata.get("tokenizer.ggml.pre")
    if not name:
        warnings.warn(
            f"{head.path.name} does not say how its tokenizer splits text (tokenizer.ggml.pre), as "
            "files of early 2024 do not; GPT-2's split is assumed. A newer file is safer",
            stacklevel=2,
        )
        name = "gpt-2"
    if name not in SPLITS:
        raise UnsupportedModel(
            f"{head.path} splits text before its tokenizer merges in a way that is not supported "
            f"({name!r}); another split would give other tokens than the model was trained on, so "
            "use the model's folder in Hugging Face layout"
        )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer(name)
    tokenizer.backend_tokenizer.model.ignore_merges = name in WHOLE_WORDS


def pre_tokenizer(name: str) -> Any:
    """The pre-tokenizer of `tokenizers` for a name in `SPLITS`.

    >>> split = pre_tokenizer("smollm").pre_tokenize_str("in 2024")
    >>> [piece for piece, _ in split]
    ['in', 'Ġ', '2', '0', '2', '4']
    """
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    parts = [Split(Regex(pattern), behavior="isolated") for pattern in SPLITS[name]]
    return Sequence([*parts, ByteLevel(add_prefix_space=False, use_regex=False)])
