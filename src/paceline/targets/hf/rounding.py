"""How much of a difference between two passes rounding explains, measured on the model itself.

In bfloat16 that depends on the model more than on the format. A trained model amplifies the
rounding of one product a thousandfold if a text begins unlike its training data, so no fixed
tolerance separates a fault from noise. Two measurements do: the model in float32, where rounding is
small in every model; and, if its weights cannot be cast (quantized, packed), how far its logits
move when each module's output is rounded differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paceline.kernels.packing import PackedModule

_LOW = (torch.float16, torch.bfloat16)

DRAWS = 4
"""How many times the outputs are rounded differently."""

_MARGIN = 2.0
"""The noise of a pass may be this many times that of the largest draw. A draw moves every output by
up to half a unit in the last place; another order of summation moves them by less."""


def can_be_float32(model: nn.Module) -> bool:
    """Whether all weights and buffers of the model are floating-point tensors that can be cast."""
    quantized = getattr(getattr(model, "config", None), "quantization_config", None) is not None
    return not quantized and not any(isinstance(m, PackedModule) for m in model.modules())


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Inside, every module casts its weights to float32 when it runs, and drops them afterwards.

    So memory holds one module in float32 at a time, not the whole model.
    """
    with ExitStack() as stack:
        for module in model.modules():
            own = [*module._parameters.items(), *module._buffers.items()]
            if any(tensor is not None and tensor.dtype in _LOW for _, tensor in own):
                stack.enter_context(_cast(module))
        yield


@contextmanager
def _cast(module: nn.Module) -> Iterator[None]:
    kept: list[tuple[dict[str, Any], str, Tensor]] = []

    def widen(*_: Any) -> None:
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.dtype in _LOW:
                    kept.append((tensors, name, tensor))
                    wide: Any = tensor.detach().float()
                    if tensors is module._parameters:
                        wide = nn.Parameter(wide, requires_grad=False)
                    tensors[name] = wide

    def restore(*_: Any) -> None:
        while kept:
            tensors, name, tensor = kept.pop()
            tensors[name] = tensor

    before = module.register_forward_pre_hook(widen)
    after = module.register_forward_hook(restore, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
        restore()


def row_noise(
    model: nn.Module, logits: Callable[[], Tensor], expected: Tensor, distance: Callable[..., float]
) -> Tensor:
    """The distance that rounding explains, for each row of `expected` `[..., N, V]`, `[..., N]`.

    Args:
        model: the outputs of its modules are rounded differently, by random parts of half a unit
            in the last place.
        logits: runs the model and returns its logits.
        expected: the logits of the unchanged model.
        distance: the error of a row, from the row and the expected one.
    """
    generator = torch.Generator().manual_seed(0)

    def jitter(module: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or output.dtype not in _LOW:
            return None
        part = torch.rand(output.shape, generator=generator).sub_(0.5).to(output.device)
        return (output.float() * (1 + part * torch.finfo(output.dtype).eps)).to(output.dtype)

    with ExitStack() as stack:
        for module in model.modules():
            if not any(True for _ in module.children()):
                stack.callback(module.register_forward_hook(jitter).remove)
        draws = [logits() for _ in range(DRAWS)]
    rows = expected.flatten(0, -2)
    worst = [
        max(distance(draw.flatten(0, -2)[n], row) for draw in draws) for n, row in enumerate(rows)
    ]
    return _MARGIN * torch.tensor(worst).view(expected.shape[:-1])
