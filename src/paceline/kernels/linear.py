"""What a linear layer is, however its weights are kept."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional


class Linear(Protocol):
    """x W^T + b, with an optional residual added: `[n, in]` to `[n, out]`."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Apply the layer."""
        ...

    @property
    def num_bytes(self) -> int:
        """The memory that a pass reads."""
        ...

    @property
    def least_rows(self) -> int:
        """Fewer rows than this take longer: pad them, and drop the padding behind."""
        ...


def pad_rows(x: Tensor, rows: int) -> Tensor:
    """Zeros below `x` `[n, d]`, up to `rows` rows; `x` itself where it has as many.

    >>> import torch
    >>> pad_rows(torch.ones(1, 2), 2)
    tensor([[1., 1.],
            [0., 0.]])
    """
    missing = rows - len(x)
    return x if missing <= 0 else functional.pad(x, (0, 0, 0, missing))
