"""What goes into a head: the target's hidden states, joined with the embedding of the next token.

A row of a head is a pair: the state of the token at position i, and the token at i + 1. The state
becomes a *feature* of the head's own width, `fuse`; feature and embedding then go into its first
layer together, `join`. Drafted tokens are joined with the head's own output in place of a fused
state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.kernels.linear import Linear, pad_rows


class Norming(Protocol):
    """What inputs need of the mathematics of a head."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its activations."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm, as its layers have it."""
        ...


class Fuse(Protocol):
    """From hidden states of the target to features."""

    @property
    def reads(self) -> Hidden:
        """The states that it needs."""
        ...

    @property
    def width(self) -> int:
        """The width of each state."""
        ...

    def __call__(self, math: Norming, hidden: HiddenStates) -> Tensor:
        """Features `[n, hidden]` of n rows."""
        ...


class Join(Protocol):
    """From embeddings and features to what goes into the first layer."""

    @property
    def num_bytes(self) -> int:
        """The weights of products that a pass reads."""
        ...

    def __call__(self, math: Norming, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The normed inputs of the attention `[n, in]`, and the residual `[n, hidden]`."""
        ...


@dataclass(frozen=True, slots=True)
class FinalState:
    """The state after the final norm is the feature (EAGLE 2401.15077, DeepSeek-V3 2412.19437).

    Args:
        width: of the state.
    """

    width: int
    reads: ClassVar[Hidden] = Hidden(final=True)

    def __call__(self, math: Norming, hidden: HiddenStates) -> Tensor:
        """See `Fuse`."""
        assert hidden.final is not None
        return hidden.final.to(math.device, math.dtype, copy=True)


@dataclass(frozen=True, slots=True, eq=False)
class TappedLayers:
    """The states that enter some layers, side by side, projected (EAGLE-3, 2503.01840).

    Args:
        layers: in the order in which their states stand side by side.
        width: of each state.
        project: `[hidden, len(layers) * width]`.
        norm: of all states together, before the projection; None for none.
        norms: of each state (EAGLE-3.1, 2605.09992); empty for none.
    """

    layers: Sequence[int]
    width: int
    project: Linear
    norm: Tensor | None = None
    norms: Sequence[Tensor] = ()

    @property
    def reads(self) -> Hidden:
        """See `Fuse`."""
        return Hidden(tuple(self.layers))

    def __call__(self, math: Norming, hidden: HiddenStates) -> Tensor:
        """See `Fuse`."""
        return self.fuse(math, torch.cat([hidden.layers[layer] for layer in self.layers], dim=-1))

    def fuse(self, math: Norming, states: Tensor) -> Tensor:
        """The features of states that stand side by side, `[n, len(layers) * hidden]`."""
        x = states.to(math.device, math.dtype)
        if self.norm is not None:
            x = math.norm(x, self.norm)
        if self.norms:
            parts = x.chunk(len(self.norms), dim=-1)
            pairs = zip(parts, self.norms, strict=True)
            x = torch.cat([math.norm(part, norm) for part, norm in pairs], dim=-1)
        return self.project(pad_rows(x, self.project.least_rows))[: len(states)]


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """Both go into the attention, which is twice as wide as the layer (EAGLE-3).

    Args:
        embedding_norm, feature_norm: the norms before the attention.
        norm_before_residual: whether the residual is the feature after its norm, or before.
    """

    embedding_norm: Tensor
    feature_norm: Tensor
    norm_before_residual: bool

    num_bytes: ClassVar[int] = 0

    def __call__(self, math: Norming, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """See `Join`."""
        normed = math.norm(features, self.feature_norm)
        inputs = torch.cat([math.norm(embedded, self.embedding_norm), normed], dim=-1)
        return inputs, normed if self.norm_before_residual else features


@dataclass(frozen=True, slots=True, eq=False)
class Projected:
    """Both are projected to one state, which goes into an ordinary layer (EAGLE-1, MTP).

    Args:
        project: `[hidden, 2 * hidden]`.
        embedding_norm, feature_norm: the norms before the projection; None for none.
        input_norm: the norm before the layer's attention; None for none.
        features_first: whether the feature stands before the embedding.
    """

    project: Linear
    embedding_norm: Tensor | None = None
    feature_norm: Tensor | None = None
    input_norm: Tensor | None = None
    features_first: bool = False

    @property
    def num_bytes(self) -> int:
        """See `Join`."""
        return self.project.num_bytes

    def __call__(self, math: Norming, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """See `Join`."""
        if self.embedding_norm is not None:
            embedded = math.norm(embedded, self.embedding_norm)
        if self.feature_norm is not None:
            features = math.norm(features, self.feature_norm)
        pair = [features, embedded] if self.features_first else [embedded, features]
        x = self.project(torch.cat(pair, dim=-1))
        return x if self.input_norm is None else math.norm(x, self.input_norm), x
