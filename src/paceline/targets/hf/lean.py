"""The lean decoder over a model in memory: it shares the weights and runs none of the modules.

It computes what the classes of transformers make of a configuration. So it takes only models that
are exactly that: every module is as its class built it, without hooks, adapters, quantized weights
or replaced functions. For all others there is `decoder.HFDecoder`, which runs the modules.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.architecture import Architecture, unsupported
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.dense.loading import over
from paceline.targets.hf.fingerprint import foreign_code

_DTYPES = (torch.bfloat16, torch.float32)

_PLAIN_ATTENTION = ("eager", "sdpa")

_LENGTH = 12
"""The length of the text that a small model is compared on."""

_TOLERANCE = 5e-4
"""The largest difference that rounding in float32 explains; up to 1e-6 was measured."""


def lean_decoder(model: nn.Module, *, row_costs: Mapping[int, float] | None = None) -> DenseDecoder:
    """A decoder over the weights of `model`, which is not changed; see `not_lean`.

    Making it takes hardly any time. It has to be made again when weights of the model are replaced,
    not when their values change.

    Args:
        model: a causal language model of transformers.
        row_costs: see `kernels.packing.row_costs`.
    """
    config: Any = copy.copy(model.config)
    config.name_or_path = config.name_or_path or type(model).__name__
    # The model's own frequencies: moving a whole model to another dtype rounds them.
    frequencies = model.get_buffer("model.rotary_emb.inv_freq").float()
    shape = replace(Architecture.of(config), inverse_frequencies=frequencies)
    return over(named_weights(model), shape, config.intermediate_size, row_costs=row_costs)


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, with those of a tied head; they share the model's memory."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: weight.detach() for name, weight in named}


def not_lean(model: nn.Module) -> str | None:
    """Why the lean decoder does not take this model; None if it does.

    It is compared with a model that its class builds from its configuration on the meta device.
    """
    config = getattr(model, "config", None)
    if not isinstance(config, PreTrainedConfig):
        return "it is not a model of transformers"
    if reason := unsupported(config):
        return reason
    if reason := foreign_code(model):
        return reason
    if config._attn_implementation not in _PLAIN_ATTENTION or not _is_theirs(
        ALL_ATTENTION_FUNCTIONS[config._attn_implementation], "transformers"
    ):
        return f"its attention is {config._attn_implementation!r}"
    for kind in {type(module) for module in model.modules()}:
        if not (_is_theirs(kind, "torch", "transformers") and _has_its_own_forward(kind)):
            return f"it holds a {kind.__name__}"
    dtypes = {weight.dtype for weight in model.parameters()}
    if len(dtypes) != 1 or dtypes.isdisjoint(_DTYPES):
        return f"its weights are {', '.join(sorted(map(str, dtypes)))}"
    if not all(_is_plain(weight) for weight in model.parameters()):
        return "its weights are not all plain tensors on the CPU"
    with torch.device("meta"):
        built = type(model)(copy.deepcopy(config))
    if reason := _difference(dict(model.named_modules()), dict(built.named_modules())):
        return reason
    if (error := _small_error(type(model), config)) > _TOLERANCE:
        return f"a small model of its class gives other logits (off by {error:.2g})"
    return None


def _small_error(kind: type, config: Any) -> float:
    """How far the lean decoder is off the class's own pass, for a small model in float32.

    The small model has the settings of `config`, except its sizes. The model itself may be in
    bfloat16, whose rounding would hide the differences, and its passes take long.
    """
    small = copy.deepcopy(config)
    grouped = config.num_key_value_heads < config.num_attention_heads
    sizes = {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2 if grouped else 4,
        "head_dim": 16,
        "layer_types": ["full_attention"] * 2,
        "dtype": torch.float32,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }
    for name, value in sizes.items():
        if hasattr(small, name):
            setattr(small, name, value)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(64, (_LENGTH,), generator=generator)
    with torch.random.fork_rng(devices=()):  # building a model draws from the user's generator
        model = kind(small).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(noise / 4 if weight.dim() > 1 else 1 + noise / 10)
        expected = model(tokens[None], use_cache=False).logits[0]
    target, (root, *rest) = CachedTarget(lean_decoder(model)), tokens.tolist()
    slot = target.open(_LENGTH)
    prefill(target, slot, [root, *rest[: _LENGTH // 2]])
    draft = Draft(tuple(rest[_LENGTH // 2 + 1 :]))
    found = target.score([Work(slot, [rest[_LENGTH // 2]], draft)])[0].logits
    target.close(slot)
    expected = expected[-len(found) :]
    return float((found - expected).norm() / expected.norm())


def _difference(found: Mapping[str, nn.Module], built: Mapping[str, nn.Module]) -> str | None:
    """Where a model differs from what its class makes of its configuration."""
    if found.keys() != built.keys():
        return f"its modules differ ({next(iter(found.keys() ^ built.keys()))!r})"
    for name, module in found.items():
        fresh = built[name]
        if type(module) is not type(fresh):
            return f"{name!r} is a {type(module).__name__}"
        shapes = (
            {key: None if p is None else p.shape for key, p in m._parameters.items()}
            for m in (module, fresh)
        )
        ours, theirs = shapes
        if ours != theirs:
            return f"the weights of {name!r} have other sizes"
        for key, value in vars(fresh).items():
            known = value is None or isinstance(value, (bool, int, float, str))
            skip = key.startswith("_") or key in ("training", "name_or_path")
            if known and not skip and vars(module).get(key) != value:
                return f"{key!r} of {name!r} was changed"
    return None


def _is_plain(weight: Tensor) -> bool:
    return (
        type(weight) is nn.Parameter
        and type(weight.data) is Tensor
        and weight.is_cpu
        and weight.is_contiguous()
    )


def _is_theirs(thing: Any, *packages: str) -> bool:
    return thing.__module__.partition(".")[0] in packages


def _has_its_own_forward(kind: type) -> bool:
    """Whether a class has the `forward` of its source, and not one patched in from elsewhere."""
    home = sys.modules.get(kind.__module__)
    for base in kind.__mro__:
        if "forward" in vars(base):
            forward = vars(base)["forward"]
            own = getattr(forward, "__wrapped__", forward)
            return bool(own.__module__ == base.__module__) and home is not None
    return True
