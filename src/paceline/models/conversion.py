"""From a GGUF file to a folder in Hugging Face layout: dense weights, config and tokenizer.

The names, shapes and value transforms are those of transformers' own GGUF support. What is added
is that the tensors pass through one at a time, that the result is kept, and that nothing is
dropped: a tensor without a place, a parameter without a tensor or a setting that changes the
result is an error, and not a model that is slightly another.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError, UnsupportedModel
from paceline.models.cache import (
    Progress,
    cache_folder,
    content_digest,
    no_progress,
    scratch_folder,
)
from paceline.models.gguf_file import Head, TensorEntry, read_head
from paceline.models.rope import rope_parameters
from paceline.models.tensor_file import TensorFile
from paceline.models.tokens import end_token_ids

if TYPE_CHECKING:
    import torch

CONVERTER = 1
"""Raised whenever a change here changes the result, so that old conversions are not used."""

MANIFEST = "paceline.json"
_CHUNK = 1 << 22
_ENCODER_DECODERS = ("t5", "t5encoder", "umt5", "bart")


def convert(path: Path, dtype: str, progress: Progress | None = None) -> Path:
    """The folder that holds the model of a GGUF file; made at the first call, found at the next.

    It is known by the content of the file, so a replaced file is converted anew and a moved one
    is not. The peak memory is that of the largest tensor in float32 and `dtype`.

    Args:
        path: the GGUF file.
        dtype: `float32` or `bfloat16`.
        progress: told the bytes written so far.

    Raises:
        InvalidInput: the file is not GGUF.
        ModelError: it is damaged, or the cache cannot be written to.
        UnsupportedModel: Paceline cannot convert this kind of model.
    """
    tell = progress or no_progress
    try:
        digest = content_digest(path, tell)
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
            if not _is_whole(folder):  # another process may have made it while we waited
                made = scratch / "model"
                made.mkdir()
                _write(head, dtype, made, scratch, tell)
                _sign(made, {"source": path.name, "sha256": digest, "dtype": dtype})
                shutil.rmtree(folder, ignore_errors=True)
                made.replace(folder)
    except OSError as error:
        raise ModelError(
            f"could not convert {path} into {parent}: {error.strerror or error}; "
            "PACELINE_CACHE names another place"
        ) from error
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether every file that the conversion wrote is there, in its size."""
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
    # Under a name of its own, since transformers would read any tokenizer files that lie beside.
    link = scratch / "source.gguf"
    link.symlink_to(head.path.resolve())
    config = _config(head, link)
    config.dtype = getattr(torch, dtype)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(scratch, gguf_file=link.name)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UnsupportedModel(
            f"transformers cannot build the tokenizer of {head.path}: {error}"
        ) from error
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
            "supported yet, decoder-only models are"
        )
    # The reader in gguf makes a million small arrays of a large vocabulary; looking through them
    # for garbage again and again takes half of its time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        config = AutoConfig.from_pretrained(link.parent, gguf_file=link.name)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UnsupportedModel(
            f"transformers cannot read {head.path}, architecture {head.architecture!r}: {error}"
        ) from error
    finally:
        if collecting:
            gc.enable()
    config.rope_parameters = rope_parameters(head, getattr(config, "rope_parameters", None))
    window = head.metadata.get(f"{head.architecture}.attention.sliding_window")
    if window and getattr(config, "sliding_window", window) is None:
        config.sliding_window = window  # not every architecture's table in transformers has it
    return config


def _empty_model(config: Any, head: Head) -> Any:
    """The model without memory for its weights: names and shapes."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        raise UnsupportedModel(
            f"{head.path}, architecture {head.architecture!r}, is no causal language model of "
            f"transformers: {error}"
        ) from error


def _write_weights(
    head: Head, model: Any, dtype: torch.dtype, path: Path, progress: Progress
) -> None:
    """Dequantise the tensors one by one into a safetensors file."""
    shapes = _shapes(model)
    with TensorFile(path, shapes, dtype) as file:
        free = shutil.disk_usage(path.parent).free
        if free < file.size:
            raise ModelError(
                f"the converted {head.path.name} takes {file.size / 1e9:.1f} GB and {path.parent} "
                f"has {free / 1e9:.1f} GB left; free some, or set PACELINE_CACHE to another place"
            )
        for name, tensor in _converted(head, model):
            if name not in shapes:
                raise _without_place(head, name)
            if tuple(tensor.shape) != shapes[name]:
                raise UnsupportedModel(
                    f"{head.path}: {name} has shape {tuple(tensor.shape)}; the config asks for "
                    f"{shapes[name]}"
                )
            file.write(name, tensor)
            progress(file.written, file.size, f"converting {head.path.name}")
        if file.missing:
            raise UnsupportedModel(
                f"{head.path} has no tensor for {', '.join(sorted(file.missing)[:3])} "
                f"({len(file.missing)} in all)"
            )


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of the checkpoint, a tied one under its first name alone."""
    seen: set[int] = set()
    shapes = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            shapes[name] = tuple(tensor.shape)
        seen.add(id(tensor))
    return shapes


def _converted(head: Head, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the file under the names and in the layout of transformers, in float32."""
    import numpy as np
    import torch
    from transformers import modeling_gguf_pytorch_utils as hf

    processor = hf.TENSOR_PROCESSORS.get(head.architecture, hf.TensorProcessor)(
        config=model.config.to_dict()
    )
    names = _names(head, model, processor)
    # Experts come in several tensors that fill one; the processor gathers those in `gathered`.
    gathered: dict[str, torch.Tensor] = {}
    targets = {t.name: names.get(t.name) or names.get(_stem(t.name)) for t in head.tensors}
    waiting = Counter(targets.values())
    with head.path.open("rb") as file:
        for entry in head.tensors:
            if entry.name == "rope_freqs.weight":
                continue  # `rope_parameters` has turned it into the config
            target = targets[entry.name]
            if target is None and entry.name != "output.weight":
                raise _without_place(head, entry.name)
            result = processor.process(
                weights=_dequantised(file, entry),
                name=entry.name,
                tensor_key_mapping=names,
                parsed_parameters={"tensors": gathered},
            )
            waiting[target] -= 1
            if result.name is not None:
                yield names[result.name], torch.from_numpy(np.ascontiguousarray(result.weights))
            for name in [name for name in gathered if not waiting[name]]:
                yield name, gathered.pop(name)


def _names(head: Head, model: Any, processor: Any) -> dict[str, str]:
    """From GGUF names to those of transformers."""
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    try:
        # transformers walks through every module, and builds a table at each, for the sake of the
        # few models whose names begin further down. The top level serves the others.
        names = get_gguf_hf_weights_map(_TopLevel(model), processor)
        if not set(_shapes(model)) <= set(names.values()):
            names = get_gguf_hf_weights_map(model, processor)
    except NotImplementedError as error:
        raise UnsupportedModel(f"{head.path}: {error}") from error
    return dict(names)


class _TopLevel:
    """As much of a model as the table of names is made from, without its modules."""

    def __init__(self, model: Any) -> None:
        self.config, self.state_dict = model.config, model.state_dict

    def named_children(self) -> tuple[()]:
        return ()


def _stem(name: str) -> str:
    return name.removesuffix(".weight")


def _without_place(head: Head, name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{head.path} holds tensor {name!r}, which has no place in a {head.architecture!r} model "
        "of transformers; leaving it out would change the result"
    )


def _dequantised(file: Any, entry: TensorEntry) -> Any:
    """One tensor in float32, read and unpacked in pieces so that no second copy arises."""
    import numpy as np
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind, rows = GGMLQuantizationType(entry.type_id), _rows(entry)
    raw = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
    out = np.empty((rows, entry.shape[-1]), dtype=np.float32)
    row_bytes, step = entry.size // rows, max(1, _CHUNK // entry.shape[-1])
    file.seek(entry.offset)
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        piece = np.frombuffer(file.read(count * row_bytes), dtype=raw.get(kind, np.uint8))
        out[begin : begin + count] = dequantize(piece.reshape(count, -1), kind)
    return out.reshape(entry.shape)


def _rows(entry: TensorEntry) -> int:
    rows = 1
    for dimension in entry.shape[:-1]:
        rows *= dimension
    return rows
