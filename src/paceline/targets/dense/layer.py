"""A decoder layer of the Llama family: its fused weights, and its two parts on the rows of a pass.

Draft heads are made of the same layers with other inputs, so what goes into the attention is given
beside the residual that it is added to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.kernels.linear import Linear, pad_rows
from paceline.kernels.row_operations import gated, rms_norm, rotate
from paceline.targets.attention import Pass, attend
from paceline.targets.dense.architecture import ACTIVATIONS, Architecture

Angles = tuple[Tensor, Tensor]
"""Rotary cosines and signed sines of some positions, `[N, 1, head_dim]` each."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The weights of one decoder layer, fused.

    Args:
        input_norm: the norm before the attention; None if there is none.
        qkv: queries, keys and values, one after the other.
        qk_norms: the norms of each query and each key head; None if there are none.
        output: the output of the attention.
        post_norm: the norm before the feed-forward part.
        gate_up: gates and the values that they multiply.
        down: the output of the feed-forward part.
    """

    input_norm: Tensor | None
    qkv: Linear
    qk_norms: tuple[Tensor, Tensor] | None
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def num_bytes(self) -> int:
        """The weights that a pass reads."""
        products = (self.qkv, self.output, self.gate_up, self.down)
        return sum(product.num_bytes for product in products)


class LayerMath:
    """What the layers of one architecture compute; none keeps anything between calls."""

    def __init__(
        self,
        architecture: Architecture,
        dtype: torch.dtype,
        least_rows: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.architecture, self.dtype, self.least_rows = architecture, dtype, least_rows
        self.device = torch.device(device)
        self._activation: Callable[[Tensor], Tensor] = ACTIVATIONS[architecture.activation]
        self._frequencies = architecture.inverse_frequencies.to(device)
        half = architecture.head_dim // 2
        self._sign = torch.cat([-torch.ones(half), torch.ones(half)]).to(device)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm, as this family has it."""
        return rms_norm(x, weight, self.architecture.norm_eps, self.architecture.norm_offset)

    def pad(self, x: Tensor) -> Tensor:
        """See `targets.layers.LayeredDecoder.pad`."""
        return pad_rows(x, self.least_rows)

    def angles(self, positions: Tensor) -> Angles:
        """Rotary cosines and signed sines of the positions `[N]`."""
        angles = positions[:, None].float() * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)
        scale = self.architecture.rotary_scale
        cos, sin = angles.cos() * scale, angles.sin() * scale * self._sign
        return cos.to(self.dtype)[:, None], sin.to(self.dtype)[:, None]

    def attention(
        self, number: int, layer: Layer, x: Tensor, residual: Tensor, batch: Pass, angles: Angles
    ) -> Tensor:
        """The attention on normed inputs `x` `[N, in]`, added to `residual` `[N, hidden]`; padded.

        The rows' keys and values go into the states of `batch`, under the layer's `number`.
        """
        shape, rows = self.architecture, batch.positions.shape[0]
        turned, value = self.heads(layer, x, rows, angles)
        seen = attend(
            number,
            turned[: shape.num_heads],
            turned[shape.num_heads :],
            value,
            batch,
            scale=shape.head_dim**-0.5,
        )
        return layer.output(self.pad(seen.reshape(rows, -1)), residual)

    def heads(self, layer: Layer, x: Tensor, rows: int, angles: Angles) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated, and values of the first rows of normed inputs `x`, by heads.

        Returns:
            `[heads + kv_heads, rows, head_dim]`, queries before keys, and
            `[kv_heads, rows, head_dim]`.
        """
        shape = self.architecture
        rotated = shape.num_heads + shape.num_kv_heads
        cos, sin = angles
        qkv = layer.qkv(x)
        if qkv.shape[0] > rows:
            qkv = qkv[:rows]
        heads = qkv.view(rows, rotated + shape.num_kv_heads, shape.head_dim)
        turned, value = heads[:, :rotated], heads[:, rotated:]
        if layer.qk_norms is not None:
            query, key = turned.split([shape.num_heads, shape.num_kv_heads], dim=1)
            query, key = self.norm(query, layer.qk_norms[0]), self.norm(key, layer.qk_norms[1])
            turned = torch.cat([query, key], dim=1)
        return rotate(turned, cos, sin), value.transpose(0, 1)

    def feed_forward(self, layer: Layer, x: Tensor) -> Tensor:
        """The feed-forward part, added to its input `x` `[N, hidden]`."""
        inner = layer.gate_up(self.norm(x, layer.post_norm))
        return layer.down(gated(inner, self._activation), x)
