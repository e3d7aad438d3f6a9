"""A model of transformers as a draft model: its layers in few bits, its own embedding and head.

Drafts are verified, so the draft model may be coarse. The copy holds the layers in few bits, and an
output head for the most frequent tokens; the rows of other tokens that occur in a text are read
from the model's own head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from paceline.kernels.packing import Storage
from paceline.targets.decoder import Decoder
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.dense.loading import from_weights
from paceline.targets.hf.choice import Look, decoder_of, look_at
from paceline.targets.hf.fingerprint import Fingerprint
from paceline.targets.hf.lean import named_weights

_LAST = 1024
"""Tokens kept from the end of a vocabulary: those that structure a text have the highest ids."""


def draft_decoder_of(
    model: nn.Module,
    *,
    storage: Storage = "auto",
    head_tokens: int | None = None,
    look: Look | None = None,
) -> Decoder:
    """A decoder to draft with; the model itself is not changed.

    It is made once per model, storage and head, and again when weights have changed.

    Args:
        model: a causal language model of transformers.
        storage: how the layers are kept; "auto" and "plain" share the model's own weights.
        head_tokens: cut the output head to this many of the lowest ids, which are the most frequent
            tokens in tokenizers that number by frequency; None leaves it whole.
        look: what `choice.look_at` has just returned.

    Raises:
        InvalidInput, UnsupportedModel: see `choice.decoder_of`.
    """
    look = look_at(model) if look is None else look
    model = look.model
    shares = storage in ("auto", "plain") and head_tokens is None
    if shares or not look.is_lean:
        return decoder_of(model, look)
    key = _Key(look.mark, _versions(model), storage, head_tokens)
    made = _MADE.get(model)
    if made is None or made[0] != key:
        made = key, _copy_of(model, storage, head_tokens)
        _MADE[model] = made
    return made[1]


class _Key(NamedTuple):
    """What a coarse copy was made of."""

    mark: Fingerprint | None
    versions: tuple[tuple[int, int], ...]
    storage: Storage
    head_tokens: int | None


_MADE: WeakKeyDictionary[nn.Module, tuple[_Key, DenseDecoder]] = WeakKeyDictionary()


def _copy_of(model: nn.Module, storage: Storage, head_tokens: int | None) -> DenseDecoder:
    config: Any = model.config
    weights = named_weights(model)
    return from_weights(
        weights,
        config,
        dtype=weights["model.embed_tokens.weight"].dtype,
        storage=storage,
        # int8 is hardly faster than bfloat16, and the head needs precision to rank close tokens.
        head_storage="auto" if storage == "int8" else storage,
        head_ids=None if head_tokens is None else head_ids(model, head_tokens),
    )


def head_ids(model: Any, head_tokens: int) -> Tensor:
    """The lowest ids, the highest, and those that begin or end a text, in rising order."""
    size: int = model.config.vocab_size
    named: set[int] = set()
    for source in (model.config, getattr(model, "generation_config", None)):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            named.update(_numbers(getattr(source, name, None)))
    ids = {*range(min(head_tokens, size)), *range(max(0, size - _LAST), size), *named}
    return torch.tensor(sorted(token for token in ids if 0 <= token < size))


def _numbers(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _versions(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """The address of each weight, and how often it was written to."""
    return tuple(
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        for weight in model.parameters()
    )
