"""Where a model is placed: the `device` and `device_map` of a load."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model is to be. Without either it is the CPU, where Paceline's own decoder runs.

    Args:
        device: all of it on this device.
        device_map: as `from_pretrained` of transformers takes it.
    """

    device: torch.device | None = None
    device_map: Any = None

    @property
    def reason(self) -> str | None:
        """Why the lean decoder cannot take a model that is placed so; None if it can."""
        if self.device is None and self.device_map is None:
            return None
        where = f"device_map={self.device_map!r}" if self.device is None else f"{self.device}"
        return f"it runs on the CPU only, and this model goes to {where}"


def placement(device: Any = None, device_map: Any = None) -> Placement:
    """What `device` and `device_map` say.

    Raises:
        InvalidInput: both are given, there is no such device here, or accelerate is not installed.

    Example:
        >>> placement("cpu")
        Placement(device=None, device_map=None)
    """
    if device is not None and device_map is not None:
        raise InvalidInput("device and device_map both say where the model goes; give one of them")
    if device_map is None:
        found = _device("device", device)
        return Placement() if found is None else Placement(found)
    if isinstance(device_map, (str, int, torch.device)) and device_map not in _STRATEGIES:
        found = _device("device_map", device_map)
        return Placement() if found is None else Placement(found)
    if not isinstance(device_map, (str, dict)) or not device_map:
        raise InvalidInput(
            f"device_map must be a device, one of {', '.join(_STRATEGIES)}, or a dict from modules "
            f"to devices; it is {device_map!r}"
        )
    for part in () if isinstance(device_map, str) else device_map.values():
        if part != "disk":
            _device("each device of device_map", part)
    if importlib.util.find_spec("accelerate") is None:
        raise InvalidInput(
            f"device_map={device_map!r} needs the package accelerate, which is not installed "
            "(`pip install accelerate`); for one device give device= instead"
        )
    return Placement(device_map=device_map)


_STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")


def check_place(model: Any, device: Any = None, device_map: Any = None) -> None:
    """Refuse a place for a loaded model that is not where it already is.

    Raises:
        InvalidInput: it is elsewhere, or there is no such place.
    """
    if device is None and device_map is None:
        return
    place = placement(device, device_map)
    weight = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    wanted = place.device or torch.device("cpu")
    if place.device_map is not None or weight is None or weight.device != _indexed(wanted):
        raise InvalidInput(
            "a model that you have loaded runs where its weights are; move it first, as in "
            "`model.to(device)`, and leave device and device_map out"
        )


def _device(name: str, given: Any) -> torch.device | None:
    """The device that `given` names, None for the CPU."""
    if given is None:
        return None
    try:
        if isinstance(given, bool):
            raise TypeError
        if isinstance(given, int):
            given = f"{_accelerator()}:{given}"
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise InvalidInput(
            f"{name} must be a device of torch, such as 'cpu', 'cuda' or 'cuda:1'; it is {given!r}"
        ) from error
    if device.type == "cpu":
        return None
    if device.type == "meta":
        raise InvalidInput(f"{name}={given!r}: weights on the meta device hold no numbers")
    count = _count(device.type)
    if (device.index or 0) >= count:
        has = f"{count} of this kind" if count else "none of this kind"
        raise InvalidInput(
            f"{name}={given!r}: torch {torch.__version__} sees {has} on this machine; leave {name} "
            "out to decode on the CPU, or install the torch for your device"
        )
    return device


def _accelerator() -> str:
    """The kind of device that a number alone means."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cuda" if found is None else found.type


def _count(kind: str) -> int:
    """How many devices of this kind torch sees."""
    try:
        module = torch.get_device_module(kind)
        return int(module.device_count()) if module.is_available() else 0
    except (RuntimeError, AttributeError):
        return 0


def _indexed(device: torch.device) -> torch.device:
    """The device with its number: `cuda` is the current one."""
    if device.type == "cpu" or ":" in str(device):
        return device
    return torch.device(device.type, torch.get_device_module(device.type).current_device())
