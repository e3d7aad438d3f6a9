"""A second set of modules over the same weights, so that the user's model is never changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import UnsupportedModel
from paceline.targets.hf.fingerprint import is_patched


def shadow_of(model: nn.Module) -> nn.Module:
    """A copy of `model` in evaluation mode: new modules and configs, the same weights.

    Tensors are shared, so they take no memory and later changes of the weights are seen. Buffers
    that are not in the state dict are copied, such as rotary frequencies, which some models rewrite
    during a pass. Hooks and adapters are copied with the modules; later changes of the model's
    modules are not seen.

    Raises:
        UnsupportedModel: the model cannot be copied, or parts of it are not in memory.
    """
    # A module that torch.compile made wraps the real one, whose code it shares.
    model = getattr(model, "_orig_mod", model)
    memo: dict[int, Any] = {}
    for tensor in _weights(model):
        if tensor.is_meta:
            raise UnsupportedModel(
                f"{type(model).__name__} has weights that are not in memory (on the meta device, "
                "or offloaded); load the whole model onto one or more devices"
            )
        memo[id(tensor)] = tensor
    try:
        shadow: nn.Module = copy.deepcopy(model, memo)
    except (TypeError, RuntimeError) as error:
        raise UnsupportedModel(
            f"the modules of {type(model).__name__} cannot be copied, which Paceline does to leave "
            f"your model as it is: {error}"
        ) from error
    for original, copied in zip(model.modules(), shadow.modules(), strict=True):
        if "forward" in vars(original) and not is_patched(original):
            del copied.forward  # compiled, over the original's modules; here is what it compiles
    return shadow.eval()


def _weights(model: nn.Module) -> Iterator[Tensor]:
    """Every shared tensor: those of the state dict, and others that modules hold."""
    for module in model.modules():
        scratch = module._non_persistent_buffers_set
        yield from (
            buffer
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in scratch
        )
        for name, value in vars(module).items():
            if name not in ("_buffers", "_modules"):
                yield from _held(value, _DEPTH)


_DEPTH = 3
"""How deep to search a module's attributes for tensors, such as packed weights in an object."""


def _held(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth == 0 or isinstance(value, (nn.Module, type)):
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _held(item, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _held(item, depth - 1)
    elif hasattr(value, "__dict__"):
        yield from _held(vars(value), depth)
