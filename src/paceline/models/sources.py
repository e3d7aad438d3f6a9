"""From a user's model name to a folder in Hugging Face layout that is safe to load."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInput, ModelError, UnknownName, UnsupportedModel
from paceline.models.cache import Progress, read_json
from paceline.models.conversion import convert
from paceline.models.known import KNOWN, fetch
from paceline.models.reasons import one_line, what_transformers_raises

if TYPE_CHECKING:
    import torch

DTYPES = ("bfloat16", "float32")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PICKLED = ("*.bin", "*.pt", "*.pth")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt")
_ALTERNATIVES = "a folder in Hugging Face layout, a .gguf file or a known name"


@dataclass(frozen=True, slots=True)
class Files:
    """A model on disk.

    Args:
        folder: contains `config.json`, the weights and the tokenizer, in Hugging Face layout.
        name: a short name for messages and reports.
    """

    folder: Path
    name: str


def resolve(
    source: str | Path,
    *,
    dtype: str | torch.dtype,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Files:
    """The files of a model, fetched and converted if necessary.

    Args:
        source: a known name (see `KNOWN`), a path to a `.gguf` file, a folder in Hugging Face
            layout, or the name of a model on the hub (`org/model`); looked for in that order.
        dtype: `bfloat16` or `float32`: the dtype a GGUF file is unpacked to. Folders stay as they
            are.
        allow_pickle: accept pickled weights if there are no safetensors. Unpickling runs any code
            that the file contains.
        trust_remote_code: accept models that need Python code of their own, which is then run.
        progress: called with the progress of slow steps.

    Raises:
        UnknownName: there is no such name.
        InvalidInput: there is no such file, it is not a model's folder, or a switch is needed.
        ModelError: files are damaged, or the hub or index cannot be reached.
        UnsupportedModel: Paceline cannot decode this kind of model.
    """
    dtype_name = str(dtype).removeprefix("torch.")
    if dtype_name not in DTYPES:
        raise InvalidInput(f"dtype must be {' or '.join(DTYPES)}; it is {dtype_name!r}")
    text, path = str(source), _path(source)
    if text in KNOWN:
        return Files(convert(fetch(text, progress), dtype_name, progress), text)
    if path.is_file():
        if path.suffix in (".bin", ".pt", ".pth", ".safetensors"):
            raise InvalidInput(f"{path} contains only weights; give the folder it is in")
        return Files(convert(path, dtype_name, progress), path.stem)
    if text and path.is_dir():  # an empty string would be the current folder
        check_folder(path, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
        return Files(path, path.resolve().name)
    if path.suffix == ".gguf" or path.is_absolute() or text.startswith((".", "~")):
        raise InvalidInput(f"no such file or folder: {path}; expected {_ALTERNATIVES}")
    if not _HUB_NAME.fullmatch(text):
        unknown = UnknownName.among("model", text, KNOWN)
        raise UnknownName(f"{unknown}; a folder, a .gguf file or a hub name (org/model) works too")
    try:
        folder = from_hub(text, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
    except ModelError as error:
        known = UnknownName.among("model", text.partition("/")[2].lower(), KNOWN)
        raise ModelError(
            f"{error}, and there is no such folder; give {_ALTERNATIVES}. Among those: {known}"
        ) from error
    check_folder(folder, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
    return Files(folder, text)


def _path(source: str | Path) -> Path:
    """The path that `source` may be, if the file system accepts it as one."""
    try:
        path = Path(source).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"not a model: {source!r:.80} ({error}); expected {_ALTERNATIVES}"
        ) from error
    return path


def check_folder(
    folder: Path, *, allow_pickle: bool = False, trust_remote_code: bool = False
) -> None:
    """Check that transformers can load a causal language model from `folder` safely.

    Raises:
        InvalidInput: it is not a model's folder, or a switch is needed.
        ModelError: weights are damaged or missing.
        UnsupportedModel: it is not a decoder-only language model that transformers knows.
    """
    config = read_json(folder / "config.json")
    if config is None and (folder / "adapter_config.json").is_file():
        raise InvalidInput(
            f"{folder} holds an adapter, not a model; paceline.load merges it into its base, and "
            "here the base itself is needed"
        )
    if config is None:
        raise InvalidInput(
            f"{folder} has no config.json, so it is not a model in Hugging Face layout; expected "
            f"{_ALTERNATIVES}"
        )
    _check_kind(folder, config, trust_remote_code)
    _check_tokenizer_code(folder, trust_remote_code)
    _check_weights(folder, allow_pickle)


def _check_kind(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> None:
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    kind = config.get("model_type")
    if config.get("is_encoder_decoder"):
        raise UnsupportedModel(
            f"{folder} holds an encoder-decoder model ({kind}); those are not supported yet; use "
            "a decoder-only model"
        )
    if kind not in CONFIG_MAPPING:
        if "auto_map" not in config:
            raise UnsupportedModel(
                f"{folder} holds a model of type {kind!r}, which this transformers does not know"
            )
        if trust_remote_code:
            return  # what its code does can only be seen by running it
        raise _needs_code(folder, f"a model of type {kind!r}")
    try:
        loaded = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except what_transformers_raises() as error:
        raise ModelError(
            f"transformers cannot read {folder / 'config.json'}: {one_line(error)}"
        ) from error
    if loaded.is_encoder_decoder or type(loaded) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(
            f"{folder} holds a model of type {kind!r}, which is not a decoder-only language model"
        )


def _check_tokenizer_code(folder: Path, trust_remote_code: bool) -> None:
    """A tokenizer with code of its own that transformers lacks needs the switch too."""
    settings = read_json(folder / "tokenizer_config.json") or {}
    can_do_without = trust_remote_code or (folder / "tokenizer.json").is_file()
    if "auto_map" in settings and not can_do_without:
        raise _needs_code(folder, "its tokenizer")


def _needs_code(folder: Path, what: str) -> InvalidInput:
    return InvalidInput(
        f"{folder} contains Python code for {what}, which would be run; pass "
        "trust_remote_code=True "
        "if you trust it"
    )


def _check_weights(folder: Path, allow_pickle: bool) -> None:
    index = read_json(folder / "model.safetensors.index.json")
    if index is not None:
        names = sorted(set(index.get("weight_map", {}).values()))
        files = [folder / name for name in names]
        if lost := [file.name for file in files if not file.is_file()]:
            raise ModelError(f"{folder} lacks {len(lost)} of its weight files ({lost[0]})")
    else:
        files = sorted(folder.glob("*.safetensors"))
    if files:
        for file in files:
            _check_safetensors(file)
        return
    pickled = sorted(file.name for pattern in _PICKLED for file in folder.glob(pattern))
    if pickled and not allow_pickle:
        raise InvalidInput(
            f"{folder} has no safetensors, only pickled weights ({pickled[0]}), and unpickling "
            "runs any code in them; pass allow_pickle=True if you trust them"
        )
    if not pickled:
        raise InvalidInput(f"{folder} has no weights: expected *.safetensors")


def _check_safetensors(file: Path) -> None:
    """Read the header, which gives the length of the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is damaged or truncated ({error}); fetch it again") from error


def from_hub(name: str, *, allow_pickle: bool = False, trust_remote_code: bool = False) -> Path:
    """The files of a model or a head from the hub, or from the hub's cache on this machine.

    Raises:
        ModelError: the hub cannot be reached, or has no such repository.
    """
    from huggingface_hub import snapshot_download

    wanted = [*_WANTED, *(_PICKLED if allow_pickle else ())]
    wanted += ["*.py"] if trust_remote_code else []
    try:
        # Subfolders hold other formats; "consolidated" files hold the same weights again.
        return Path(
            snapshot_download(
                name, allow_patterns=wanted, ignore_patterns=["*/*", "consolidated*", "training*"]
            )
        )
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), one_line(error))
        raise ModelError(f"could not get {name!r} from the model hub ({reason})") from error
