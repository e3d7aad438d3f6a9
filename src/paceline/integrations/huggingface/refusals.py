"""What a call to `generate` may not ask for; refused before anything is decoded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, GenerationConfig, GenerationMixin
from transformers.generation import GenerationMode

from paceline.errors import InvalidInput

_SERVED_MODES = {GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE}

_OPTIONS_OF_MODE = {
    GenerationMode.ASSISTED_GENERATION: "prompt_lookup_num_tokens, assistant_early_exit or use_mtp",
    GenerationMode.BEAM_SAMPLE: "num_beams",
    GenerationMode.BEAM_SEARCH: "num_beams",
    GenerationMode.CONSTRAINED_BEAM_SEARCH: "force_words_ids or constraints",
    GenerationMode.CONTRASTIVE_SEARCH: "penalty_alpha",
    GenerationMode.DOLA_GENERATION: "dola_layers",
    GenerationMode.GROUP_BEAM_SEARCH: "num_beam_groups",
}

_SERVED_INPUTS = frozenset(
    {
        "attention_mask",
        "cache",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "position_ids",
        "use_cache",
    }
)


_DROPPED = {
    "synced_gpus": "put the model onto the devices of one process",
    "assistant_model": "pass it to speculate(draft_model=...)",
}


def refuse_dropped(given: Mapping[str, Any]) -> None:
    """Refuse arguments of `generate` that it does not pass to a `custom_generate`.

    Args:
        given: see `arguments_of_generate`.
    """
    for name, advice in _DROPPED.items():
        if given.get(name) is not None:
            raise InvalidInput(
                f"generate does not pass {name} to a custom_generate; {advice} instead"
            )


def arguments_of_generate(frame: FrameType | None) -> Mapping[str, Any]:
    """The local variables of `generate`, if that is what called the function of `frame`; else none.

    `generate` keeps a streamer and an assistant model to itself when it is given a
    `custom_generate`: it passes on only the arguments that its own loop does not take, and it takes
    these. A streamer that is never told of the end can block its reader forever, and a draft model
    that is silently dropped is an ignored setting, so this looks for them. Nothing else in Paceline
    looks at frames.
    """
    caller = None if frame is None else frame.f_back
    if caller is None or caller.f_code is not inspect.unwrap(GenerationMixin.generate).__code__:
        return {}
    return caller.f_locals


def refuse_changed_inputs(model: Any, ids: Tensor, mask: Tensor | None) -> None:
    """Refuse a model whose inputs are changed on the way, which speculation would not see.

    A wrapper of a model, such as `peft` for prompt tuning, may replace the function that prepares
    the inputs. Its result must be the same as the original's.

    Args:
        model: the target.
        ids: the prompts.
        mask: their attention mask.

    Raises:
        InvalidInput: it prepares something else.
    """
    put_in = vars(model).get("prepare_inputs_for_generation")
    if put_in is None:
        return
    call: dict[str, Any] = {"attention_mask": mask, "is_first_iteration": True}
    own = type(model).prepare_inputs_for_generation(model, ids, **call)
    found = put_in(ids, **call)
    names = {name for inputs in (own, found) for name, value in inputs.items() if value is not None}
    if any(not _same(own.get(name), found.get(name)) for name in names):
        raise InvalidInput(
            "the inputs of the model are changed before they reach it (prompt tuning, p-tuning or "
            "the like), and speculate decodes the model itself; leave custom_generate out, or "
            "merge what was tuned into the model"
        )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and (isinstance(one, Cache) or one == other)


def refuse_unsupported(
    config: GenerationConfig, inputs: Mapping[str, Any], *, synced_gpus: bool
) -> None:
    """Raise `InvalidInput` for what would have to be ignored.

    Args:
        config: as `generate` prepared it.
        inputs: the keyword arguments for the model.
        synced_gpus: whether the model is spread over processes.
    """
    mode = config.get_generation_mode()
    if mode not in _SERVED_MODES:
        options = _OPTIONS_OF_MODE.get(mode, "some option")
        raise InvalidInput(
            f"{options} asks for {mode.value.replace('_', ' ')}; speculate works for greedy "
            "decoding and sampling. Leave that option out, or leave custom_generate out"
        )
    if config.return_dict_in_generate:
        for name in ("output_attentions", "output_hidden_states"):
            if getattr(config, name):
                raise InvalidInput(
                    f"{name}=True is not supported by speculate; leave it out, and pass the "
                    "finished sequences through the model for them"
                )
    if config.use_cache is False:
        raise InvalidInput(
            "use_cache=False is not supported: speculate keeps the cache that it rolls back; "
            "pass use_cache=True"
        )
    kind = config.cache_implementation or "dynamic"
    if kind == "quantized" or "offloaded" in kind:
        raise InvalidInput(
            f"cache_implementation={kind!r} is not supported: speculate keeps keys and values as "
            "the model gives them, and where it runs; leave it out"
        )
    if config.compile_config is not None:
        raise InvalidInput(
            "compile_config is not supported: speculate does not compile; leave it out"
        )
    if synced_gpus:
        raise InvalidInput(
            "a model that is spread over several processes (synced_gpus) is not supported; put it "
            "onto the devices of one process"
        )
    for name, value in inputs.items():
        # `generate` passes on the outputs of an image encoder, or None.
        is_empty = value is None or (isinstance(value, Mapping) and not value)
        if name not in _SERVED_INPUTS and not is_empty:
            raise InvalidInput(
                f"the model input {name} is not supported: speculate decodes from input_ids "
                "alone; leave it out"
            )


def real_columns(
    ids: Tensor, mask: Tensor | None, positions: Tensor | None, mask_length: int | None = None
) -> list[Tensor]:
    """The columns of `ids` `[B, n]` with each row's tokens; the other columns are padding.

    Args:
        ids: the prompts.
        mask: `[B, n]`, 0 where there is padding, on the left or in between; None means no padding.
        positions: `[B, n]` or `[1, n]`, the position ids of the call.
        mask_length: the length of a mask that was dropped because it hid nothing.

    Raises:
        InvalidInput: a row has no tokens, there is padding on the right, or positions do not count
            the tokens.
    """
    num_rows, length = ids.shape
    mask_length = mask.shape[1] if mask is not None else mask_length
    if mask_length is not None and mask_length != length:
        raise InvalidInput(
            f"attention_mask covers {mask_length} tokens and input_ids {length}; give the whole "
            "sequence as input_ids, the tokens that are in the cache included"
        )
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask != 0
    for row in range(num_rows):
        if not real[row].any():
            raise InvalidInput(
                f"row {row} of attention_mask is all padding; give every prompt at least one "
                "token (a start token, for example)"
            )
        if not real[row, -1]:
            raise InvalidInput(
                f"row {row} of attention_mask ends with padding; the answer would begin after it. "
                "Pad on the left: tokenizer.padding_side = 'left'"
            )
    if positions is not None:
        counted = (real.long().cumsum(dim=1) - 1).to(positions.device)
        shown = real.to(positions.device)
        if bool((positions.expand_as(counted) != counted)[shown].any()):
            raise InvalidInput(
                "position_ids must count the tokens of each prompt from 0; leave them out"
            )
    return [row.nonzero().flatten() for row in real]


def pad_token(config: GenerationConfig, num_rows: int) -> int | None:
    """The token that fills rows that end before others.

    Raises:
        InvalidInput: there are several rows and no such token.
    """
    token = config._pad_token_tensor
    if token is None and num_rows > 1:
        raise InvalidInput("a batch needs pad_token_id, for rows that end before others; set it")
    return None if token is None else int(token)
