"""From a model on disk, or a model object, to a decoder and its tokenizer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checks import require_int
from paceline.errors import InvalidInput, ModelError
from paceline.kernels.packing import STORAGES, Storage, pack_modules
from paceline.models import eos_token_ids
from paceline.models.adapters import Merged, merge_into
from paceline.models.finding import FoundModel, find_model
from paceline.models.settings import (
    generation_settings,
    sampling_defaults,
    settings_not_taken,
)
from paceline.targets.decoder import Decoder
from paceline.targets.dense import loading as dense
from paceline.targets.dense.checkpoint import Checkpoint
from paceline.targets.dense.weights import without_place
from paceline.targets.hf.decoder import HFDecoder


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A decoder with its tokenizer and text settings.

    Args:
        decoder: the model.
        tokenizer: a tokenizer of `transformers`; None if the model came without one.
        eos_token_ids: the tokens that end an answer.
        sampling: the sampling options set by the checkpoint; see `settings.sampling_defaults`.
    """

    decoder: Decoder
    tokenizer: Any
    eos_token_ids: frozenset[int]
    sampling: Mapping[str, float]


def load_files(
    source: str | Path,
    *,
    storage: Storage = "auto",
    head_tokens: int | Iterable[int] | None = None,
    **where: Any,
) -> Loaded:
    """Load a model by name, folder or file: `find_model` (which takes `where`) plus the weights.

    Raises:
        PacelineError: see `find_model` and `load_weights`.
    """
    check_storage(storage)
    return load_weights(find_model(source, **where), storage=storage, head_tokens=head_tokens)


def load_weights(
    model: FoundModel,
    *,
    storage: Storage = "auto",
    head_tokens: int | Iterable[int] | None = None,
) -> Loaded:
    """Load the weights of a model. See `api.load` for the arguments.

    Raises:
        PacelineError: see `targets.hf.HFDecoder`.
    """
    tokenizer, ends, files = model.tokenizer, model.eos_token_ids, model.files
    sampling = _sampling(files.name, files.folder)
    if model.not_lean is None:
        decoder: Decoder = dense.from_weights(
            _weights(model),
            model.config,
            dtype=model.dtype,
            storage=storage,
            # torch's int8 product is hardly faster than oneDNN's in bfloat16, and the head is what
            # distinguishes close tokens.
            head_storage="auto" if storage == "int8" else storage,
            head_ids=head_ids(head_tokens, model.config.vocab_size, tokenizer, ends),
        )
        return Loaded(decoder, tokenizer, ends, sampling)
    if storage.startswith("int") or head_tokens is not None:
        raise InvalidInput(
            f"int8 and int4 storage and a cut head need the lean decoder, which does not support "
            f"{files.name}: {model.not_lean}; leave these options out"
        )
    if storage == "packed" and (model.place.reason or model.dtype is torch.float16):
        raise InvalidInput(
            "packed weights are for the CPU, in float32 or bfloat16; leave storage out"
        )
    decoder = _modules(model, storage)
    return Loaded(decoder, tokenizer, ends, sampling)


def _weights(model: FoundModel) -> Mapping[str, Tensor]:
    """The weights of a model for the lean decoder, each read when it is asked for."""
    weights = Checkpoint(model.files.folder)
    if model.adapter is None:
        return weights
    return Merged(weights, model.adapter, tied=bool(model.config.tie_word_embeddings))


def check_storage(storage: Any) -> None:
    """Refuse an unknown storage before anything is fetched."""
    if storage not in STORAGES:
        raise InvalidInput(f"storage must be one of {', '.join(STORAGES)}; it is {storage!r}")


def load_object(model: Any, tokenizer: Any, storage: Storage) -> Loaded:
    """Wrap a model that the user has already loaded. Its weights stay as they are."""
    if storage not in ("auto", "plain"):
        raise InvalidInput(
            "the weights of a model that you have loaded stay as they are; to have them packed, "
            "give its folder or name, and Paceline loads them packed"
        )
    decoder = HFDecoder(model)
    settings = getattr(model, "generation_config", None)
    ends = eos_token_ids(settings, model.config, tokenizer)
    return Loaded(decoder, tokenizer, ends, _sampling(decoder.info.name, settings))


def _sampling(name: str, source: Any) -> Mapping[str, float]:
    """The checkpoint's sampling options; a warning names those that are not applied."""
    settings = generation_settings(source)
    if left := settings_not_taken(settings):
        warnings.warn(
            f"{name}: its generation config asks for {', '.join(left)}, which Paceline does not "
            "apply; pass a processor that does, or expect answers that differ from those of "
            "transformers",
            stacklevel=4,
        )
    return sampling_defaults(settings)


def _modules(found: FoundModel, storage: Storage) -> HFDecoder:
    """Load the model's own modules, with their linear layers packed if that helps."""
    from transformers import AutoModelForCausalLM

    name, place = found.files.name, found.place
    mapped = {} if place.device_map is None else {"device_map": place.device_map}
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            found.files.folder,
            dtype=found.dtype,
            trust_remote_code=found.trust_remote_code,
            output_loading_info=True,
            **mapped,
        )
        if place.device is not None:
            model = model.to(place.device)
    except (OSError, ValueError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"cannot load {name}: {reason}") from error
    check_report(name, report)
    if found.adapter is not None:
        merge_into(model, found.adapter)
    model.eval()
    model.config.name_or_path = name
    if place.reason or found.dtype is torch.float16:
        return HFDecoder(model)
    # The probe compares with the model's own forward pass, so it runs before and after packing.
    HFDecoder(model)
    if pack_modules(model, storage):
        return HFDecoder(model)
    return HFDecoder(model, probe=False)


def check_report(name: str, report: Mapping[str, Any]) -> None:
    """Refuse a model for which transformers would fill in random numbers or leave out weights.

    Raises:
        ModelError: a weight is missing, has another size, or has no place in the model.
    """
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{name}: {len(missing)} of its weights are missing ({', '.join(missing[:3])}); the "
            "files are incomplete, or belong to another model"
        )
    if mismatched := sorted(str(entry[0]) for entry in report["mismatched_keys"]):
        raise ModelError(
            f"{name}: {len(mismatched)} of its weights do not have the size that config.json gives "
            f"({', '.join(mismatched[:3])}); the files do not belong together"
        )
    if left := sorted(report["unexpected_keys"]):
        raise without_place(name, left)


def head_ids(
    head_tokens: int | Iterable[int] | None,
    vocab_size: int,
    tokenizer: Any,
    ends: Iterable[int],
) -> Tensor | None:
    """The tokens that a cut head can propose: those requested, and control tokens.

    Byte-pair tokenizers number their tokens in the order of their merges, so the lowest ids are
    approximately the most frequent tokens.
    """
    if head_tokens is None:
        return None
    if isinstance(head_tokens, int):
        head_tokens = range(min(require_int("head_tokens", head_tokens, low=1), vocab_size))
    wanted = frozenset(head_tokens)
    for token in wanted:
        require_int("each of head_tokens", token, low=0, high=vocab_size - 1)
    ids = {*wanted, *ends, *getattr(tokenizer, "all_special_ids", ())}
    return torch.tensor(sorted(token for token in ids if 0 <= token < vocab_size))
