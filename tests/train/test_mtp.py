"""The module's network and its loss against the equations, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline.train.eagle_network import rotated
from paceline.train.feature import FeatureObjective
from paceline.train.mtp import MtpNetwork, weights_of
from paceline.train.store import Captured
from tests.train.test_eagle import SHAPE, STEPS, VOCAB, WHOLE, WIDTH, normed, text


def objective(noise: float = 0.4) -> FeatureObjective:
    random = torch.Generator().manual_seed(2)
    embedding = torch.randn(VOCAB, WIDTH, generator=random)
    rows = torch.randn(VOCAB, WIDTH, generator=random)
    module = MtpNetwork(SHAPE, embedding, rows, seed=0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=random))
    weights = weights_of(STEPS)
    return FeatureObjective(
        module, WHOLE, weights, "cross-entropy", 1.0, torch.float32, lambda folder: None
    )


def drafted(net: MtpNetwork, one: Captured, row: int, tokens: list[int]) -> list[Tensor]:
    """The logits of the steps from one row, one vector at a time."""
    prefix = "mtp_layers.0."
    w = {name.removeprefix(prefix): value for name, value in net.named_parameters()}
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def layer(feature: Tensor, token: int, position: int) -> Tensor:
        embedded = normed(net.embedding[token], w["token_layernorm.weight"])
        hidden = normed(feature, w["hidden_layernorm.weight"])
        x = w["input_proj.weight"] @ torch.cat([embedded, hidden])
        inputs = normed(x, w["input_layernorm.weight"])
        q, k, v = ((w[f"self_attn.{name}_proj.weight"] @ inputs).view(2, 4) for name in "qkv")
        q, k = (rotated(part[:, None], torch.tensor([position]))[:, 0] for part in (q, k))
        keys.append(k)
        values.append(v)
        mixed = []
        for head in range(2):
            scores = torch.stack([q[head] @ key[head] for key in keys]) / math.sqrt(4)
            mixed.append(scores.softmax(0) @ torch.stack([value[head] for value in values]))
        y = x + w["self_attn.o_proj.weight"] @ torch.cat(mixed)
        inner = normed(y, w["post_attention_layernorm.weight"])
        gate, up = (w[f"mlp.{name}_proj.weight"] @ inner for name in ("gate", "up"))
        y = y + w["mlp.down_proj.weight"] @ (functional.silu(gate) * up)
        return normed(y, w["final_layernorm.weight"])

    final = one.hidden.final
    assert final is not None
    y = torch.zeros(WIDTH)
    for place in range(row + 1):
        y = layer(final[place], int(one.tokens[place + 1]), place)
    found = [net.rows @ y]
    for step, token in enumerate(tokens, start=1):
        y = layer(y, token, row + step)
        found.append(net.rows @ y)
    return found


def test_losses_and_gradient_are_those_of_the_equations() -> None:
    texts = [text(8, 4, 0), text(5, 1, 1)]
    found, again = objective(), objective()
    losses = found.backward(texts)
    total = torch.zeros(())
    for step in range(STEPS):
        terms = []
        for one in texts:
            tokens = one.tokens.tolist()
            for row in range(max(0, one.num_prompt_tokens - 2), len(tokens) - 2 - step):
                fed = tokens[row + 2 : row + 2 + step]
                logits = drafted(again.module, one, row, fed)[step]
                terms.append(-logits.log_softmax(0)[tokens[row + 2 + step]])
        mean = torch.stack(terms).mean()
        assert losses[step] == pytest.approx(float(mean.detach()), rel=1e-4)
        total = total + weights_of(STEPS)[step] * mean
    total.backward()  # type: ignore[no-untyped-call]
    for ours, expected in zip(found.module.parameters(), again.module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-3, atol=1e-5)


def test_the_weights_of_fast_mtp() -> None:
    assert weights_of(3) == pytest.approx([0.51, 0.31, 0.18], abs=0.005)
