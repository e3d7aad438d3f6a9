"""EAGLE-3, 3.1 and P-EAGLE: from a description and named weights to a head, whatever the format.

The names of the weights are those of the speculators format; readers of other formats rename.
Sources: 2503.01840 (EAGLE-3), 2605.09992 (3.1), 2602.01469 (P-EAGLE).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput
from paceline.models.heads.format import HeadOptions
from paceline.models.heads.weights import HeadWeights
from paceline.targets.heads.inputs import SideBySide, TappedLayers
from paceline.targets.heads.network import FeatureNetwork
from paceline.targets.heads.state import FeatureHead

MAX_PARALLEL = 8
"""The levels of a P-EAGLE head whose file does not say how many it was trained for."""


@dataclass(frozen=True, slots=True)
class Eagle3Settings:
    """What a checkpoint says of a head, in one form for all formats.

    Args:
        layer_config: the `transformers` configuration of its layers; its vocabulary is the
            target's.
        layers: the target's layers that it reads, as in `core.hidden`; None takes 2, L // 2 and
            L - 3 of a target with L layers.
        target_hidden_size: the width of the target's hidden states; None is that of the layers.
        norm_before_residual: whether the residual of the first layer is the feature after its norm.
        norm_before_fc: one norm of all states together before they are projected.
        fc_norm: a norm of each state before that (EAGLE-3.1).
        norm_output: whether the state after the last norm is fed back (EAGLE-3.1).
        mask_token: the token of the rows of a head that drafts in one pass (P-EAGLE); None for
            heads that are fed their own output.
        max_levels: of a head that drafts in one pass: the most tokens that it can draft.

    Raises:
        InvalidInput: settings that exclude one another.
    """

    layer_config: Any
    layers: tuple[int, ...] | None = None
    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    mask_token: int | None = None
    max_levels: int | None = None

    def __post_init__(self) -> None:
        if self.norm_before_fc and self.fc_norm:
            raise InvalidInput(
                "an EAGLE-3 head has norm_before_fc, or fc_norm, or neither; it has both"
            )

    @property
    def width(self) -> int:
        """The width of the target's hidden states."""
        return self.target_hidden_size or int(self.layer_config.hidden_size)


def layers_of(settings: Eagle3Settings, target: TargetInfo | None, name: str) -> tuple[int, ...]:
    """The layers that a head reads, in rising order.

    Raises:
        InvalidInput: they follow from the target, which is not known.
    """
    if settings.layers is not None:
        return tuple(sorted(settings.layers))
    if target is None or not target.num_layers:
        raise InvalidInput(
            f"{name} does not say which layers it reads: they are 2, L // 2 and L - 3 of a target "
            "with L layers; give the target's info when loading it"
        )
    layers = 2, target.num_layers // 2, target.num_layers - 3
    if not layers[0] < layers[1] < layers[2]:
        raise InvalidInput(
            f"{name} does not say which layers it reads, and {target.name} has "
            f"{target.num_layers}: too few for 2, L // 2 and L - 3 to differ. It was made for "
            "another target"
        )
    return layers


def build_eagle3(
    settings: Eagle3Settings, weights: HeadWeights, options: HeadOptions
) -> FeatureHead:
    """A head from its weights.

    Raises:
        ModelError: a weight is missing, has another size, or has no place.
        InvalidInput: it was made for another target.
        UnsupportedModel: its layers are of a kind that is not known here.
    """
    layers, width = layers_of(settings, options.target, weights.name), settings.width
    weights.check_target(width, num_layers=max(layers))
    hidden, num_layers = weights.shape.hidden_size, weights.shape.num_layers
    with torch.inference_mode():
        first = weights.layer("layers.0", inputs=2 * hidden)
        others = [weights.layer(f"layers.{number}") for number in range(1, num_layers)]
        norm, norms = None, []
        if settings.norm_before_fc:
            norm = weights.vector("input_norm.weight", len(layers) * width)
        if settings.fc_norm:
            names = [f"fc_norm.{number}.weight" for number in range(len(layers))]
            norms = [weights.vector(name, width) for name in names]
        math = weights.math(first, *others)
        fuse = TappedLayers(
            layers, width, weights.product("fc", hidden, len(layers) * width), norm, norms
        )
        mask = None
        if settings.mask_token is not None:
            weights.check_mask(settings.mask_token)
            states = weights.vector("mask_hidden", len(layers) * width)
            mask = fuse.fuse(math, states[None])[0]
        network = FeatureNetwork(
            weights.name,
            math,
            fuse,
            SideBySide(
                weights.vector("layers.0.input_layernorm.weight", hidden),
                weights.vector("layers.0.hidden_norm.weight", hidden),
                settings.norm_before_residual,
            ),
            (first, *others),
            weights.vector("norm.weight", hidden),
            weights.vocabulary(),
            feeds_normed=settings.norm_output,
            mask_token=settings.mask_token or 0,
            mask_feature=mask,
        )
    weights.finish("EAGLE-3")
    most = None if mask is None else settings.max_levels or MAX_PARALLEL
    return FeatureHead(network, "eagle", most)


def names_of(settings: Eagle3Settings, num_taps: int) -> frozenset[str]:
    """The names of the weights that a head must have, embedding and vocabulary apart."""
    names = {"fc.weight", "norm.weight", "layers.0.hidden_norm.weight", "lm_head.weight"}
    for number in range(settings.layer_config.num_hidden_layers):
        at = f"layers.{number}"
        names |= {f"{at}.input_layernorm.weight", f"{at}.post_attention_layernorm.weight"}
        names |= {f"{at}.self_attn.{x}_proj.weight" for x in "qkvo"}
        names |= {f"{at}.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
        if settings.layer_config.model_type == "qwen3":
            names |= {f"{at}.self_attn.{x}_norm.weight" for x in "qk"}
    if settings.norm_before_fc:
        names.add("input_norm.weight")
    if settings.fc_norm:
        names |= {f"fc_norm.{number}.weight" for number in range(num_taps)}
    if settings.mask_token is not None:
        names.add("mask_hidden")
    return frozenset(names)


def checked(weights: Mapping[str, Tensor], wanted: frozenset[str]) -> None:
    """Refuse weights of which some are missing, or nobody knows.

    Raises:
        InvalidInput: names them.
    """
    missing, left = sorted(wanted - set(weights)), sorted(set(weights) - wanted)
    if missing or left:
        wrong = [f"{', '.join(missing[:3])} missing"] if missing else []
        wrong += [f"{', '.join(left[:3])} without a place"] if left else []
        raise InvalidInput(f"these are not the weights of this head: {'; '.join(wrong)}")
