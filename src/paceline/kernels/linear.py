"""The contract of a linear layer, however its weights are stored."""

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
        """The bytes that a pass reads."""
        ...

    @property
    def least_rows(self) -> int:
        """Fewer rows than this take longer: pad the input, and drop the padding afterwards."""
        ...


def pad_rows(x: Tensor, rows: int) -> Tensor:
    """Zero rows added to `x` `[n, d]` up to `rows` rows; `x` itself if it has that many.

    >>> import torch
    >>> pad_rows(torch.ones(1, 2), 2)
    tensor([[1., 1.],
            [0., 0.]])
    """
    missing = rows - x.shape[0]
    return x if missing <= 0 else functional.pad(x, (0, 0, 0, missing))
