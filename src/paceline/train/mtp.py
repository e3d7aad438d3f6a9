"""The network of a multi-token prediction module with gradients (DeepSeek-V3 2412.19437, 2.2).

Row i of a text holds the target's state h after its final norm at token i, and the token t that
follows:

    x = fc(token_norm(E[t]), hidden_norm(h))
    y = x + attention(input_norm(x));  y = y + mlp(post_norm(y));  logits = R norm(y)

are about token i + 2. To draft further, norm(y) takes the place of h, the drafted token that of t,
and the position is one on: one module, run again on its own output (FastMTP), as `drafter mtp`
does. The step weights are FastMTP's: .6^s, normalised.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.train.eagle_network import INIT, Attention, Mlp, Norm, Seen, Shape
from paceline.train.store import Captured

DECAY = 0.6
"""The weight of a step's loss, relative to the step before it."""


def weights_of(num_steps: int) -> tuple[float, ...]:
    """The weights of the steps' losses.

    >>> [round(weight, 2) for weight in weights_of(3)]
    [0.51, 0.31, 0.18]
    """
    weights = [DECAY**step for step in range(num_steps)]
    return tuple(weight / sum(weights) for weight in weights)


class MtpLayer(nn.Module):
    """The module's layer and norms, with the names of the speculators format."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.token_layernorm, self.hidden_layernorm = Norm(width), Norm(width)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.input_layernorm, self.post_attention_layernorm = Norm(width), Norm(width)
        self.self_attn, self.mlp = Attention(shape, width), Mlp(shape)
        self.final_layernorm = Norm(width)


class MtpNetwork(nn.Module):
    """The module; see `feature.Network`.

    Args:
        shape: its sizes.
        embedding: the target's, `[V, hidden]`, which stays as it is.
        rows: those of the target's output head, `[V, hidden]`, which stay as they are.
        seed: of the first weights.
    """

    embedding: Tensor
    rows: Tensor

    def __init__(self, shape: Shape, embedding: Tensor, rows: Tensor, *, seed: int) -> None:
        super().__init__()
        self.mtp_layers = nn.ModuleList([MtpLayer(shape)])
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("rows", rows, persistent=False)
        self._begin(seed, shape.hidden_size)

    @torch.no_grad()
    def _begin(self, seed: int, width: int) -> None:
        """The layer adds nothing at first, and x is the state."""
        random = torch.Generator().manual_seed(seed)
        layer = self.layer
        for parameter in layer.parameters():
            if parameter.dim() == 2:
                parameter.copy_(INIT * torch.randn(parameter.shape, generator=random))
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        layer.input_proj.weight[:, width:] += torch.eye(width)

    @property
    def layer(self) -> MtpLayer:
        """The only one."""
        (found,) = self.mtp_layers
        assert isinstance(found, MtpLayer)
        return found

    def read(self, one: Captured) -> Tensor:
        """See `feature.Network.read`: the state after the final norm."""
        assert one.hidden.final is not None
        return one.hidden.final

    def fuse(self, states: Tensor) -> Tensor:
        """See `feature.Network.fuse`: as they are."""
        return states

    def step(
        self, features: Tensor, tokens: Tensor, seen: Seen, step: int
    ) -> tuple[Tensor, Tensor, Seen]:
        """See `feature.Network.step`; features are h, or norm(y) of the step before."""
        layer = self.layer
        embedded = layer.token_layernorm(functional.embedding(tokens, self.embedding))
        x = layer.input_proj(torch.cat([embedded, layer.hidden_layernorm(features)], dim=-1))
        attended, seen = layer.self_attn(layer.input_layernorm(x), seen, step)
        y = x + attended
        y = y + layer.mlp(layer.post_attention_layernorm(y))
        normed = layer.final_layernorm(y)
        return normed, normed, seen
