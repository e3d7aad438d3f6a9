"""The network of a DFlash head with gradients (2602.06036), in plain torch.

With h the states entering some layers of the target, row by row, the context is

    c = hidden_norm(fc(h))

A block begins with an anchor, the last token that is known, at position p, and masks after it:

    x = E[anchor, mask, ..., mask]  at the positions p, p + 1, ...

In every layer the rows of the block see the context of the positions before p and one another, both
ways; keys and values of the context come from c in each layer, queries from the block alone. Row j
of the block (from 1) predicts the token at p + j: logits = R norm(x).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.train.eagle_network import INIT, Mlp, Norm, Shape, rotated
from paceline.train.store import Captured


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The sizes of a head.

    Args:
        layer: of each of its layers.
        num_layers: how many.
        block_size: the rows of a block; it drafts one token less.
        mask_token: what stands for tokens that are not known yet.
    """

    layer: Shape
    num_layers: int
    block_size: int
    mask_token: int


class BlockAttention(nn.Module):
    """Attention of blocks to the context and to themselves.

    Args:
        shape: of the layer.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.shape = shape.hidden_size, shape
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.q_norm, self.k_norm = Norm(shape.head_dim), Norm(shape.head_dim)

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        """Attend.

        Args:
            x: the blocks, `[A, B, hidden]`.
            context: `[T, hidden]`.
            anchors: the position of each block's first row, `[A]`: it sees the context before it.

        Returns:
            `[A, B, hidden]`.
        """
        num_blocks, size, _ = x.shape
        places = (anchors[:, None] + torch.arange(size)).flatten()
        rows = x.flatten(0, 1)
        query = rotated(self.q_norm(self._heads(self.q_proj(rows))), places)
        own_key = rotated(self.k_norm(self._heads(self.k_proj(rows))), places)
        key = self.k_norm(self._heads(self.k_proj(context)))
        key = rotated(key, torch.arange(len(context)))
        own_value, value = self._heads(self.v_proj(rows)), self._heads(self.v_proj(context))
        dtype, scale = value.dtype, self.shape.head_dim**-0.5
        query, key, own_key = query.to(dtype), key.to(dtype), own_key.to(dtype)
        scores = (query @ key.transpose(-1, -2)).float() * scale
        later = torch.arange(len(context)) >= anchors.repeat_interleave(size)[:, None]
        scores = scores.masked_fill(later, -torch.inf)
        blocks = len(query), num_blocks, size, -1
        inside = query.reshape(blocks) @ own_key.reshape(blocks).mT
        scores = torch.cat([scores, inside.float().flatten(1, 2) * scale], dim=-1)
        weights = scores.softmax(dim=-1).to(dtype)
        found = weights[..., : len(context)] @ value
        mixed = weights[..., len(context) :].reshape(blocks) @ own_value.reshape(blocks)
        found = (found + mixed.flatten(1, 2)).transpose(0, 1).flatten(1)
        out: Tensor = self.o_proj(found)
        return out.view(x.shape)

    def _heads(self, x: Tensor) -> Tensor:
        """`[n, hidden]` to `[heads, n, head_dim]`."""
        return x.view(len(x), self.shape.num_heads, self.shape.head_dim).transpose(0, 1)


class BlockLayer(nn.Module):
    """A layer, with the names that its weights have in files."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size)
        self.self_attn, self.mlp = BlockAttention(shape), Mlp(shape)

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        """See `BlockAttention.forward`."""
        x = x + self.self_attn(self.input_layernorm(x), context, anchors)
        found: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return found


class BlockNetwork(nn.Module):
    """The head.

    Args:
        shape: its sizes.
        embedding: the target's, `[V, hidden]`, which stays as it is.
        rows: those of the target's output head in the draft vocabulary, `[Vd, hidden]`, which stay
            as they are.
        seed: of the first weights.
    """

    embedding: Tensor
    rows: Tensor

    def __init__(self, shape: BlockShape, embedding: Tensor, rows: Tensor, *, seed: int) -> None:
        super().__init__()
        self.shape, width = shape, shape.layer.hidden_size
        self.fc = nn.Linear(shape.layer.num_taps * width, width, bias=False)
        self.hidden_norm = Norm(width)
        self.layers = nn.ModuleList(BlockLayer(shape.layer) for _ in range(shape.num_layers))
        self.norm = Norm(width)
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("rows", rows, persistent=False)
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    parameter.copy_(INIT * torch.randn(parameter.shape, generator=random))
            self.fc.weight[:, -width:] += torch.eye(width)

    def read(self, one: Captured) -> Tensor:
        """The states of the layers that it reads, side by side, `[T, taps * hidden]`."""
        return torch.cat([*one.hidden.layers.values()], dim=-1)

    def context(self, states: Tensor) -> Tensor:
        """From the states of `read` to the context `[T, hidden]`."""
        found: Tensor = self.hidden_norm(self.fc(states))
        return found

    def forward(self, context: Tensor, tokens: Tensor, anchors: Tensor) -> Tensor:
        """The logits of some blocks.

        Args:
            context: `[T, hidden]`.
            tokens: the first of each block, `[A]`.
            anchors: their positions, `[A]`.

        Returns:
            `[A, block_size - 1, Vd]`.
        """
        size = self.shape.block_size
        block = torch.full((len(tokens), size), self.shape.mask_token)
        block[:, 0] = tokens
        x = functional.embedding(block, self.embedding)
        for layer in self.layers:
            x = layer(x, context, anchors)
        normed = self.norm(x[:, 1:])
        return functional.linear(normed.to(self.rows.dtype), self.rows)
