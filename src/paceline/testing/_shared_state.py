"""State of a plug-in that outlives its sessions: in its modules, classes and functions."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from torch import Tensor

_DEEP = 4
"""How deep values are followed from a name."""

_MANY = 10_000
"""A container with more items is compared by its length only."""


def shared_state(*objects: Any) -> dict[str, Any]:
    """What the modules and classes of the objects hold, by name.

    Plain values and containers are compared by value, instances of the package's own classes by
    their attributes, all else by identity. The contents of `functools.cache` are not seen.

    Args:
        objects: a plug-in, its sessions, and so on.
    """
    classes = [
        kind
        for one in objects
        for kind in type(one).__mro__
        if kind.__module__.split(".")[0] not in sys.stdlib_module_names
    ]
    found: dict[str, Any] = {}
    for kind in classes:
        package = kind.__module__.split(".")[0]
        for name, value in _own(vars(kind)):
            found[f"{kind.__qualname__}.{name}"] = _snapshot(value, package, _DEEP)
    for module in _modules(classes):
        package = module.__name__.split(".")[0]
        for name, value in _own(vars(module)):
            found[f"{module.__name__}.{name}"] = _snapshot(value, package, _DEEP)
    return found


def _modules(classes: list[type]) -> list[ModuleType]:
    """The modules that define the classes, plus all loaded modules of third-party packages."""
    names = {kind.__module__ for kind in classes}
    packages = {name.split(".")[0] for name in names} - {"paceline", "tests"}
    loaded = {name for name in sys.modules if name.split(".")[0] in packages}
    every = [sys.modules.get(name) for name in sorted(names | loaded)]
    return [module for module in every if isinstance(module, ModuleType)]


def _own(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The user-defined names; those that Python sets itself are left out."""
    for name, value in list(values.items()):
        if not (name.startswith("__") and name.endswith("__")):
            yield name, value


def _snapshot(value: Any, package: str, depth: int) -> Any:
    if isinstance(value, str | int | float | complex | bool | bytes | None):
        return value
    if depth == 0:
        return id(value)
    below = depth - 1
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        parts = [value.fget, value.fset]
        return tuple(_snapshot(part, package, below) for part in parts)
    if isinstance(value, FunctionType):
        return _function(value, package, below)
    if isinstance(value, Tensor):
        return (id(value), None if value.is_inference() else value._version)
    if isinstance(value, count | random.Random):
        return repr(value) if isinstance(value, count) else value.getstate()
    if isinstance(value, Mapping) and not isinstance(value, MappingProxyType):
        if len(value) > _MANY:
            return len(value)
        items = list(value.items())
        return [(_snapshot(k, package, below), _snapshot(v, package, below)) for k, v in items]
    if isinstance(value, list | tuple | set | frozenset | deque | bytearray):
        if len(value) > _MANY:
            return len(value)
        parts = [_snapshot(item, package, below) for item in value]
        return sorted(map(repr, parts)) if isinstance(value, set | frozenset) else parts
    own = type(value).__module__.split(".")[0] == package
    if own and not isinstance(value, type | ModuleType) and hasattr(value, "__dict__"):
        return [(name, _snapshot(item, package, below)) for name, item in _own(vars(value))]
    return id(value)


def _function(function: FunctionType, package: str, depth: int) -> Any:
    """Its defaults, its attributes and its closure, if it belongs to the package."""
    if function.__module__.split(".")[0] != package:
        return id(function)
    kept: list[Any] = [function.__defaults__, function.__kwdefaults__, vars(function)]
    for cell in function.__closure__ or ():
        try:
            kept.append(cell.cell_contents)
        except ValueError:  # not filled yet
            kept.append(None)
    return [_snapshot(item, package, depth) for item in kept]
