"""The network of an EAGLE-3 head with gradients (Li et al. 2503.01840), in plain torch.

Row i of a text holds what the target knows after token i, and the token that follows. With h_lo,
h_mid, h_hi the states entering three layers of the target at token i, and t the token at i + 1,

    g = fc(h_lo, h_mid, h_hi)
    x = (input_norm(E[t]), hidden_norm(g))
    r = hidden_norm(g)
    y = r + attention(x);  y = y + mlp(post_norm(y));  logits = R norm(y)

are about token i + 2. To draft further, y takes the place of g, the drafted token that of t, and
the position is one on. A row of a further step sees the rows of the text up to its own, with the
target's states, and itself in the steps before: just what a draft sees in decoding (the paper's
training-time test).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.train.store import Captured

EPS = 1e-5
ROPE_THETA = 10_000.0
INIT = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a head.

    Args:
        hidden_size: of the target's states, and of the head's own.
        num_heads: of its attention, each with keys and values of its own.
        intermediate_size: of its feed-forward part.
        num_taps: the layers of the target that it reads.
    """

    hidden_size: int
    num_heads: int
    intermediate_size: int
    num_taps: int = 3

    @property
    def head_dim(self) -> int:
        """The width of an attention head."""
        return self.hidden_size // self.num_heads

    @classmethod
    def of(cls, hidden_size: int, num_taps: int = 3) -> Shape:
        """The shape for a target: heads of 64 components where they come out even.

        >>> Shape.of(576)
        Shape(hidden_size=576, num_heads=9, intermediate_size=1536, num_taps=3)
        """
        width = next(size for size in (64, 32, 16, 8, 4, 2) if hidden_size % size == 0)
        return cls(hidden_size, hidden_size // width, -(-8 * hidden_size // 192) * 64, num_taps)


class Norm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """`[.., width]`, in float32."""
        x = x.float()
        normed: Tensor = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS) * self.weight
        return normed


class Seen(NamedTuple):
    """Keys and values of the steps so far, `[B, heads, T, head_dim]` each.

    The first are those of the text, of which a row sees those up to its own; of every further step
    a row sees its own entry alone.
    """

    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()


class Attention(nn.Module):
    """Attention of a step of a draft; see `attended`.

    Args:
        shape: of the head.
        inputs: the width of what goes in.
    """

    def __init__(self, shape: Shape, inputs: int) -> None:
        super().__init__()
        width, self.shape = shape.hidden_size, shape
        self.q_proj = nn.Linear(inputs, width, bias=False)
        self.k_proj = nn.Linear(inputs, width, bias=False)
        self.v_proj = nn.Linear(inputs, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, seen: Seen, step: int) -> tuple[Tensor, Seen]:
        """`[B, T, inputs]` to `[B, T, hidden]`, and what the next step sees."""
        positions = torch.arange(x.shape[1]) + step
        query = rotated(self._heads(self.q_proj(x)), positions)
        key = rotated(self._heads(self.k_proj(x)), positions)
        seen = Seen((*seen.keys, key), (*seen.values, self._heads(self.v_proj(x))))
        found: Tensor = self.o_proj(attended(query, seen))
        return found, seen

    def _heads(self, x: Tensor) -> Tensor:
        """`[B, T, hidden]` to `[B, heads, T, head_dim]`."""
        shape = self.shape
        return x.view(*x.shape[:2], shape.num_heads, shape.head_dim).transpose(1, 2)


class Mlp(nn.Module):
    """down(SiLU(gate(x)) * up(x))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[.., hidden]`."""
        inner = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        found: Tensor = self.down_proj(inner)
        return found


class Layer(nn.Module):
    """The layer, with the names that its weights have in files."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.input_layernorm, self.hidden_norm = Norm(width), Norm(width)
        self.post_attention_layernorm = Norm(width)
        self.self_attn, self.mlp = Attention(shape, 2 * width), Mlp(shape)


class EagleNetwork(nn.Module):
    """The head.

    Args:
        shape: its sizes.
        embedding: the target's, `[V, hidden]`, which stays as it is.
        rows: those of the target's output head in the draft vocabulary, `[Vd, hidden]`.
        own_rows: whether the output rows are trained.
        seed: of the first weights.
    """

    embedding: Tensor

    def __init__(
        self, shape: Shape, embedding: Tensor, rows: Tensor, *, own_rows: bool, seed: int
    ) -> None:
        super().__init__()
        self.shape, width = shape, shape.hidden_size
        self.fc = nn.Linear(shape.num_taps * width, width, bias=False)
        self.layers = nn.ModuleList([Layer(shape)])
        self.norm = Norm(width)
        self.register_buffer("embedding", embedding, persistent=False)
        if own_rows:
            self.rows: Tensor = nn.Parameter(rows.float().clone())
        else:
            self.register_buffer("rows", rows, persistent=False)
        self._begin(seed)

    @torch.no_grad()
    def _begin(self, seed: int) -> None:
        """The layer adds nothing at first, and the feature is the state of the highest layer."""
        random = torch.Generator().manual_seed(seed)
        for parameter in (*self.fc.parameters(), *self.layer.parameters()):
            if parameter.dim() == 2:
                parameter.copy_(INIT * torch.randn(parameter.shape, generator=random))
        self.layer.self_attn.o_proj.weight.zero_()
        self.layer.mlp.down_proj.weight.zero_()
        width = self.shape.hidden_size
        self.fc.weight[:, -width:] += torch.eye(width)

    @property
    def layer(self) -> Layer:
        """The only one."""
        (found,) = self.layers
        assert isinstance(found, Layer)
        return found

    def read(self, one: Captured) -> Tensor:
        """The states of the layers that it reads, side by side, `[T, taps * hidden]`."""
        return torch.cat([*one.hidden.layers.values()], dim=-1)

    def fuse(self, taps: Tensor) -> Tensor:
        """From the states of the target's layers `[.., taps * hidden]` to features."""
        found: Tensor = self.fc(taps)
        return found

    def step(
        self, features: Tensor, tokens: Tensor, seen: Seen, step: int
    ) -> tuple[Tensor, Tensor, Seen]:
        """See `feature.Network.step`; features are g, or y of the step before."""
        layer, attention = self.layer, self.layer.self_attn
        residual = layer.hidden_norm(features)
        embedded = functional.embedding(tokens, self.embedding)
        x = torch.cat([layer.input_layernorm(embedded), residual], dim=-1)
        attended, seen = attention(x, seen, step)
        y = residual + attended
        y = y + layer.mlp(layer.post_attention_layernorm(y))
        return y, self.norm(y), seen


def attended(query: Tensor, seen: Seen) -> Tensor:
    """Attention to the rows of the text up to its own, and its own of each further step.

    Args:
        query: `[B, heads, T, head_dim]`.
        seen: with the keys and values of this step.

    Returns:
        `[B, T, heads * head_dim]`.
    """
    scale, length = query.shape[-1] ** -0.5, query.shape[2]
    scores = (query @ seen.keys[0].transpose(-1, -2)).float() * scale
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    own = [(query.float() * key.float()).sum(dim=-1, keepdim=True) * scale for key in seen.keys[1:]]
    weights = torch.cat([scores, *own], dim=-1).softmax(dim=-1).to(query.dtype)
    found = weights[..., :length] @ seen.values[0]
    for place, value in enumerate(seen.values[1:]):
        found = found + weights[..., length + place, None] * value
    return found.transpose(1, 2).flatten(2)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2104.09864), in the halves of Llama: `[.., T, head_dim]`."""
    width = x.shape[-1]
    rates = ROPE_THETA ** (-torch.arange(0, width, 2).float() / width)
    angles = positions[:, None].float() * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
