"""A head whose layer is one of transformers': MTP modules with experts, latent or gated attention.

The layer, and the norm after it, are those of a model with this one layer. In place of embeddings
it is given what the head joins of embeddings and features.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.hidden import Hidden
from paceline.core.target import Need
from paceline.kernels.row_operations import rms_norm
from paceline.targets.attention import Pass
from paceline.targets.heads.inputs import FinalState, Projected
from paceline.targets.heads.network import Vocabulary
from paceline.targets.hf.decoder import HFDecoder

_GIVEN: ContextVar[Tensor | None] = ContextVar("paceline_joined_inputs", default=None)

_STATES = Hidden((1,), final=True)
"""What leaves the one layer, and the state after the norm."""


class GivenInputs(nn.Embedding):
    """An embedding that gives way to what is given in its place."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torch
        """See `torch.nn.Embedding`."""
        given = _GIVEN.get()
        return super().forward(input) if given is None else given[None]


@contextmanager
def _given(x: Tensor) -> Iterator[None]:
    token = _GIVEN.set(x)
    try:
        yield
    finally:
        _GIVEN.reset(token)


@dataclass(frozen=True, slots=True)
class Norms:
    """The norms before the layer; see `inputs.Norming`."""

    eps: float
    offset: float
    dtype: torch.dtype
    device: torch.device

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm."""
        return rms_norm(x, weight, self.eps, self.offset)


@dataclass(frozen=True, slots=True, eq=False)
class ModelLayerNetwork:
    """See `network.FeatureNetwork`, of which it takes the place.

    Args:
        name: for messages.
        math: the norms before the layer.
        fuse, join, vocabulary, feeds_normed, zero_first: see `FeatureNetwork`.
        decoder: the model with one layer, whose embedding is a `GivenInputs`.
    """

    name: str
    math: Norms
    fuse: FinalState
    join: Projected
    decoder: HFDecoder = field(repr=False)
    vocabulary: Vocabulary
    feeds_normed: bool = False
    zero_first: bool = False

    mask_token: int = 0
    mask_feature: Tensor | None = None

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """What it takes of the target."""
        return self.vocabulary.needs | {self.fuse.reads}

    @property
    def num_cached_layers(self) -> int:
        """See `core.traits`."""
        return 1

    @property
    def num_bytes(self) -> int:
        """The weights of its own that a pass reads."""
        output = self.vocabulary.output
        own = self.decoder.num_bytes + self.join.num_bytes
        return own + (0 if output is None else output.num_bytes)

    def run(self, embedded: Tensor, features: Tensor, batch: Pass) -> tuple[Tensor, Tensor]:
        """See `FeatureNetwork.run`."""
        embedded = embedded.to(self.math.device, self.math.dtype)
        if self.zero_first:
            embedded = embedded.masked_fill((batch.positions == 0)[:, None], 0.0)
        _, x = self.join(self.math, embedded, features)
        with _given(x):
            hidden = self.decoder.run(_for_states(batch)).hidden
        assert hidden is not None
        assert hidden.final is not None
        return hidden.final, hidden.final if self.feeds_normed else hidden.layers[1]


def _for_states(batch: Pass) -> Pass:
    """The pass, with the states that are wanted of the one layer; its tokens mean nothing."""
    return replace(batch, tokens=torch.zeros_like(batch.tokens), hidden=_STATES)


def put_inputs(model: Any) -> Any:
    """The model, with an embedding that gives way to what is given."""
    old = model.get_input_embeddings()
    rows, width = old.weight.shape
    new = GivenInputs(rows, width, dtype=old.weight.dtype, device=old.weight.device)
    new.weight = old.weight
    model.set_input_embeddings(new)
    return model
