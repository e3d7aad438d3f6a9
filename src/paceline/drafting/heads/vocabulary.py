"""A head's own vocabulary: often only the target's most frequent tokens.

Source: FR-Spec, Zhao et al. 2502.14856; EAGLE-3 (2503.01840), whose files give the ids as offsets.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.drafting.model import fit
from paceline.errors import InvalidInput


def spread(logits: Tensor, token_ids: Tensor | None, vocab_size: int) -> Tensor:
    """Logits of a head's outputs as logits of the target's tokens, on the CPU, at least float32.

    Tokens that the head does not have get -inf: it never proposes them.

    Args:
        logits: `[m, Vh]`.
        token_ids: `[Vh]`, the target's id of each output; None if output i is token i, and then
            missing tokens at the end are those that the head lacks.
        vocab_size: V of the target.

    Returns:
        `[m, V]`.

    Example:
        >>> spread(torch.tensor([[1.0, 2.0]]), torch.tensor([0, 2]), 4)
        tensor([[1., -inf, 2., -inf]])
    """
    logits = logits.to("cpu", torch.promote_types(logits.dtype, torch.float32))
    if token_ids is None:
        return fit(logits, vocab_size)
    whole = logits.new_full((len(logits), vocab_size), -math.inf)
    return whole.index_copy_(1, token_ids, logits)


def check_token_ids(name: str, token_ids: Tensor, vocab_size: int | None) -> Tensor:
    """Token ids of a head's outputs, as int64; each at most once and within the vocabulary.

    Args:
        name: of the head, for the message.
        token_ids: `[Vh]`.
        vocab_size: V of the target; None if it is not known.

    Raises:
        InvalidInput: an id is outside the target's vocabulary, or occurs twice.

    Example:
        >>> check_token_ids("a head", torch.tensor([0, 2], dtype=torch.int32), 4)
        tensor([0, 2])
    """
    ids = token_ids.to("cpu", torch.int64).flatten()
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        outside = low if low < 0 else high
        limit = "" if vocab_size is None else f", whose tokens are 0 to {vocab_size - 1}"
        raise InvalidInput(
            f"{name} proposes token {outside}, which its target does not have{limit}; it belongs "
            "to another target"
        )
    if len(set(ids.tolist())) < len(ids):
        raise InvalidInput(f"{name} names a token twice in its vocabulary; the file is damaged")
    return ids
