"""Multi-token prediction modules: those that come within a model's own files, and trained ones.

A module projects the embedding of the next token and the model's final state to one state, runs one
layer on it, and shares the model's output head. Modules differ in their names, in the order of the
two, and in what is fed back (DeepSeek-V3 2412.19437, section 2.2; MiMo 2505.07608).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paceline.errors import UnsupportedModel
from paceline.kernels.packing import make_linear
from paceline.models.heads.files import HeadFiles
from paceline.models.heads.format import HeadFormat, HeadOptions, always, check_target, kept_outputs
from paceline.models.heads.weights import (
    HeadWeights,
    layer_config,
    read_config,
    target_head_is_whole,
)
from paceline.models.loading import check_report
from paceline.targets.dense.architecture import unsupported
from paceline.targets.heads.inputs import FinalState, Projected
from paceline.targets.heads.model_layer import ModelLayerNetwork, Norms, put_inputs
from paceline.targets.heads.network import FeatureNetwork, Vocabulary
from paceline.targets.heads.state import FeatureHead
from paceline.targets.hf.decoder import HFDecoder


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """How a family writes its modules.

    Args:
        pattern: what the names of a module's tensors begin with; its group is the module's number.
        names: from the names after that to those of the builder; a name that ends with a dot stands
            for all that begin with it.
        features_first: see `Projected`.
        feeds_normed, zero_first: see `FeatureNetwork`.
        like: the kinds of layers, by the `model_type` of configurations that transformers does not
            know.
    """

    pattern: str
    names: Mapping[str, str]
    features_first: bool = False
    feeds_normed: bool = True
    zero_first: bool = False
    like: Mapping[str, str] | None = None

    def rename(self, key: str) -> str | None:
        """The name of a tensor of module 0 for the builder; None for all others."""
        found = re.match(self.pattern, key)
        if found is None:
            return None
        name = key[found.end() :]
        for own, known in self.names.items():
            if own.endswith(".") and name.startswith(own):
                return known + name.removeprefix(own)
            if name == own:
                return known
        return f"layers.0.{name}"


_MIMO = {
    "input_proj.weight": "fc.weight",
    "token_layernorm.weight": "embedding_norm.weight",
    "hidden_layernorm.weight": "feature_norm.weight",
    "final_layernorm.weight": "norm.weight",
}

SPECULATORS = ModuleKind(r"mtp_layers\.(\d+)\.", _MIMO)
"""The modules of the speculators format."""

MIMO = ModuleKind(
    r"model\.mtp_layers\.(\d+)\.",
    _MIMO,
    features_first=True,
    zero_first=True,
    like={"mimo": "qwen2"},
)

DEEPSEEK = ModuleKind(
    r"model\.layers\.(\d+)\.",
    {
        "eh_proj.weight": "fc.weight",
        "enorm.weight": "embedding_norm.weight",
        "hnorm.weight": "feature_norm.weight",
        "shared_head.norm.weight": "norm.weight",
        "shared_head.head.weight": "lm_head.weight",
        "embed_tokens.weight": "embed_tokens.weight",
    },
    feeds_normed=False,
    zero_first=True,
)
"""The modules of DeepSeek-V3 and of models that follow it; they stand after the last layer."""

QWEN = ModuleKind(
    r"mtp\.()",
    {
        "fc.weight": "fc.weight",
        "pre_fc_norm_embedding.weight": "embedding_norm.weight",
        "pre_fc_norm_hidden.weight": "feature_norm.weight",
        "norm.weight": "norm.weight",
        "layers.": "layers.",
    },
)


def build_by_transformers(
    files: HeadFiles, kind: ModuleKind, config: Mapping[str, Any], options: HeadOptions
) -> FeatureHead:
    """A module whose layer the lean decoder does not know, run by transformers' own.

    Raises:
        ModelError: a weight is missing, has another size, or has no place.
        InvalidInput: it was made for another target.
        UnsupportedModel: transformers does not know the layer, or it cannot be decoded.
    """
    name = files.name
    layers = one_layer(config, name)
    hidden, offset = int(layers.hidden_size), float(layers.model_type in _OFFSET)
    check_target(files, options.target, hidden_size=hidden, vocab_size=config.get("vocab_size"))
    names = {own: key for key in files.keys if (own := kind.rename(key)) is not None}
    files.leave(*(files.keys - set(names.values())))
    dtype = options.dtype_for(files.take(names.get("fc.weight", "fc.weight")))
    for needed in ("embedding_norm.weight", "feature_norm.weight", "norm.weight"):
        files.take(names.get(needed, needed), (hidden,))

    def weight(own: str, *shape: int) -> torch.Tensor:
        return files.take(names.get(own, own), shape).to(options.device, dtype)

    size = int(config["vocab_size"])
    embedding = (
        weight("embed_tokens.weight", size, hidden) if "embed_tokens.weight" in names else None
    )
    output, ids = None, None
    if "lm_head.weight" in names:
        kept = kept_outputs(files, None, options)
        rows = kept.of(weight("lm_head.weight", size, hidden))
        output, ids = make_linear(rows, None, options.storage), kept.token_ids
    elif options.token_ids is not None:
        raise target_head_is_whole(name)
    inside = {
        f"model.{own}": files.take(key).to(dtype)
        for own, key in names.items()
        if own.startswith("layers.") or own == "norm.weight"
    }
    model = load_one_layer(layers, inside, dtype, str(files.path)).to(options.device)
    with torch.inference_mode():
        network = ModelLayerNetwork(
            name,
            Norms(layers.rms_norm_eps, offset, dtype, torch.device(options.device)),
            FinalState(hidden),
            Projected(
                make_linear(weight("fc.weight", hidden, 2 * hidden), None, options.storage),
                weight("embedding_norm.weight", hidden),
                weight("feature_norm.weight", hidden),
                features_first=kind.features_first,
            ),
            HFDecoder(put_inputs(model)),
            Vocabulary(embedding, output, ids),
            feeds_normed=kind.feeds_normed,
            zero_first=kind.zero_first,
        )
    files.refuse_leftovers("MTP")
    return FeatureHead(network, "mtp")


_OFFSET = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
"""The kinds of models whose norms multiply by 1 + weight."""

_SMALL = 32
"""The vocabulary of the model with one layer: nothing is read of it."""


def one_layer(config: Mapping[str, Any], name: str) -> Any:
    """The configuration of a model with a module's layer alone.

    Raises:
        UnsupportedModel: transformers does not know the kind.
    """
    changes: dict[str, Any] = {"num_hidden_layers": 1, "vocab_size": _SMALL}
    changes["tie_word_embeddings"] = False
    if config.get("layer_types") is not None:
        changes["layer_types"] = ["full_attention"]
    if config.get("mlp_layer_types") is not None:
        changes["mlp_layer_types"] = [config["mlp_layer_types"][-1]]
    if "first_k_dense_replace" in config:
        changes["first_k_dense_replace"] = 0
    for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
        changes[token] = None
    found = read_config({**config, **changes}, name)
    found.name_or_path = name
    return found


def load_one_layer(
    config: Any, weights: dict[str, torch.Tensor], dtype: torch.dtype, name: str
) -> Any:
    """A model with one layer and these weights; those of its vocabulary are random.

    Raises:
        ModelError: weights are missing, of another size, or without a place.
        UnsupportedModel: transformers has no such model.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(f"{name}: transformers has no {config.model_type} language model")
    noise = torch.randn(_SMALL, config.hidden_size, generator=torch.Generator().manual_seed(0))
    weights |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), noise.to(dtype))
    model, report = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True
    )
    check_report(name, report)
    return model.eval()


def build_mtp(files: HeadFiles, kind: ModuleKind, config: Any, options: HeadOptions) -> FeatureHead:
    """A module as a head; k > 1 tokens are drafted by feeding it its own output.

    Raises:
        ModelError: a weight is missing, has another size, or has no place.
        InvalidInput: it was made for another target.
        UnsupportedModel: there are several modules.
    """
    weights = HeadWeights(files, kind.rename, config, options)
    hidden = weights.shape.hidden_size
    weights.check_target(hidden)
    with torch.inference_mode():
        layer = weights.layer("layers.0")
        network = FeatureNetwork(
            weights.name,
            weights.math(layer),
            FinalState(hidden),
            Projected(
                weights.product("fc", hidden, 2 * hidden),
                weights.vector("embedding_norm.weight", hidden),
                weights.vector("feature_norm.weight", hidden),
                weights.vector("layers.0.input_layernorm.weight", hidden),
                features_first=kind.features_first,
            ),
            (layer,),
            weights.vector("norm.weight", hidden),
            weights.vocabulary(),
            feeds_normed=kind.feeds_normed,
            zero_first=kind.zero_first,
        )
    weights.finish("MTP")
    return FeatureHead(network, "mtp")


def _kind_of(files: HeadFiles) -> ModuleKind | None:
    """The kind of the modules in a model's files; None if there are none."""
    for kind, mark in (
        (MIMO, r"model\.mtp_layers\.\d+\.input_proj\.weight"),
        (QWEN, r"mtp\.fc\.weight"),
        (DEEPSEEK, r"model\.layers\.\d+\.eh_proj\.weight"),
    ):
        if any(re.fullmatch(mark, key) for key in files.keys):
            return kind
    return None


def _recognises(files: HeadFiles) -> bool:
    return _kind_of(files) is not None


def _read(files: HeadFiles, options: HeadOptions) -> FeatureHead:
    kind, name = _kind_of(files), str(files.path)
    assert kind is not None
    config = dict(files.config.get("text_config") or files.config)
    model_type = str(config.get("model_type"))
    config["model_type"] = (kind.like or {}).get(model_type, model_type)
    if kind is DEEPSEEK:
        kind = _after_the_layers(files, config)
    numbers = {found[1] for key in files.keys if (found := re.match(kind.pattern, key))}
    if len(numbers) > 1:
        raise UnsupportedModel(
            f"{name} has {len(numbers)} MTP modules, each for one more token; models with one are "
            "known here"
        )
    if unsupported(read_config(config, name)) is not None:
        return build_by_transformers(files, kind, config, options)
    return build_mtp(files, kind, layer_config(config, name), options)


def _after_the_layers(files: HeadFiles, config: Mapping[str, Any]) -> ModuleKind:
    """DeepSeek's kind, for the modules that stand after a model's own layers."""
    first = config.get("num_hidden_layers")
    found = sorted(
        int(match[1])
        for key in files.keys
        if (match := re.fullmatch(r"model\.layers\.(\d+)\.eh_proj\.weight", key))
    )
    numbers = "|".join(
        str(number) for number in found if not isinstance(first, int) or number >= first
    )
    return ModuleKind(
        rf"model\.layers\.({numbers})\.", DEEPSEEK.names, feeds_normed=False, zero_first=True
    )


FORMAT = HeadFormat("MTP", always("mtp"), _recognises, _read)
