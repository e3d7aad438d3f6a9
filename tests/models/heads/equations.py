"""Draft heads written from the equations of their papers, in plain torch, without any cache.

Each computes all rows of a text anew. A row is a pair: a feature, and the token that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary positions on heads `[n, heads, dim]`: pair j turns by p theta^(-2j/dim)."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


@dataclass
class Shape:
    """Sizes of a layer."""

    heads: int = 4
    kv_heads: int = 2
    theta: float = 10000.0


PLAIN = Shape()


def attention(at: str, weights: Weights, x: Tensor, shape: Shape) -> Tensor:
    """Causal attention over all rows."""

    def heads(name: str, count: int) -> Tensor:
        out = x @ weights[f"{at}.{name}_proj.weight"].T
        if f"{at}.{name}_proj.bias" in weights:
            out = out + weights[f"{at}.{name}_proj.bias"]
        out = out.view(len(x), count, -1)
        norm = weights.get(f"{at}.{name}_norm.weight")
        return out if norm is None else rms_norm(out, norm)

    positions = torch.arange(len(x), dtype=torch.float32)
    q = rotated(heads("q", shape.heads), positions, shape.theta)
    k = rotated(heads("k", shape.kv_heads), positions, shape.theta)
    v = heads("v", shape.kv_heads)
    group = shape.heads // shape.kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
    out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(len(x), -1)
    return out @ weights[f"{at}.o_proj.weight"].T


def mlp(at: str, weights: Weights, x: Tensor) -> Tensor:
    """Gated units: down(silu(gate x) * up x)."""
    gate, up = x @ weights[f"{at}.gate_proj.weight"].T, x @ weights[f"{at}.up_proj.weight"].T
    return (torch.nn.functional.silu(gate) * up) @ weights[f"{at}.down_proj.weight"].T


def layer(at: str, weights: Weights, inputs: Tensor, residual: Tensor, shape: Shape) -> Tensor:
    """One layer: attention of `inputs` on `residual`, then the feed-forward part."""
    y = residual + attention(f"{at}.self_attn", weights, inputs, shape)
    return y + mlp(
        f"{at}.mlp", weights, rms_norm(y, weights[f"{at}.post_attention_layernorm.weight"])
    )


@dataclass
class Equations:
    """A head as equations.

    Args:
        fuse: from the states of the target's layers, and the final one, to features.
        rows: from embeddings and features of a whole text to the states before the output head, and
            those that are fed back.
        embed, head: embeddings, and logits.
    """

    fuse: Callable[[Mapping[int, Tensor], Tensor], Tensor]
    rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    embed: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    known: list[Tensor] = field(default_factory=list)

    def logits(
        self,
        layers: Mapping[int, Tensor],
        final: Tensor,
        tokens: Sequence[int],
        drafted: Sequence[int],
    ) -> Tensor:
        """The logits after the final tokens and each of a chain of drafted ones."""
        features = self.fuse(layers, final)
        given = [*tokens]
        out = []
        for step in range(len(drafted) + 1):
            states, fed = self.rows(self.embed(torch.tensor(given)), features)
            out.append(self.head(states[-1:])[0])
            if step < len(drafted):
                given.append(drafted[step])
                features = torch.cat([features, fed[-1:]])
        return torch.stack(out)


def eagle3(
    weights: Weights,
    layers: Sequence[int],
    *,
    num_layers: int = 1,
    norm_before_residual: bool = False,
    norm_before_fc: bool = False,
    fc_norm: bool = False,
    norm_output: bool = False,
    embed: Callable[[Tensor], Tensor] | None = None,
    shape: Shape = PLAIN,
) -> Equations:
    """2503.01840, section 3.1, and the norms of 2605.09992; no row of the future is seen."""

    def fuse(states: Mapping[int, Tensor], final: Tensor) -> Tensor:
        parts = [states[number] for number in layers]
        if fc_norm:
            parts = [rms_norm(x, weights[f"fc_norm.{i}.weight"]) for i, x in enumerate(parts)]
        g = torch.cat(parts, dim=-1)
        if norm_before_fc:
            g = rms_norm(g, weights["input_norm.weight"])
        return g @ weights["fc.weight"].T

    def rows(embedded: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        normed = rms_norm(g, weights["layers.0.hidden_norm.weight"])
        e = rms_norm(embedded, weights["layers.0.input_layernorm.weight"])
        residual = normed if norm_before_residual else g
        y = layer("layers.0", weights, torch.cat([e, normed], dim=-1), residual, shape)
        for number in range(1, num_layers):
            at = f"layers.{number}"
            y = layer(at, weights, rms_norm(y, weights[f"{at}.input_layernorm.weight"]), y, shape)
        last = rms_norm(y, weights["norm.weight"])
        return last, last if norm_output else y

    own = weights.get("embed_tokens.weight")
    return Equations(
        fuse,
        rows,
        embed if own is None else (lambda tokens: own[tokens]),  # type: ignore[arg-type]
        lambda states: states @ weights["lm_head.weight"].T,
    )


def eagle1(
    weights: Weights,
    head: Callable[[Tensor], Tensor],
    embed: Callable[[Tensor], Tensor],
    shape: Shape = PLAIN,
) -> Equations:
    """2401.15077, section 4.1: f' = layer(W [e; f] + b), without a norm before the attention."""

    def rows(embedded: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([embedded, f], dim=-1) @ weights["fc.weight"].T
        if "fc.bias" in weights:
            x = x + weights["fc.bias"]
        y = layer("layers.0", weights, x, x, shape)
        return y, y

    return Equations(lambda states, final: final, rows, embed, head)


def mtp(
    weights: Weights,
    head: Callable[[Tensor], Tensor],
    embed: Callable[[Tensor], Tensor],
    *,
    features_first: bool = False,
    feeds_normed: bool = True,
    zero_first: bool = False,
    shape: Shape = PLAIN,
) -> Equations:
    """2412.19437, equations 21 to 23: h' = T(M [norm e; norm h])."""

    def rows(embedded: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        if zero_first:
            embedded = torch.cat([torch.zeros_like(embedded[:1]), embedded[1:]])
        e = rms_norm(embedded, weights["embedding_norm.weight"])
        h = rms_norm(f, weights["feature_norm.weight"])
        x = torch.cat([h, e] if features_first else [e, h], dim=-1) @ weights["fc.weight"].T
        inputs = rms_norm(x, weights["layers.0.input_layernorm.weight"])
        y = layer("layers.0", weights, inputs, x, shape)
        last = rms_norm(y, weights["norm.weight"])
        return last, last if feeds_normed else y

    return Equations(lambda states, final: final, rows, embed, head)


def block(
    weights: Weights,
    context: Tensor,
    embedded: Tensor,
    *,
    num_layers: int,
    shape: Shape = PLAIN,
) -> Tensor:
    """2602.06036, section 3: the states of a block before the output head.

    Keys and values of every layer are those of the context, as it is, and of the block's rows; a
    row sees all of them.
    """
    before = len(context)
    positions = torch.arange(before + len(embedded), dtype=torch.float32)
    group, x = shape.heads // shape.kv_heads, embedded
    for number in range(num_layers):
        at = f"layers.{number}.self_attn"
        inputs = rms_norm(x, weights[f"layers.{number}.input_layernorm.weight"])
        both = torch.cat([context, inputs])
        q = (inputs @ weights[f"{at}.q_proj.weight"].T).view(len(inputs), shape.heads, -1)
        k = (both @ weights[f"{at}.k_proj.weight"].T).view(len(both), shape.kv_heads, -1)
        v = (both @ weights[f"{at}.v_proj.weight"].T).view(len(both), shape.kv_heads, -1)
        q, k = (
            rms_norm(q, weights[f"{at}.q_norm.weight"]),
            rms_norm(k, weights[f"{at}.k_norm.weight"]),
        )
        q = rotated(q, positions[before:], shape.theta)
        k = rotated(k, positions, shape.theta).repeat_interleave(group, dim=1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
        v = v.repeat_interleave(group, dim=1)
        out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(len(inputs), -1)
        y = x + out @ weights[f"{at}.o_proj.weight"].T
        norm = weights[f"layers.{number}.post_attention_layernorm.weight"]
        x = y + mlp(f"layers.{number}.mlp", weights, rms_norm(y, norm))
    return rms_norm(x, weights["norm.weight"])


def sequential(
    kind: str | None, weights: Weights, states: Tensor, before: Sequence[int], base: Tensor
) -> Tensor:
    """2607.05147, section 3.1: the logits of a block's places, each after the token before it."""
    if kind is None:
        return base
    w1, w2 = weights["markov_head.markov_w1.weight"], weights["markov_head.markov_w2.weight"]
    s, out = torch.zeros(w1.shape[1]), []
    for h, token, logits in zip(states, before, base, strict=False):
        x = w1[token]
        if kind == "vanilla":
            bias = w2 @ x
        elif kind == "gated":
            gate = weights["markov_head.gate_proj.weight"] @ torch.cat([h, x])
            bias = w2 @ ((gate + weights["markov_head.gate_proj.bias"]).sigmoid() * x)
        else:
            joint = weights["markov_head.joint_proj.weight"] @ torch.cat([s, x, h])
            g, c, o = (joint + weights["markov_head.joint_proj.bias"]).chunk(3)
            s = g.sigmoid() * s + (1 - g.sigmoid()) * c.tanh()
            bias = w2 @ o.tanh()
        out.append(logits + bias)
    return torch.stack(out)
