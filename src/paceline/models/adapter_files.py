"""The folders of adapters, as peft writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.errors import InvalidInput, ModelError, UnsupportedModel
from paceline.models.adapters import Adapter, LowRank
from paceline.models.cache import read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_LORA = re.compile(r"(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<part>[AB])(?:\.weight)?")
_WHOLE = re.compile(r"(?!.*lora_).+\.(?:weight|bias)")

_READ = {"peft_type", "lora_alpha", "use_rslora", "alpha_pattern", "modules_to_save"} | {
    "init_lora_weights"
}
_SEEN_IN_THE_TENSORS = {"r", "rank_pattern", "bias", "fan_in_fan_out", "target_modules"} | {
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
}
_OF_TRAINING = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
}
_KNOWN = _READ | _SEEN_IN_THE_TENSORS | _OF_TRAINING
_DEFAULT_ALPHA = 8
_BASE_UNCHANGED = (True, False, None, "gaussian", "orthogonal", "eva")
"""The ways to begin training that leave the base as it is."""


def base_and_adapter(
    source: str | Path, adapter: str | Path | None
) -> tuple[str | Path, Adapter | None]:
    """The model that is meant, and the adapter to merge into it.

    Args:
        source: a name, folder or file of a model; or the folder of an adapter that names its base.
        adapter: the folder of an adapter, if there is one.

    Raises:
        PacelineError: see `read_adapter`; or two adapters, or one that names no base.
    """
    if not _holds_adapter(source):
        return source, None if adapter is None else read_adapter(adapter)
    if adapter is not None:
        raise InvalidInput(f"{source} is an adapter itself; give one model and one adapter")
    found = read_adapter(source)
    if found.base is None:
        raise InvalidInput(
            f"{source} holds an adapter that does not say of which model; give the model, and this "
            "folder as `adapter` (`--adapter`)"
        )
    return found.base, found


def _holds_adapter(source: str | Path) -> bool:
    """Whether `source` is the folder of an adapter.

    Raises:
        InvalidInput: it holds a model as well.
    """
    try:
        folder = Path(source).expanduser()
        if not str(source) or not (folder / CONFIG).is_file():
            return False
        models = [
            file.name
            for kind in ("*.safetensors", "pytorch_model*.bin")
            for file in folder.glob(kind)
            if file.name != WEIGHTS
        ]
    except (OSError, ValueError, RuntimeError):
        return False  # no path at all
    if models:
        raise InvalidInput(
            f"{folder} holds a model ({models[0]}) and an adapter ({CONFIG}), so that it is not "
            "clear which is meant; move the adapter into a folder of its own"
        )
    return True


def read_adapter(path: str | Path) -> Adapter:
    """Read the folder of a LoRA adapter.

    Raises:
        InvalidInput: it is not such a folder.
        ModelError: it is damaged.
        UnsupportedModel: it is an adapter of another kind, or with parts that cannot be merged.
    """
    folder = Path(path).expanduser()
    config = read_json(folder / CONFIG)
    if config is None:
        raise InvalidInput(
            f"{folder} holds no {CONFIG}, so it is no adapter; expected a folder that peft wrote"
        )
    _check(folder, config)
    _check_values(folder, config)
    pairs: dict[str, dict[str, Tensor]] = {}
    embeddings: set[str] = set()
    whole: dict[str, Tensor] = {}
    for key, tensor in _tensors(folder).items():
        name = key.removeprefix(_PREFIX)
        name = name.replace(".base_layer.", ".").replace(".modules_to_save.", ".")
        if found := _LORA.fullmatch(name):
            pairs.setdefault(found["module"], {})[found["part"]] = tensor
            if found["kind"]:
                embeddings.add(found["module"])
        elif _WHOLE.fullmatch(name):
            whole[name] = tensor
        else:
            raise UnsupportedModel(f"{folder} holds {key!r}, which is no part of plain LoRA")
    low_rank = {
        module: _low_rank(folder, config, module, parts, module in embeddings)
        for module, parts in pairs.items()
    }
    own = {name for name in whole if name.endswith(".bias") or _is_own(name, config)}
    return Adapter(
        folder,
        config.get("base_model_name_or_path") or None,
        low_rank,
        {name: tensor for name, tensor in whole.items() if name in own},
        {name: tensor for name, tensor in whole.items() if name not in own},
    )


def _is_own(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a weight is of a module that was trained whole, in a copy of its own."""
    module = name.rpartition(".")[0]
    return any(f"{part}." in f"{module}." for part in config.get("modules_to_save") or ())


def _check(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse what is no LoRA, or more than that."""
    if (kind := config.get("peft_type")) != "LORA":
        raise UnsupportedModel(
            f"{folder} holds an adapter of type {kind!r}, and Paceline merges LoRA; merge it with "
            "peft if it can be merged, and give paceline.load the merged model"
        )
    if (start := config.get("init_lora_weights")) not in _BASE_UNCHANGED:
        raise UnsupportedModel(
            f"{folder} was trained from {start!r}, which changes the base's weights too; save it "
            "from peft with path_initial_model_for_weight_conversion, which makes plain LoRA of it"
        )
    if more := sorted(name for name, value in config.items() if value and name not in _KNOWN):
        raise UnsupportedModel(
            f"{folder} sets {', '.join(more)}, and Paceline merges plain LoRA only; merge it with "
            "peft, and give paceline.load the merged model"
        )


def _check_values(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse values that peft would not have written.

    Raises:
        ModelError: a setting that is read has no meaning.
    """

    def refuse(name: str, value: Any, expected: str) -> ModelError:
        return ModelError(
            f"{folder / CONFIG}: {name} must be {expected}; it is {value!r:.80}. The file was "
            "changed or damaged; save the adapter again"
        )

    base = config.get("base_model_name_or_path")
    if not isinstance(base, str | None):
        raise refuse("base_model_name_or_path", base, "the name of a model")
    whole = config.get("modules_to_save") or []
    if not isinstance(whole, list) or not all(isinstance(part, str) for part in whole):
        raise refuse("modules_to_save", whole, "a list of names")
    if not _is_number(alpha := config.get("lora_alpha", _DEFAULT_ALPHA)):
        raise refuse("lora_alpha", alpha, "a number")
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise refuse("alpha_pattern", patterns, "an object from names of modules to numbers")
    for pattern, value in patterns.items():
        if not _is_number(value):
            raise refuse(f"alpha_pattern of {pattern!r}", value, "a number")
        try:
            re.compile(pattern)
        except re.error as error:
            raise refuse("alpha_pattern", pattern, f"a regular expression ({error})") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        raise InvalidInput(
            f"{folder} holds no {WEIGHTS}"
            + ("; its weights are pickled: save it again with a newer peft" if pickled else "")
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged or truncated ({error}); fetch it again") from error


def _low_rank(
    folder: Path,
    config: Mapping[str, Any],
    module: str,
    parts: Mapping[str, Tensor],
    embedding: bool,
) -> LowRank:
    a, b = parts.get("A"), parts.get("B")
    matrices = a is not None and b is not None and a.dim() == b.dim() == 2
    if a is None or b is None or not matrices or not len(a) or len(a) != b.shape[1]:
        sizes = {part: list(tensor.shape) for part, tensor in parts.items()}
        raise ModelError(
            f"{folder}: A and B of {module} must be matrices [r, in] and [out, r]; they are {sizes}"
        )
    alpha = config.get("lora_alpha", _DEFAULT_ALPHA)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = value
            break
    rank = len(a)
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    return LowRank(a, b, float(scale), embedding)
