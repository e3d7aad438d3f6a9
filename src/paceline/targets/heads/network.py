"""A head with layers of its own, which is fed its own output: EAGLE and its kin, MTP modules.

One pass takes rows of one sequence: pairs of a feature and a token. The feature of a drafted row is
what the head itself gave after the row before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.hidden import Hidden
from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.errors import InvalidInput
from paceline.kernels.linear import Linear, pad_rows
from paceline.targets.attention import Pass
from paceline.targets.dense.layer import Layer, LayerMath
from paceline.targets.heads.inputs import Fuse, Join


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The tokens of a head, and its own embedding and output rows, where it has them.

    Args:
        embedding: `[V, hidden]`; None takes the target's.
        output: to logits, of all tokens or of `ids`; None takes the target's.
        ids: `[Vh]`, the target's id of each output; None for all of them, in order.
    """

    embedding: Tensor | None = None
    output: Linear | None = None
    ids: Tensor | None = None

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """What it takes of the target."""
        embedding = {Need.EMBEDDING} if self.embedding is None else set()
        return frozenset(embedding | ({Need.HEAD} if self.output is None else set()))

    def embed(self, view: TargetView) -> Callable[[Tensor], Tensor]:
        """From token ids `[n]` to embeddings `[n, hidden]`."""
        own = self.embedding
        if own is None:
            assert view.embed is not None
            return view.embed
        # Ids beyond its rows are padding of the target's vocabulary; any row stands for them.
        return lambda tokens: own[torch.where(tokens < len(own), tokens, 0)]

    def logits(self, view: TargetView) -> Callable[[Tensor], Tensor]:
        """From states `[n, hidden]` to logits `[n, Vh]`."""
        own, ids = self.output, self.ids
        if own is not None:
            return lambda states: own(pad_rows(states, own.least_rows))[: len(states)]
        whole = view.head
        assert whole is not None
        return whole if ids is None else lambda states: whole(states)[:, ids]


def check_view(
    name: str,
    needs: frozenset[Need | Hidden],
    width: int,
    vocabulary: Vocabulary,
    view: TargetView,
) -> None:
    """Refuse a target that a head was not made for.

    Args:
        name: of the head.
        needs: what it takes of the target.
        width: of the hidden states that it reads.
        vocabulary: its tokens.
        view: the target.

    Raises:
        InvalidInput: its hidden states have another width, or it does not give what the head takes,
            or it has another vocabulary.
    """
    info, embedding = view.info, vocabulary.embedding
    if info.hidden_size and info.hidden_size != width:
        raise InvalidInput(
            f"the draft head {name} reads hidden states of width {width}, and those of "
            f"{info.name} have {info.hidden_size}; it was made for another target"
        )
    if missing := info.lacks(needs):
        raise InvalidInput(
            f"the draft head {name} reads {', '.join(missing)}, which {info.name} does not give; "
            "it was made for another target"
        )
    if embedding is not None and len(embedding) != info.vocab_size:
        raise InvalidInput(
            f"the draft head {name} knows {len(embedding)} tokens, and {info.name} has "
            f"{info.vocab_size}; it was made for another target"
        )


@dataclass(frozen=True, slots=True, eq=False)
class FeatureNetwork:
    """The weights of a head and what they compute; shared by all sequences.

    Args:
        name: for messages.
        math: what its layers compute.
        fuse: hidden states to features.
        join: embeddings and features to what enters the first layer.
        layers: one or more; the norm before the attention of the first belongs to `join`.
        norm: before the output head; None for none.
        vocabulary: its tokens.
        feeds_normed: whether what is fed back is the state after `norm`.
        mask_token: the token of rows that have none yet, for heads that draft in one pass.
        mask_feature: the feature `[hidden]` of such rows; None for heads that are fed their output.
        zero_first: whether the embedding of the row at position 0 is zero (DeepSeek-V3).
    """

    name: str
    math: LayerMath
    fuse: Fuse
    join: Join
    layers: tuple[Layer, ...]
    norm: Tensor | None
    vocabulary: Vocabulary
    feeds_normed: bool = False
    mask_token: int = 0
    mask_feature: Tensor | None = field(default=None, repr=False)
    zero_first: bool = False

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """What it takes of the target."""
        return self.vocabulary.needs | {self.fuse.reads}

    @property
    def num_cached_layers(self) -> int:
        """See `core.traits`."""
        return len(self.layers)

    @property
    def num_bytes(self) -> int:
        """The weights of its own that a pass reads."""
        output = self.vocabulary.output
        layers = sum(layer.num_bytes for layer in self.layers)
        return layers + self.join.num_bytes + (0 if output is None else output.num_bytes)

    def run(self, embedded: Tensor, features: Tensor, batch: Pass) -> tuple[Tensor, Tensor]:
        """One pass over rows.

        Args:
            embedded: `[n, hidden]`, the embeddings of the tokens.
            features: `[n, hidden]`, what was fused, or fed back.
            batch: positions and segments of the rows.

        Returns:
            The states `[n, hidden]` before the output head, and those that are fed back.
        """
        math, rows = self.math, len(features)
        embedded = embedded.to(math.device, math.dtype)
        if self.zero_first:
            embedded = embedded.masked_fill((batch.positions == 0)[:, None], 0.0)
        angles = math.angles(batch.positions)
        first, *others = self.layers
        inputs, x = self.join(math, math.pad(embedded), math.pad(features))
        x = math.feed_forward(first, math.attention(0, first, inputs, x, batch, angles))
        for number, layer in enumerate(others, 1):
            assert layer.input_norm is not None
            inputs = math.norm(x, layer.input_norm)
            x = math.feed_forward(layer, math.attention(number, layer, inputs, x, batch, angles))
        x = x[:rows]
        states = x if self.norm is None else math.norm(x, self.norm)
        return states, states if self.feeds_normed else x
