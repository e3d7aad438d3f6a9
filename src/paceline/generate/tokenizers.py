"""Whether a draft model means the same text by the same token ids as the target."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInput

if TYPE_CHECKING:
    from paceline.core.target import TargetInfo

log = logging.getLogger("paceline")

PADDING = 0.01
"""Vocabularies of one tokenizer differ by padding alone, which is less than this share of them."""


def check_same_tokenizer(ours: Any, theirs: Any, *, target: str, draft: str) -> None:
    """Raise unless both tokenizers, of the models named, mean the same text by the same ids.

    Padding of the vocabularies, which no text uses, may differ.
    """
    our_ids, their_ids = ours.get_vocab(), theirs.get_vocab()
    if our_ids == their_ids:
        return
    differing = [
        token for token, number in our_ids.items() if their_ids.get(token, number) != number
    ]
    extra = our_ids.keys() ^ their_ids.keys()
    if differing or len(extra) > PADDING * len(our_ids):
        raise InvalidInput(
            f"the draft model {draft} has another tokenizer than {target}: "
            f"{len(extra)} tokens stand in one vocabulary alone and {len(differing)} have another "
            "number; choose a draft model of the same family, or the drafter 'universal' "
            "(--drafter universal), which takes another tokenizer"
        )


def warn_of_vocabularies(target: TargetInfo, draft: TargetInfo) -> None:
    """Where tokenizers cannot be compared: say once if the sizes differ by more than padding."""
    if abs(target.vocab_size - draft.vocab_size) > PADDING * target.vocab_size:
        _warn_once(target.name, target.vocab_size, draft.name, draft.vocab_size)


@functools.lru_cache(maxsize=1024)
def _warn_once(target: str, target_size: int, draft: str, draft_size: int) -> None:
    log.warning(
        "the draft model %s has a vocabulary of %d tokens and %s one of %d: if their tokenizers "
        "differ, hardly a draft token will be accepted",
        draft,
        draft_size,
        target,
        target_size,
    )
