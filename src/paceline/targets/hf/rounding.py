"""How much of a difference between two passes rounding explains, measured on the model itself.

In bfloat16 that depends on the model more than on the format. Weights of trained models amplify the
rounding of one product a thousandfold where a text begins unlike those that they know, so that no
fixed tolerance tells a fault from noise. Two measures do: the model in float32, where rounding is
small whatever the model; and, where its weights exist in their own format alone (quantized,
packed), how far its logits move when each module's output is rounded another way.
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
"""How often the outputs are rounded another way."""

_MARGIN = 2.0
"""Noise of a pass may be this many times the largest of the draws. A draw moves every output by up
to half a unit in the last place; another order of summation moves them by less."""


def can_be_float32(model: nn.Module) -> bool:
    """Whether all that the model computes with are floating-point weights that can be cast."""
    quantized = getattr(getattr(model, "config", None), "quantization_config", None) is not None
    return not quantized and not any(isinstance(m, PackedModule) for m in model.modules())


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """While inside, every module casts its weights to float32 when it runs, and drops them after.

    So memory holds one module in float32 at a time, and not the model.
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
        model: whose modules' outputs are rounded another way, by random parts of half a unit in
            the last place.
        logits: runs the model.
        expected: what it gives as it is.
        distance: from a row and what it should be.
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
