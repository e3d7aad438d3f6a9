"""Whether a draft model's token ids mean the same text as the target's."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInput

if TYPE_CHECKING:
    from paceline.core.target import TargetInfo

log = logging.getLogger("paceline")

PADDING = 0.01
"""Vocabularies of one tokenizer differ only by padding, which is less than this share of them."""


def check_same_tokenizer(ours: Any, theirs: Any, *, target: str, draft: str) -> None:
    """Raise unless both models' tokenizers map the same ids to the same text.

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
            f"{len(extra)} tokens are in only one vocabulary and {len(differing)} have different "
            "ids; choose a draft model of the same family, or the drafter 'universal' "
            "(--drafter universal), which takes another tokenizer"
        )


def warn_of_vocabularies(target: TargetInfo, draft: TargetInfo) -> None:
    """If tokenizers cannot be compared: warn once if the sizes differ by more than padding."""
    if abs(target.vocab_size - draft.vocab_size) > PADDING * target.vocab_size:
        _warn_once(target.name, target.vocab_size, draft.name, draft.vocab_size)


@functools.lru_cache(maxsize=1024)
def _warn_once(target: str, target_size: int, draft: str, draft_size: int) -> None:
    log.warning(
        "the draft model %s has a vocabulary of %d tokens and %s one of %d: if their tokenizers "
        "differ, hardly any draft token will be accepted",
        draft,
        draft_size,
        target,
        target_size,
    )
