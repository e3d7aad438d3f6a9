"""The fingerprint of a tokenizer: equal if the same ids mean the same tokens."""

from __future__ import annotations

import hashlib
from typing import Any


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Thirty-two hexadecimal digits computed from the vocabulary, including the ids.

    Args:
        tokenizer: a tokenizer of transformers.
    """
    digest = hashlib.sha256()
    for token, number in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        digest.update(f"{number} {token!r}\n".encode())
    return digest.hexdigest()[:32]
