"""From a name, a folder or a GGUF file to a model on disk, before its weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.errors import InvalidInput
from paceline.models import Files, Progress, eos_token_ids, load_tokenizer, resolve
from paceline.models.adapter_files import base_and_adapter
from paceline.models.adapters import Adapter
from paceline.models.devices import Placement, placement
from paceline.targets.dense.architecture import unsupported

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, eq=False)
class FoundModel:
    """A model on disk whose weights have not been read yet.

    Args:
        files: its location.
        config: its configuration.
        dtype: the dtype of its weights once they are loaded.
        tokenizer, eos_token_ids: see `loading.Loaded`.
        not_lean: why the lean decoder cannot take it; None if it can.
        trust_remote_code: run the Python code that comes with it.
        place: where it goes.
        adapter: what is merged into its weights.
    """

    files: Files
    config: Any
    dtype: torch.dtype
    tokenizer: Any
    eos_token_ids: frozenset[int]
    not_lean: str | None
    trust_remote_code: bool
    place: Placement
    adapter: Adapter | None


def find_model(
    source: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    device: Any = None,
    device_map: Any = None,
    adapter: str | Path | None = None,
    progress: Progress | None = None,
) -> FoundModel:
    """Find a model by name, folder or file. See `api.load` for the arguments.

    Raises:
        PacelineError: see `models.resolve`.
    """
    wanted, place = _dtype(dtype), placement(device, device_map)
    base, merged = base_and_adapter(source, adapter)
    files = resolve(
        base,
        dtype=torch.float32 if wanted is torch.float16 else wanted or native_dtype(),
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
        progress=progress,
    )
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(files.folder, trust_remote_code=trust_remote_code)
    if merged is not None:
        files = Files(files.folder, f"{files.name}+{merged.path.name}")
    config.name_or_path = files.name
    tokenizer = load_tokenizer(files.folder, trust_remote_code=trust_remote_code)
    is_kept = place.reason or config.dtype is torch.bfloat16
    chosen = wanted or ((is_kept and config.dtype) or torch.float32)
    reasons = [
        place.reason,
        "it does not compute in float16" if chosen is torch.float16 else None,
        None if any(files.folder.glob("*.safetensors")) else "its weights are pickled",
        unsupported(config),
    ]
    return FoundModel(
        files,
        config,
        chosen,
        tokenizer,
        eos_token_ids(files.folder, tokenizer),
        next((reason for reason in reasons if reason), None),
        trust_remote_code,
        place,
        merged,
    )


def native_dtype() -> torch.dtype:
    """bfloat16 if the processor has instructions for it, otherwise float32."""
    has_mkldnn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    native = has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def _dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    if dtype == "auto":
        return None
    name = str(dtype).removeprefix("torch.")
    wanted = DTYPES.get("float16" if name == "half" else name)
    if wanted is None:
        raise InvalidInput(f"dtype must be auto, {', '.join(DTYPES)}; it is {dtype!r}")
    return wanted
