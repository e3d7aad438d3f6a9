"""From a transformers cache into a slot, and back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, GenerationConfig
from transformers.cache_utils import DummyLayer, DynamicLayer

from paceline.core.passes import prefill
from paceline.errors import InvalidInput
from paceline.integrations.huggingface.rows import Row
from paceline.targets.attention import Pass, Segment
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.probe import TOLERANCE
from paceline.targets.slot import Slot
from paceline.targets.state.kv import KeyValueCache, keys_and_values


def visible_cache(
    config: GenerationConfig, inputs: Mapping[str, Any], num_rows: int
) -> Cache | None:
    """The cache that the caller will see afterwards; None if there is none.

    That is the user's own, or the one that `generate` created if a dict is returned.

    Raises:
        InvalidInput: it holds a different number of sequences.
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
    number: int,
    row: Row,
    max_tokens: int | None,
    stack: ExitStack,
) -> Slot | None:
    """A slot that outlives the engine's run, filled from the row of `cache`; see `adopt`.

    Without a cache it is None, so that the engine opens its own. `stack` closes it.
    """
    if cache is None:
        return None
    prompt = len(row.prompt)
    limits = [target.info.max_length, None if max_tokens is None else prompt + max_tokens]
    capacity = min((n for n in limits if n is not None), default=prompt)
    slot = target.open(capacity)
    stack.callback(target.close, slot)
    # A prompt that does not fit is refused by the engine.
    if cache.get_seq_length() and prompt < capacity:
        adopt(target, slot, cache, number, row)
    return slot


def adopt(target: CachedTarget, slot: Slot, cache: Cache, number: int, row: Row) -> None:
    """Copy a row's prompt from a cache into a new slot; the cache is not changed.

    It is compared with what the model computes: the keys and values of the first layer for every
    token, which depend only on the token and its position, and those of all layers for the last
    one. This detects the cache of another text or model, or one with another layout. Layers that
    keep less than the whole sequence, or in another form, are not read; the engine then computes
    the prompt.

    Args:
        target, slot: the slot is empty.
        cache: of transformers.
        number, row: the row of the batch.

    Raises:
        InvalidInput: the cache does not belong to the prompt.
    """
    length, width = int(cache.get_seq_length()), row.columns[-1] + 1
    if length > width:
        raise InvalidInput(
            f"the cache holds {length} tokens and input_ids {width}; input_ids must be the whole "
            "sequence, including the tokens that are in the cache"
        )
    columns = [column for column in row.columns[:-1] if column < length]
    known = len(columns)
    if known < 2 or any(type(layer) is not DynamicLayer for layer in cache.layers):
        return
    stored = [
        (layer.keys[number][:, columns], layer.values[number][:, columns]) for layer in cache.layers
    ]
    state = keys_and_values(slot.state)
    state.begin(0, known - 1)
    for index, (keys, values) in enumerate(stored):
        state.write(index, keys[:, :-1], values[:, :-1], 0)
    state.keep(range(known - 1))
    slot.append(row.prompt[: known - 1])
    first = _first_layer(target, row.prompt[:known])
    try:
        prefill(target, slot, row.prompt[known - 1 : known])
    except RuntimeError:  # keys of other shapes
        same = False
    else:
        computed = state.layers
        same = len(computed) == len(stored) and all(
            _close(ours[:, known - 1], theirs[:, -1])
            for pair, other in zip(computed, stored, strict=True)
            for ours, theirs in zip(pair, other, strict=True)
        )
        same = same and all(
            _close(ours[:, :known], theirs) for ours, theirs in zip(first, stored[0], strict=True)
        )
    if not same:
        raise InvalidInput(
            "the cache does not hold what the model computes for the first tokens of input_ids; "
            "pass the cache that these tokens made, or none"
        )


class _Enough(Exception):
    """The first layer has been written."""


class _FirstLayer(KeyValueCache):
    """A cache that ends a pass when a second layer is to be written."""

    def write(self, layer: int, keys: Tensor, values: Tensor, start: int) -> None:
        if layer:
            raise _Enough
        super().write(layer, keys, values, start)


def _first_layer(target: CachedTarget, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The first layer's keys and values of the tokens, `[heads, n or more, head_dim]` each."""
    cache, device = _FirstLayer(len(tokens)), target.decoder.device
    for start in range(0, len(tokens), target.prefill_rows):
        chunk = torch.tensor(tokens[start : start + target.prefill_rows], device=device)
        end = start + len(chunk)
        segment = Segment(cache, 0, len(chunk), start, None, end)
        places = torch.arange(start, end, device=device)
        cache.begin(start, end)
        with torch.inference_mode(), suppress(_Enough):
            target.decoder.run(Pass(chunk, places, [segment], places[:0]))
        cache.keep(range(start, end))
    (found,) = cache.layers
    return found


def _close(ours: Tensor, theirs: Tensor) -> bool:
    """Equal up to the rounding of passes of different shapes, which accumulates over the layers."""
    scale = theirs.abs().amax().clamp_min(torch.finfo(theirs.dtype).tiny)
    return bool((ours - theirs).abs().amax() <= TOLERANCE[theirs.dtype] * scale)


def extend(
    cache: Cache,
    target: CachedTarget,
    slots: Sequence[Slot],
    rows: Sequence[Row],
    answers: Sequence[Sequence[int]],
) -> bool:
    """Append to a transformers cache what the slots hold beyond it.

    Afterwards it has all columns of the padded sequences except the last, as after `generate`;
    padding is zeros.

    Args:
        cache: the cache that `generate` created, or that the user passed.
        target, slots: one slot a row.
        rows, answers: the rows of the batch, and what they answered.

    Returns:
        Whether this was possible: the layers of the cache must be those of the model.
    """
    prompt_end = rows[0].columns[-1] + 1
    end = prompt_end + max(len(answer) for answer in answers) - 1
    columns = []
    for slot, row, answer in zip(slots, rows, answers, strict=True):
        # The last token of a row that ended early is not in the last column.
        missing = (
            [*row.prompt, *answer][target.length(slot) :] if prompt_end + len(answer) <= end else []
        )
        if missing:
            prefill(target, slot, missing)
        columns.append([*row.columns, *range(prompt_end, end)][: target.length(slot)])
    layers = [keys_and_values(slot.state).layers for slot in slots]
    if len(cache.layers) not in (0, len(layers[0])):
        return False
    start = int(cache.get_seq_length())
    for index in range(len(layers[0])):
        if index < len(cache.layers) and isinstance(cache.layers[index], DummyLayer):
            continue  # it shares the keys and values of an earlier one
        keys, values = (
            torch.stack(
                [
                    _spread(layer[index][part], places, start, end)
                    for layer, places in zip(layers, columns, strict=True)
                ]
            )
            for part in (0, 1)
        )
        cache.update(keys, values, index)
    return True


def _spread(stored: Tensor, columns: Sequence[int], start: int, end: int) -> Tensor:
    """Columns `start` to `end` of a padded row `[heads, end - start, head_dim]`.

    Args:
        stored: the row without its padding.
        columns: where each of its first tokens goes, in ascending order.
    """
    heads, _, head_dim = stored.shape
    spread = stored.new_zeros(heads, end - start, head_dim)
    first = bisect_left(columns, start)
    places = [column - start for column in columns[first:]]
    spread[:, places] = stored[:, first : len(columns)]
    return spread
