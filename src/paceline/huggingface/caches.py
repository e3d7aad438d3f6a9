"""From a cache of transformers into a slot of ours, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, GenerationConfig
from transformers.cache_utils import DynamicLayer

from paceline.errors import InvalidInput
from paceline.targets.cached import CachedTarget, Slot
from paceline.targets.probe import TOLERANCE


def visible_cache(
    config: GenerationConfig, inputs: Mapping[str, Any], num_rows: int
) -> Cache | None:
    """The cache that somebody will see afterwards, None where nobody will.

    That is the user's own, or the one that `generate` made where a dict is to be returned.

    Raises:
        InvalidInput: it holds another number of sequences.
    """
    cache: Cache | None = inputs.get("cache")
    users = getattr(cache, "_is_user_defined", False)
    if cache is None or not (users or config.return_dict_in_generate):
        return None
    keys = cache.layers[0].keys if cache.get_seq_length() else None
    if keys is not None and keys.dim() == 4 and len(keys) != num_rows:
        raise InvalidInput(
            f"the cache holds {len(keys)} sequences; the call decodes {num_rows} (prompts times "
            "num_return_sequences). Pass a cache for as many, or none"
        )
    return cache


def open_slot(
    target: CachedTarget,
    cache: Cache | None,
    row: int,
    padding: int,
    prompt: Sequence[int],
    max_tokens: int | None,
    stack: ExitStack,
) -> Slot | None:
    """A slot that outlives the engine's run, with what `cache` holds of the row; see `adopt`.

    None, so that the engine opens its own, without a cache. `stack` closes it.
    """
    if cache is None:
        return None
    limits = [target.info.max_length, None if max_tokens is None else len(prompt) + max_tokens]
    capacity = min((n for n in limits if n is not None), default=len(prompt))
    slot = target.open(capacity)
    stack.callback(target.close, slot)
    # A prompt that does not fit is refused by the engine.
    if cache.get_seq_length() and len(prompt) < capacity:
        adopt(target, slot, cache, row, padding, prompt)
    return slot


def adopt(
    target: CachedTarget, slot: Slot, cache: Cache, row: int, padding: int, prompt: Sequence[int]
) -> None:
    """Copy what a cache holds of a prompt into a fresh slot; the cache is not changed.

    The last copied token is computed anew and compared: its keys depend on all tokens before, so
    this finds the cache of another text or model, or one that is laid out in another way. Layers
    that keep less than the whole sequence, or in another form, are not read; then the engine
    computes the prompt.

    Args:
        target, slot: the slot is empty.
        cache: of transformers.
        row, padding: the row of the cache, and how many of its columns are padding.
        prompt: the row's tokens, without padding.

    Raises:
        InvalidInput: the cache does not belong to the prompt.
    """
    length = int(cache.get_seq_length())
    if length > padding + len(prompt):
        raise InvalidInput(
            f"the cache holds {length} tokens and input_ids {padding + len(prompt)}; input_ids "
            "must be the whole sequence, the tokens that are in the cache included"
        )
    known = min(length - padding, len(prompt) - 1)
    if known < 2 or any(type(layer) is not DynamicLayer for layer in cache.layers):
        return
    columns = slice(padding, padding + known)
    stored = [
        (layer.keys[row, :, columns], layer.values[row, :, columns]) for layer in cache.layers
    ]
    for number, (keys, values) in enumerate(stored):
        slot.cache.write(number, keys[:, :-1], values[:, :-1], 0)
    slot.cache.keep(range(known - 1))
    try:
        target.prefill(slot, prompt[known - 1 : known])
    except RuntimeError:  # keys of other shapes
        same = False
    else:
        computed = slot.cache.layers
        same = len(computed) == len(stored) and all(
            _close(ours[:, known - 1], theirs[:, -1])
            for pair, other in zip(computed, stored, strict=True)
            for ours, theirs in zip(pair, other, strict=True)
        )
    if not same:
        raise InvalidInput(
            "the cache does not hold what the model computes for the first tokens of input_ids; "
            "pass the cache that these tokens made, or none"
        )


def _close(ours: Tensor, theirs: Tensor) -> bool:
    """Equal but for the rounding of passes of other shapes, which adds up over the layers."""
    scale = theirs.abs().amax().clamp_min(torch.finfo(theirs.dtype).tiny)
    return bool((ours - theirs).abs().amax() <= TOLERANCE[theirs.dtype] * scale)


def extend(
    cache: Cache,
    target: CachedTarget,
    slots: Sequence[Slot],
    rows: Sequence[Sequence[int]],
    paddings: Sequence[int],
) -> bool:
    """Append to a cache of transformers what the slots hold beyond it.

    Afterwards it has all columns of the padded sequences but the last, as behind `generate`;
    padding is zeros.

    Args:
        cache: what `generate` made, or the user passed.
        target, slots: one slot a row.
        rows: the tokens of each row, without padding.
        paddings: the padding on the left of each.

    Returns:
        Whether it could be done: the layers of the cache must be those of the model.
    """
    width = max(padding + len(row) for padding, row in zip(paddings, rows, strict=True))
    for slot, row, padding in zip(slots, rows, paddings, strict=True):
        # The last token of a row that ended early does not stand in the last column.
        missing = row[target.length(slot) : width - 1 - padding]
        if missing:
            target.prefill(slot, missing)
    layers = [slot.cache.layers for slot in slots]
    if len(cache.layers) not in (0, len(layers[0])):
        return False
    start = int(cache.get_seq_length())
    for number in range(len(layers[0])):
        keys, values = (
            torch.stack(
                [
                    _columns(of_row[number][part], target.length(slot), padding, start, width - 1)
                    for of_row, slot, padding in zip(layers, slots, paddings, strict=True)
                ]
            )
            for part in (0, 1)
        )
        cache.update(keys, values, number)
    return True


def _columns(stored: Tensor, length: int, padding: int, start: int, end: int) -> Tensor:
    """Columns `start` to `end` of a padded row, `[heads, end - start, head_dim]`."""
    heads, _, head_dim = stored.shape
    columns = stored.new_zeros(heads, end - start, head_dim)
    first = max(start, padding)
    columns[:, first - start : padding + length - start] = stored[:, first - padding : length]
    return columns
