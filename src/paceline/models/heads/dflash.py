"""DFlash and DSpark heads: from a description and named weights to a head, and z-lab's format.

The names of the weights are those of the speculators format, which z-lab's files share.
Sources: DFlash 2602.06036; DSpark 2607.05147.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paceline.errors import InvalidInput, ModelError, UnsupportedModel
from paceline.models.heads.files import HeadFiles
from paceline.models.heads.format import HeadFormat, HeadOptions, always
from paceline.models.heads.weights import HeadWeights, layer_config, layer_numbers, same
from paceline.targets.heads.block import BlockHead
from paceline.targets.heads.inputs import TappedLayers
from paceline.targets.heads.tail import Confidence, Markov, Recurrent, Tail


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """What a checkpoint says of a block head, in one form for all formats.

    Args:
        drafter: "dflash" or "dspark".
        layer_config: the `transformers` configuration of its layers.
        layers: the target's layers that it reads, as in `core.hidden`.
        block_size: the rows of a block.
        mask_token: what stands for tokens that are not known yet.
        from_first: see `BlockHead`.
        chained: the kind of DSpark's sequential head: "vanilla", "gated" or "rnn"; None for none.
        rank: of that head.
        is_sure_by_token: whether DSpark's confidence reads the token before, too.
    """

    drafter: str
    layer_config: Any
    layers: tuple[int, ...]
    block_size: int
    mask_token: int
    from_first: bool
    chained: str | None = None
    rank: int = 0
    is_sure_by_token: bool = True


def build_block(settings: BlockSettings, files: HeadFiles, options: HeadOptions) -> BlockHead:
    """A head from its weights.

    Raises:
        ModelError: a weight is missing, has another size, or has no place.
        InvalidInput: it was made for another target.
    """
    weights = HeadWeights(files, same, settings.layer_config, options)
    hidden, num_taps = weights.shape.hidden_size, len(settings.layers)
    weights.check_target(hidden, num_layers=max(settings.layers))
    weights.check_mask(settings.mask_token)
    with torch.inference_mode():
        layers = tuple(weights.layer(f"layers.{n}") for n in range(weights.shape.num_layers))
        vocabulary = weights.vocabulary()
        fuse = TappedLayers(
            settings.layers, hidden, weights.product("fc", hidden, num_taps * hidden)
        )
        head = BlockHead(
            weights.name,
            settings.drafter,
            weights.math(*layers),
            fuse,
            weights.vector("hidden_norm.weight", hidden),
            layers,
            weights.vector("norm.weight", hidden),
            vocabulary,
            settings.mask_token,
            settings.block_size,
            settings.from_first,
            _tail(settings, weights, vocabulary.ids),
        )
    weights.finish("DFlash" if settings.drafter == "dflash" else "DSpark")
    return head


def _tail(settings: BlockSettings, weights: HeadWeights, ids: torch.Tensor | None) -> Tail | None:
    """What a DSpark head computes from token to token."""
    kind, rank, hidden = settings.chained, settings.rank, weights.shape.hidden_size
    if kind is None:
        return None
    if weights.is_cut:
        raise InvalidInput(
            f"{weights.name}: what a DSpark head adds from token to token cannot be cut to some of "
            "its tokens; leave draft_head_tokens out"
        )
    size = weights.vocab_size
    embedding = weights.matrix("markov_head.markov_w1.weight", size, rank)
    output = weights.product("markov_head.markov_w2", size if ids is None else len(ids), rank)
    confidence = None
    if weights.has("confidence_head.proj.weight"):
        width = hidden + (rank if settings.is_sure_by_token else 0)
        confidence = Confidence(
            embedding if settings.is_sure_by_token else None,
            weights.matrix("confidence_head.proj.weight", 1, width),
            weights.vector("confidence_head.proj.bias", 1),
        )
    if kind == "rnn":
        joint = weights.product("markov_head.joint_proj", 3 * rank, 2 * rank + hidden)
        return Tail(Recurrent(embedding, output, joint), confidence)
    gate = None
    if kind == "gated":
        gate = weights.product("markov_head.gate_proj", rank, hidden + rank)
    return Tail(Markov(embedding, output, gate), confidence)


def block_settings(files: HeadFiles, config: Mapping[str, Any], drafter: str) -> BlockSettings:
    """What config.json of the speculators format says of a DFlash or DSpark head.

    Raises:
        ModelError: a setting is missing or of another type.
        UnsupportedModel: a kind of sequential head that is not known here.
    """
    name, is_dspark = str(files.path), drafter == "dspark"
    layers = layer_numbers(config.get("aux_hidden_state_layer_ids"), name)
    if layers is None:
        raise ModelError(f"{name} does not say which layers it reads (aux_hidden_state_layer_ids)")
    kind = config.get("markov_head_type", "vanilla")
    rank = config.get("markov_rank", 256) if is_dspark else 0
    if is_dspark and kind not in ("vanilla", "gated", "rnn"):
        raise UnsupportedModel(f"{name}: a sequential head of kind {kind!r} is not known here")
    return BlockSettings(
        drafter,
        layer_config(config.get("transformer_layer_config"), name),
        layers,
        files.number("block_size", 8),
        _mask(config.get("mask_token_id"), name),
        from_first=bool(config.get("sample_from_anchor", is_dspark)),
        chained=kind if rank else None,
        rank=rank,
        is_sure_by_token=bool(config.get("confidence_head_with_markov", True)),
    )


def _mask(found: Any, name: str) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise ModelError(f"{name}: mask_token_id must be a token id; it is {found!r:.40}")
    return found


def _recognises(files: HeadFiles) -> bool:
    return isinstance(files.config.get("dflash_config"), Mapping) and files.has("fc.weight")


def _read(files: HeadFiles, options: HeadOptions) -> BlockHead:
    """z-lab's format: layers are numbered by what leaves them, -1 is the embedding."""
    config, name = files.config, str(files.path)
    own = config["dflash_config"]
    layers = layer_numbers(own.get("target_layer_ids"), name, shift=1)
    if layers is None:
        raise ModelError(f"{name} does not say which layers it reads (target_layer_ids)")
    settings = BlockSettings(
        "dflash",
        layer_config({"model_type": "qwen3", **config}, name),
        layers,
        files.number("block_size"),
        _mask(own.get("mask_token_id"), name),
        from_first=False,
    )
    return build_block(settings, files, options)


FORMAT = HeadFormat("DFlash", always("dflash"), _recognises, _read)
