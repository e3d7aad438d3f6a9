"""The formats of EAGLE's own repository, which SpecForge and others write too.

EAGLE-1 and 2 (2401.15077, 2406.16858) are one format: `fc` and an ordinary layer without a norm
before its attention. EAGLE-3 calls its layer `midlayer`. Files of EAGLE-3 differ in what two
settings mean, by who wrote them:

| dialect | numbers of layers | `norm_output` |
|---|---|---|
| eagle | what enters a layer | not known |
| vllm | what enters a layer | the state after the last norm is fed back |
| specforge | what leaves a layer | whether there is a last norm |

So a file that has one of the settings is refused until its dialect is named. Without them all mean
the same: layers 2, L // 2 and L - 3.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paceline.errors import InvalidInput, UnsupportedModel
from paceline.models.heads.eagle3 import Eagle3Settings, build_eagle3
from paceline.models.heads.files import HeadFiles
from paceline.models.heads.format import HeadFormat, HeadOptions, always
from paceline.models.heads.weights import HeadWeights, layer_config, layer_numbers, same
from paceline.targets.heads.inputs import FinalState, Projected
from paceline.targets.heads.network import FeatureNetwork
from paceline.targets.heads.state import FeatureHead

DIALECTS = ("eagle", "vllm", "specforge")

_LAYERS = "eagle_aux_hidden_state_layer_ids"


def _recognises_3(files: HeadFiles) -> bool:
    return files.has("fc.weight") and (
        files.has("midlayer.hidden_norm.weight") or files.has("layers.0.hidden_norm.weight")
    )


def _read_3(files: HeadFiles, options: HeadOptions) -> FeatureHead:
    settings = eagle3_settings(files, options.dialect)
    weights = HeadWeights(files, _layer_of_eagle, settings.layer_config, options)
    return build_eagle3(settings, weights, options)


def _layer_of_eagle(name: str) -> str:
    """EAGLE's name for the layer in that of other formats, which vLLM's own files have."""
    return name.replace("midlayer.", "layers.0.", 1) if name.startswith("midlayer.") else name


def eagle3_settings(files: HeadFiles, dialect: str | None) -> Eagle3Settings:
    """What config.json says of an EAGLE-3 head.

    Raises:
        InvalidInput: it may mean one thing or another, and no dialect was named.
        UnsupportedModel: a head without a last norm.
    """
    config, name = dict(files.config), str(files.path)
    if dialect is not None and dialect not in DIALECTS:
        raise InvalidInput(
            f"unknown dialect {dialect!r} of EAGLE-3 files; it is one of {', '.join(DIALECTS)}"
        )
    within = config.get("eagle_config")
    given = (within if isinstance(within, Mapping) else config).get(_LAYERS, config.get(_LAYERS))
    told = [
        key
        for key, found in ((_LAYERS, given), ("norm_output", config.get("norm_output")))
        if found is not None
    ]
    if told and dialect is None:
        raise InvalidInput(
            f"{name} sets {' and '.join(told)}, which mean one thing in files of SpecForge and "
            "another in those of vLLM (docs/drafters/eagle.md). Name who wrote it: "
            f"{', '.join(f'{files.name}@{one}' for one in DIALECTS)} (dialect= in load_head)"
        )
    is_specforge = dialect == "specforge"
    if is_specforge and config.get("norm_output") is False:
        raise UnsupportedModel(f"{name} is a head without a last norm, which is not known here")
    layers = layer_config({"model_type": "llama", **config}, name)
    width = config.get("target_hidden_size")
    return Eagle3Settings(
        layers,
        layers=layer_numbers(given, name, shift=1 if is_specforge else 0),
        target_hidden_size=width if isinstance(width, int) else None,
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_before_fc=bool(config.get("norm_before_fc", False)),
        fc_norm=bool(config.get("fc_norm", False)),
        norm_output=dialect == "vllm" and bool(config.get("norm_output", False)),
    )


def _recognises_1(files: HeadFiles) -> bool:
    return files.has("fc.weight") and files.has("layers.0.self_attn.q_proj.weight")


def _read_1(files: HeadFiles, options: HeadOptions) -> FeatureHead:
    name = str(files.path)
    config = layer_config({"model_type": "llama", **files.config}, name)
    weights = HeadWeights(files, same, config, options)
    hidden, num_layers = weights.shape.hidden_size, weights.shape.num_layers
    weights.check_target(hidden)
    # Some files hold a norm that no implementation applies.
    files.leave("layers.0.input_layernorm.weight")
    with torch.inference_mode():
        first = weights.layer("layers.0", input_norm=False)
        others = [weights.layer(f"layers.{number}") for number in range(1, num_layers)]
        network = FeatureNetwork(
            weights.name,
            weights.math(first, *others),
            FinalState(hidden),
            Projected(weights.product("fc", hidden, 2 * hidden)),
            (first, *others),
            None,
            weights.vocabulary(),
        )
    weights.finish("EAGLE")
    return FeatureHead(network, "eagle")


FORMAT_3 = HeadFormat("EAGLE-3", always("eagle"), _recognises_3, _read_3, has_dialects=True)
FORMAT_1 = HeadFormat("EAGLE", always("eagle"), _recognises_1, _read_1)
