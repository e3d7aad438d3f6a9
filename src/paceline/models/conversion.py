"""From a GGUF file to a folder in Hugging Face layout: dense weights, config and tokenizer.

The names, shapes and value transforms are those of transformers' own GGUF support. In addition,
tensors are converted one at a time, the result is cached, and nothing is dropped: a tensor without
a place, a parameter without a tensor, or a setting that changes the result is an error rather than
a slightly different model.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cache_folder import cache_folder
from paceline.errors import ModelError, UnsupportedModel
from paceline.models.cache import (
    Progress,
    content_digest,
    no_progress,
    scratch_folder,
)
from paceline.models.gguf_architectures import ARCHITECTURES, read_config
from paceline.models.gguf_file import Head, read_head, split_paths
from paceline.models.gguf_tensors import checkpoint_shapes, converted_tensors, without_place
from paceline.models.pre_tokenizers import set_pre_tokenizer
from paceline.models.reasons import one_line, what_transformers_raises
from paceline.models.rope import rope_parameters
from paceline.models.tensor_file import TensorFile
from paceline.models.tokens import end_token_ids

if TYPE_CHECKING:
    import torch

CONVERTER = 2
"""Incremented whenever a change here changes the result, so that old conversions are not used."""

MANIFEST = "paceline.json"
_ENCODER_DECODERS = ("t5", "t5encoder", "umt5", "bart")


def convert(path: Path, dtype: str, progress: Progress | None = None) -> Path:
    """The folder that holds the model of a GGUF file; created at the first call, reused afterwards.

    It is identified by the file's content, so a replaced file is converted again and a moved one is
    not. Apart from the tokenizer's tables, only one tensor at a time is in memory, in float32.

    Args:
        path: the GGUF file.
        dtype: `float32` or `bfloat16`.
        progress: called with the bytes written so far.

    Raises:
        InvalidInput: the file is not a GGUF file.
        ModelError: it is damaged, or the cache cannot be written to.
        UnsupportedModel: Paceline cannot convert this kind of model.
    """
    tell = no_progress if progress is None else progress
    try:
        parts = split_paths(path)
        digest = " ".join(content_digest(part, tell) for part in parts)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    parent = cache_folder() / "converted"
    key = f"{sha256(f'{digest} {dtype} {CONVERTER}'.encode()).hexdigest()[:20]}-{dtype}"
    folder = parent / key
    if _is_whole(folder):
        return folder
    head = read_head(path)
    try:
        with scratch_folder(parent, key, tell) as scratch:
            if not _is_whole(folder):  # another process may have created it while we waited
                made = scratch / "model"
                made.mkdir()
                _write(head, dtype, made, scratch, tell)
                _sign(made, {"source": path.name, "sha256": digest, "dtype": dtype})
                shutil.rmtree(folder, ignore_errors=True)
                made.replace(folder)
    except OSError as error:
        raise ModelError(
            f"could not convert {path} into {parent}: {error.strerror or error}; "
            "set PACELINE_CACHE to another place"
        ) from error
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether every file that the conversion wrote is there with its size."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _sign(folder: Path, origin: Mapping[str, Any]) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    manifest = {**origin, "converter": CONVERTER, "files": sizes}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _write(head: Head, dtype: str, folder: Path, scratch: Path, progress: Progress) -> None:
    import torch
    from transformers import GenerationConfig, PreTrainedTokenizerFast

    progress(0, 0, f"reading {head.path.name}")
    # Under a name of its own, since transformers would read any tokenizer files beside it.
    link = scratch / "source.gguf"
    link.symlink_to(head.path.resolve())
    config = _config(head, link)
    _complete(config, head)
    config.dtype = getattr(torch, dtype)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(scratch, gguf_file=link.name)
    except what_transformers_raises() as error:
        raise UnsupportedModel(
            f"transformers cannot build the tokenizer of {head.path}: {one_line(error)}"
        ) from error
    set_pre_tokenizer(tokenizer, head)
    tokenizer.save_pretrained(folder)
    model = _empty_model(config, head)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    ends = end_token_ids(head)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=ends if len(ends) > 1 else next(iter(ends), None),
        pad_token_id=config.pad_token_id,
    ).save_pretrained(folder)
    _write_weights(head, model, getattr(torch, dtype), folder / "model.safetensors", progress)


def _config(head: Head, link: Path) -> Any:
    from transformers import AutoConfig

    if head.architecture in _ENCODER_DECODERS:
        raise UnsupportedModel(
            f"{head.path} holds an encoder-decoder model ({head.architecture}); those are not "
            "supported yet; use a decoder-only model"
        )
    if head.architecture in ARCHITECTURES:
        try:
            return read_config(head)
        except what_transformers_raises() as error:
            raise UnsupportedModel(
                f"{head.path}, architecture {head.architecture!r}, has settings that transformers "
                f"does not take: {one_line(error)}"
            ) from error
    # For a large vocabulary the reader in gguf makes a million small arrays; scanning them for
    # garbage again and again takes half of its time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        config = AutoConfig.from_pretrained(link.parent, gguf_file=link.name)
    except what_transformers_raises() as error:
        raise UnsupportedModel(
            f"transformers cannot read {head.path}, architecture {head.architecture!r}: "
            f"{one_line(error)}"
        ) from error
    finally:
        if collecting:
            gc.enable()
    config.rope_parameters = rope_parameters(head, getattr(config, "rope_parameters", None))
    return config


def _complete(config: Any, head: Head) -> None:
    """Set what the file specifies but transformers leaves at the config class's defaults."""
    metadata, architecture = head.metadata, head.architecture
    # transformers only looks into the first of several files, and not into those of every
    # architecture.
    if any(entry.name == "output.weight" for entry in head.tensors):
        config.tie_word_embeddings = False
    elif architecture in ARCHITECTURES:
        config.tie_word_embeddings = True
    for key, name in (("bos", "bos"), ("eos", "eos"), ("padding", "pad")):
        setattr(config, f"{name}_token_id", metadata.get(f"tokenizer.ggml.{key}_token_id"))
    for key, name in (
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ):
        if (value := metadata.get(f"{architecture}.{key}")) and hasattr(config, name):
            setattr(config, name, value)
    window = metadata.get(f"{architecture}.attention.sliding_window")
    if window and getattr(config, "sliding_window", window) is None:
        config.sliding_window = window


def _empty_model(config: Any, head: Head) -> Any:
    """The model on the meta device: names and shapes without weights."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except what_transformers_raises() as error:
        raise UnsupportedModel(
            f"{head.path}, architecture {head.architecture!r}, is not a causal language model "
            f"that transformers can build: {one_line(error)}"
        ) from error


def _write_weights(
    head: Head, model: Any, dtype: torch.dtype, path: Path, progress: Progress
) -> None:
    """Dequantise the tensors one by one into a safetensors file."""
    shapes = checkpoint_shapes(model)
    with TensorFile(path, shapes, dtype) as file:
        free = shutil.disk_usage(path.parent).free
        if free < file.size:
            raise ModelError(
                f"the converted {head.path.name} takes {file.size / 1e9:.1f} GB and {path.parent} "
                f"has {free / 1e9:.1f} GB left; free some, or set PACELINE_CACHE to another place"
            )
        for name, tensor in converted_tensors(head, model):
            if name not in shapes:
                raise without_place(head, name)
            if tuple(tensor.shape) != shapes[name]:
                raise UnsupportedModel(
                    f"{head.path}: {name} has shape {tuple(tensor.shape)}; the config asks for "
                    f"{shapes[name]}"
                )
            file.write(name, tensor)
            del tensor  # or it would stay in memory while the next one is unpacked
            progress(file.written, file.size, f"converting {head.path.name}")
        if file.missing:
            raise UnsupportedModel(
                f"{head.path} has no tensor for {', '.join(sorted(file.missing)[:3])} "
                f"({len(file.missing)} in total)"
            )
