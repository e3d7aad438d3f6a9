"""A second device on a machine without one: CPU tensors that say that they are on it.

An operation that mixes its tensors with those of the CPU raises, as it does with a real device; so
a `to(device)` that was forgotten shows.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda:0")
_GUARDED = (Tensor.contiguous, Tensor.nonzero, Tensor.new_tensor, Tensor.__invert__)
"""Methods that look for the device before they say what they do."""
_MAY_MIX = ("aten::copy_", "aten::_to_copy")


class Elsewhere(Tensor):
    """A tensor on the other device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Elsewhere:
        memo[id(self)] = made = Elsewhere(copy.deepcopy(self.inner, memo))
        return made

    def tolist(self) -> Any:
        return self.inner.tolist()

    def item(self) -> Any:
        return self.inner.item()

    def __float__(self) -> float:
        return float(self.inner)

    def __int__(self) -> int:
        return int(self.inner)

    def __bool__(self) -> bool:
        return bool(self.inner)

    def __repr__(self, **options: Any) -> str:
        return f"Elsewhere({self.inner!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        strangers = [t for t in tensors if not isinstance(t, Elsewhere) and t.dim()]
        name = func._schema.name
        if strangers and name not in _MAY_MIX:
            raise RuntimeError(f"{name} was given tensors on {DEVICE} and on the CPU")
        to_cpu = str(kwargs.get("device")) == "cpu"
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        out = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        if name.rpartition("::")[2].endswith("_") and not name.endswith("__"):
            return args[0]  # in place
        return out if to_cpu else tree_map(_outer, out)


def _same(value: Any) -> Any:
    """A value that is assigned to a part of a tensor on the other device."""
    if isinstance(value, Tensor) and value.dim() and not isinstance(value, Elsewhere):
        raise RuntimeError(f"an assignment on {DEVICE} was given a tensor on the CPU")
    return _inner(value)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Elsewhere) else value


def _outer(value: Any) -> Any:
    return Elsewhere(_inner(value)) if isinstance(value, Tensor) else value


class OtherDevice(TorchFunctionMode):
    """While it is entered, tensors that are made on `DEVICE` are `Elsewhere`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _GUARDED and isinstance(args[0], Elsewhere):
            return Elsewhere(func(args[0].inner, *args[1:], **kwargs))
        if func is Tensor.cpu and isinstance(args[0], Elsewhere):
            return args[0].inner.clone()
        if func is Tensor.to:
            named = [value for value in (*args[1:], *kwargs.values()) if _is_device(value)]
            here = [torch.device("cpu") if _is_device(value) else value for value in args[1:]]
            there = {k: torch.device("cpu") if _is_device(v) else v for k, v in kwargs.items()}
            moved = func(_inner(args[0]), *map(_inner, here), **there)
            stays = isinstance(args[0], Elsewhere) and not named
            return Elsewhere(moved) if stays or any(map(_is_elsewhere, named)) else moved
        if func is Tensor.__getitem__ and isinstance(args[0], Elsewhere):
            return Elsewhere(args[0].inner[tree_map(_inner, args[1])])
        if func is Tensor.__setitem__ and isinstance(args[0], Elsewhere):
            args[0].inner[tree_map(_inner, args[1])] = _same(args[2])
            return None
        if _is_elsewhere(kwargs.get("device")):
            return _outer(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)


def _is_device(value: Any) -> bool:
    return isinstance(value, (torch.device, str))


def _is_elsewhere(value: Any) -> bool:
    return _is_device(value) and torch.device(value) == DEVICE


def move(model: nn.Module) -> Any:
    """Move all weights and buffers of a model to the other device, in place."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                moved = nn.Parameter(Elsewhere(weight.detach()), requires_grad=False)
                module._parameters[name] = moved
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Elsewhere(buffer)
    return model
