"""The linear layers of a shadow, run by kernels that read weights at memory bandwidth."""

from __future__ import annotations

from torch import Tensor, nn

from paceline.kernels.shared import SharedLinear
from paceline.targets.hf.fingerprint import is_patched

_WORTH_IT = 2**16
"""The size of a weight from which reading it takes time; smaller ones stay in the caches."""


def share_products(shadow: nn.Module) -> None:
    """Let `SharedLinear` compute every plain linear layer of `shadow`.

    The modules stay, with their weights and hooks. Layers of other classes (such as quantized ones)
    and layers whose `forward` was replaced are not changed.
    """
    for module in shadow.modules():
        if type(module) is not nn.Linear or is_patched(module):
            continue
        if module.weight.numel() >= _WORTH_IT:
            module.__dict__["forward"] = _Product(module)


class _Product:
    """Replaces the `forward` of a linear layer, whose weight may be replaced at any time."""

    def __init__(self, module: nn.Linear) -> None:
        self._module = module
        self._product = SharedLinear([module.weight], [module.bias])

    def __call__(self, x: Tensor) -> Tensor:
        module, product = self._module, self._product
        if product.weights[0] is not module.weight or product.biases[0] is not module.bias:
            product = self._product = SharedLinear([module.weight], [module.bias])
        out = product(x.reshape(-1, x.shape[-1]))
        return out.view(*x.shape[:-1], out.shape[-1])
