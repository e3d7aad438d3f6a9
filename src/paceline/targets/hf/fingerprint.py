"""A fingerprint of a model of transformers: all that determines its results but its weights.

What was found out about a model (how it attends, whether a probe accepted it) is valid as long as
its fingerprint is the same. Code that was added from outside, such as hooks and replaced functions,
may change its behaviour without looking different. So a model with such code has no fingerprint,
and is inspected again in every call.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import GenerationConfig, PreTrainedConfig

Fingerprint = tuple[Hashable, ...]

_SMALL = 4096
"""Buffers of up to this many numbers are compared by value: rotary frequencies, scales."""

_DEPTH = 4
"""How deep nested values are inspected: the settings of an adapter are in lists in dicts."""

_BOOKKEEPING = frozenset({"training", "generation_config", "hf_quantizer", "warnings_issued"})
"""Attributes that do not change what a pass in evaluation mode computes."""


class _Opaque(Exception):
    """A value that cannot be compared, or may behave differently though it stays the same."""


def is_patched(module: nn.Module) -> bool:
    """Whether a module's `forward` is not its class's; compiling it does not count."""
    forward = vars(module).get("forward")
    if forward is None:
        return False
    compiled = getattr(forward, "_torchdynamo_orig_callable", None)
    own = getattr(compiled, "__self__", None) is module
    return not (own and getattr(compiled, "__func__", None) is type(module).forward)


def fingerprint(model: nn.Module) -> Fingerprint | None:
    """Equal fingerprints and weights mean equal behaviour; None for a model with foreign code.

    It covers classes and their functions, settings of modules, configurations, adapters, and the
    dtypes, shapes and devices of tensors. It takes a few milliseconds.

    >>> one, other = nn.Linear(2, 3), nn.Linear(2, 3)
    >>> fingerprint(one) == fingerprint(other)
    True
    >>> handle = one.register_forward_pre_hook(print)
    >>> fingerprint(one) is None
    True
    """
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return None
    named = list(model.named_modules())
    try:
        modules = tuple(_of_module(name, module) for name, module in named)
    except _Opaque:
        return None
    kinds = dict.fromkeys(type(module) for _, module in named)
    held = (vars(module).get("config") for _, module in named)
    configs = {id(config): config for config in held if isinstance(config, PreTrainedConfig)}
    settings = tuple(
        (str(config.to_dict()), config._attn_implementation) for config in configs.values()
    )
    return modules, tuple(map(_code_of, kinds)), settings


def foreign_code(model: nn.Module) -> str | None:
    """Which module has a hook, or a `forward` that is not its class's; None if no module has.

    >>> model = nn.Sequential(nn.Linear(2, 3))
    >>> foreign_code(model)
    >>> model[0].forward = lambda x: x
    >>> foreign_code(model)
    "the forward of '0' was replaced"
    """
    for name, module in model.named_modules():
        where = repr(name) if name else "the model"
        if is_patched(module):
            return f"the forward of {where} was replaced"
        if _has_hooks(module):
            return f"{where} has a forward hook"
    return None


def _has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks that transformers did not add.

    Once a model was called with `output_hidden_states` or `output_attentions`, transformers leaves
    hooks on it that do nothing in other calls.
    """
    silent = "transformers.utils.output_capturing"
    hooks = module._forward_hooks.values()
    return bool(module._forward_pre_hooks) or any(
        not isinstance(hook, FunctionType) or hook.__module__ != silent for hook in hooks
    )


def _of_module(name: str, module: nn.Module) -> Hashable:
    if is_patched(module) or _has_hooks(module):
        raise _Opaque
    scratch = module._non_persistent_buffers_set
    tensors = (
        *((key, _of_tensor(value, by_value=False)) for key, value in module._parameters.items()),
        *((key, _of_tensor(value, by_value=True)) for key, value in module._buffers.items()),
    )
    settings = tuple(
        (key, _of_value(value, _DEPTH))
        for key, value in vars(module).items()
        if not key.startswith("_") and key not in _BOOKKEEPING and key != "forward"
    )
    # For an adapter: which of several is active and which are merged.
    hidden = tuple(
        (key, _of_value(value, _DEPTH))
        for key, value in vars(module).items()
        if key in ("_active_adapter", "_disable_adapters", "_hf_peft_config_loaded")
    )
    return name, type(module), tensors, tuple(sorted(scratch)), settings, hidden


def _of_tensor(tensor: Tensor | None, *, by_value: bool) -> Hashable:
    if tensor is None:
        return None
    look = type(tensor), tensor.dtype, tuple(tensor.shape), tensor.device
    if by_value and tensor.numel() <= _SMALL and not tensor.is_meta:
        return *look, tuple(tensor.detach().flatten().tolist())
    return look


def _of_value(value: Any, depth: int) -> Hashable:
    """A value in a form that can be compared.

    Raises:
        _Opaque: it is code, or something unknown.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes, type)):
        return value
    if isinstance(value, (torch.dtype, torch.device, torch.Size)):
        return value
    if isinstance(value, (nn.Module, PreTrainedConfig, GenerationConfig)):
        return type(value).__qualname__  # modules are inspected separately
    if isinstance(value, Tensor):
        return _of_tensor(value, by_value=True)
    if isinstance(value, FunctionType) and _is_importable(value):
        return value
    if isinstance(value, BuiltinFunctionType):
        return value
    if depth == 0:
        raise _Opaque
    if isinstance(value, partial):
        parts = value.func, value.args, value.keywords
        return tuple(_of_value(part, depth - 1) for part in parts)
    if callable(value):
        raise _Opaque
    if isinstance(value, Mapping):
        return tuple((str(key), _of_value(item, depth - 1)) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return frozenset(_of_value(item, depth - 1) for item in value)
    if isinstance(value, (list, tuple)):
        return tuple(_of_value(item, depth - 1) for item in value)
    if hasattr(value, "__dict__"):
        return type(value), _of_value(vars(value), depth - 1)
    raise _Opaque


def _is_importable(function: FunctionType) -> bool:
    """Whether its module has it under its name: no closure, no lambda."""
    home = sys.modules.get(function.__module__)
    return getattr(home, function.__qualname__, None) is function


def _code_of(kind: type) -> Hashable:
    """A class, its `forward`, and the functions of its module, which it may call."""
    home = sys.modules.get(kind.__module__)
    beside = vars(home).values() if home is not None else ()
    functions = tuple(value for value in beside if isinstance(value, FunctionType))
    return kind, getattr(kind, "forward", None), functions
