"""The format of vLLM's `speculators` package: what it writes, and what vLLM serves.

`config.json` names the kind in `speculators_model_type`, and holds the configuration of the draft's
layers in `transformer_layer_config`. Layers of the target are numbered by what enters them, as in
`core.hidden`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.drafting.heads.contract import Head
from paceline.errors import InvalidInput, ModelError, UnsupportedModel
from paceline.models.heads.dflash import block_settings, build_block
from paceline.models.heads.eagle3 import Eagle3Settings, build_eagle3, checked, names_of
from paceline.models.heads.files import HeadFiles
from paceline.models.heads.format import HeadFormat, HeadOptions
from paceline.models.heads.mtp import SPECULATORS, build_mtp
from paceline.models.heads.speculators_files import cut_vocabulary, write_head
from paceline.models.heads.weights import HeadWeights, layer_config, layer_numbers, same
from paceline.targets.heads.state import FeatureHead

_RESIDUAL = {"speculators": False, "vllm": True}
"""What a file without `norm_before_residual` means, by who reads it."""


def _recognises(files: HeadFiles) -> bool:
    return "speculators_model_type" in files.config


def _known_kind(files: HeadFiles) -> str:
    kind = files.config["speculators_model_type"]
    if not isinstance(kind, str) or kind not in READERS:
        raise UnsupportedModel(
            f"{files.path} is a head of kind {kind!r} in the speculators format; the kinds that "
            f"are known here are {', '.join(READERS)}"
        )
    return kind


def _read(files: HeadFiles, options: HeadOptions) -> Head:
    kind = _known_kind(files)
    # Rows of the target that are only there for training.
    files.leave(*(key for key in files.keys if key.startswith("verifier_")))
    return READERS[kind](files, options)


def _read_eagle3(files: HeadFiles, options: HeadOptions) -> FeatureHead:
    settings = eagle3_settings(files, options.dialect)
    return build_eagle3(settings, HeadWeights(files, same, settings.layer_config, options), options)


def _read_mtp(files: HeadFiles, options: HeadOptions) -> FeatureHead:
    config = layer_config(files.config.get("transformer_layer_config"), str(files.path))
    return build_mtp(files, SPECULATORS, config, options)


def _read_block(files: HeadFiles, options: HeadOptions) -> Head:
    kind = files.config["speculators_model_type"]
    return build_block(block_settings(files, files.config, kind), files, options)


READERS: Mapping[str, Callable[[HeadFiles, HeadOptions], Head]] = {
    "eagle3": _read_eagle3,
    "peagle": _read_eagle3,
    "mtp": _read_mtp,
    "dflash": _read_block,
    "dspark": _read_block,
}

_DRAFTERS = {"eagle3": "eagle", "peagle": "eagle"}
"""The drafters of the kinds that have another name than theirs."""


def _drafter_of(files: HeadFiles) -> str:
    kind = _known_kind(files)
    return _DRAFTERS.get(kind, kind)


FORMAT = HeadFormat("speculators", _drafter_of, _recognises, _read, has_dialects=True)


def eagle3_settings(files: HeadFiles, dialect: str | None) -> Eagle3Settings:
    """What config.json says of an EAGLE-3 or P-EAGLE head.

    Raises:
        ModelError: a setting is missing or of another type.
        InvalidInput: it does not say whether the residual is normed, and no dialect was named.
    """
    config, name = files.config, str(files.path)
    residual = _flag(config, "norm_before_residual", None, name)
    if residual is None:
        if dialect not in _RESIDUAL:
            raise InvalidInput(
                f"{name} does not say norm_before_residual: the speculators package then takes "
                f"False, and vLLM True. Name which it was made for: {files.name}@speculators or "
                f"{files.name}@vllm (dialect= in load_head)"
            )
        residual = _RESIDUAL[dialect]
    mask = None
    if config["speculators_model_type"] == "peagle":
        mask = config.get("mask_token_id")
        if isinstance(mask, bool) or not isinstance(mask, int) or mask < 0:
            raise ModelError(f"{name}: mask_token_id must be a token id; it is {mask!r:.40}")
    return Eagle3Settings(
        layer_config(config.get("transformer_layer_config"), name),
        layers=layer_numbers(config.get("eagle_aux_hidden_state_layer_ids"), name),
        target_hidden_size=config.get("target_hidden_size"),
        norm_before_residual=residual,
        norm_before_fc=bool(_flag(config, "norm_before_fc", False, name)),
        fc_norm=bool(_flag(config, "fc_norm", False, name)),
        norm_output=bool(_flag(config, "norm_output", False, name)),
        mask_token=mask,
        max_levels=_speculative_tokens(config),
    )


def _flag(config: Mapping[str, Any], setting: str, default: bool | None, name: str) -> bool | None:
    value = config.get(setting, default)
    if value is not default and not isinstance(value, bool):
        raise ModelError(f"{name}: {setting} must be true or false; it is {value!r:.40}")
    return value


def _speculative_tokens(config: Mapping[str, Any]) -> int | None:
    """The draft length that the file proposes."""
    within = config.get("speculators_config")
    methods = within.get("proposal_methods") if isinstance(within, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    found = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    return found if isinstance(found, int) and found > 0 else None


def save_eagle3(
    folder: Path,
    settings: Eagle3Settings,
    weights: Mapping[str, Tensor],
    *,
    verifier: str,
    architectures: list[str],
    num_draft_tokens: int,
    token_ids: Tensor | None = None,
) -> list[Path]:
    """Write an EAGLE-3 or P-EAGLE head in the speculators format, which vLLM serves.

    `norm_before_residual` is always written: who reads a file without it assumes either.

    Args:
        folder: made if it is not there.
        settings: its description, layers included.
        weights: by the names of the format, without those of the vocabulary (`d2t`, `t2d`);
            `embed_tokens.weight` may be left to the target.
        verifier: the name or folder of the target.
        architectures: the target's, as in its config.json.
        num_draft_tokens: the draft length that the file proposes.
        token_ids: `[Vh]`, the target's id of each output, rising; None for all tokens.

    Returns:
        The files.

    Raises:
        InvalidInput: weights are missing or unknown, or the folder cannot be written to.
    """
    if settings.layers is None:
        raise InvalidInput("the layers that a head reads must be written with it; give layers")
    shape = settings.layer_config
    optional = frozenset({"embed_tokens.weight"} & set(weights))
    checked(weights, names_of(settings, len(settings.layers)) | optional)
    count = shape.vocab_size if token_ids is None else len(token_ids)
    if len(weights["lm_head.weight"]) != count:
        raise InvalidInput(
            f"the head has {len(weights['lm_head.weight'])} outputs, and there are {count} tokens"
        )
    kind = "eagle3" if settings.mask_token is None else "peagle"
    own = {
        "architectures": ["Eagle3Speculator" if kind == "eagle3" else "PEagleSpeculator"],
        "draft_vocab_size": count,
        "eagle_aux_hidden_state_layer_ids": sorted(settings.layers),
        "target_hidden_size": settings.target_hidden_size,
        "norm_before_residual": settings.norm_before_residual,
        "norm_before_fc": settings.norm_before_fc,
        "fc_norm": settings.fc_norm,
        "norm_output": settings.norm_output,
        "embed_requires_grad": "embed_tokens.weight" in weights,
        "dtype": str(weights["fc.weight"].dtype).removeprefix("torch."),
    }
    if settings.mask_token is not None:
        own["mask_token_id"] = settings.mask_token
    return write_head(
        folder,
        kind,
        {**weights, **cut_vocabulary(token_ids, shape.vocab_size)},
        shape,
        verifier=verifier,
        architectures=architectures,
        num_draft_tokens=num_draft_tokens,
        own=own,
    )
