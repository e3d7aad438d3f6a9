"""Blocks and their loss against the equations, anchor by anchor."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline.train.data import Vocabulary
from paceline.train.dflash import BlockObjective, anchors_of, weights_of
from paceline.train.dflash_network import BlockNetwork, BlockShape
from paceline.train.eagle_network import Shape, rotated
from paceline.train.objective import Loss
from paceline.train.store import Captured
from tests.train.test_eagle import FEW, VOCAB, WHOLE, WIDTH, normed, text

BLOCK, MASK, WIDE = 4, 1, 4
SHAPE = BlockShape(Shape(WIDTH, 2, 12), 2, BLOCK, MASK)


def objective(vocabulary: Vocabulary, loss: Loss = "cross-entropy") -> BlockObjective:
    random = torch.Generator().manual_seed(2)
    embedding = torch.randn(VOCAB, WIDTH, generator=random)
    rows = torch.randn(VOCAB, WIDTH, generator=random)
    rows = rows if vocabulary.ids is None else rows[vocabulary.ids]
    module = BlockNetwork(SHAPE, embedding, rows, seed=0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=random))
    weights = weights_of(BLOCK)
    return BlockObjective(
        module, vocabulary, weights, loss, 1.0, torch.float32, lambda folder: None
    )


def block_of(net: BlockNetwork, one: Captured, anchor: int) -> list[Tensor]:
    """The logits of a block's rows but the first, one vector at a time."""
    w = dict(net.named_parameters())
    states = [*one.hidden.layers.values()]
    context = [
        normed(w["fc.weight"] @ torch.cat([part[row] for part in states]), w["hidden_norm.weight"])
        for row in range(anchor)
    ]
    tokens = [int(one.tokens[anchor]), *[MASK] * (BLOCK - 1)]
    xs = [net.embedding[token] for token in tokens]
    for number in range(2):
        at = f"layers.{number}."

        def heads(x: Tensor, name: str, position: int, at: str = at) -> Tensor:
            parts = (w[f"{at}self_attn.{name}_proj.weight"] @ x).view(2, WIDE)
            if name == "v":
                return parts
            norm = w[f"{at}self_attn.{name}_norm.weight"]
            parts = torch.stack([normed(part, norm) for part in parts])
            return rotated(parts[:, None], torch.tensor([position]))[:, 0]

        inputs = [normed(x, w[f"{at}input_layernorm.weight"]) for x in xs]
        placed = [*enumerate(context), *enumerate(inputs, anchor)]
        keys = [heads(x, "k", position) for position, x in placed]
        values = [heads(x, "v", position) for position, x in placed]
        after = []
        for position, (x, own) in enumerate(zip(xs, inputs, strict=True), anchor):
            query = heads(own, "q", position)
            mixed = []
            for head in range(2):
                scores = torch.stack([query[head] @ key[head] for key in keys]) / math.sqrt(WIDE)
                mixed.append(scores.softmax(0) @ torch.stack([value[head] for value in values]))
            y = x + w[f"{at}self_attn.o_proj.weight"] @ torch.cat(mixed)
            inner = normed(y, w[f"{at}post_attention_layernorm.weight"])
            gate, up = (w[f"{at}mlp.{name}_proj.weight"] @ inner for name in ("gate", "up"))
            after.append(y + w[f"{at}mlp.down_proj.weight"] @ (functional.silu(gate) * up))
        xs = after
    return [net.rows @ normed(x, w["norm.weight"]) for x in xs[1:]]


@pytest.mark.parametrize("loss", ["cross-entropy", "divergence"])
@pytest.mark.parametrize("words", [WHOLE, FEW])
def test_losses_and_gradient_are_those_of_the_equations(words: Vocabulary, loss: Loss) -> None:
    texts = [text(8, 4, 0), text(5, 1, 1)]
    found, again = objective(words, loss), objective(words, loss)
    losses = found.backward(texts)
    terms: list[list[Tensor]] = [[] for _ in losses]
    for one in texts:
        tokens, final = one.tokens.tolist(), one.hidden.final
        assert final is not None
        for anchor in range(max(1, one.num_prompt_tokens - 1), len(tokens) - 1):
            for place, logits in enumerate(block_of(again.module, one, anchor)):
                if anchor + 1 + place >= len(tokens):
                    break
                label = int(words.places(torch.tensor([tokens[anchor + 1 + place]])))
                if label < 0:
                    continue
                log_q = logits.log_softmax(0)
                if loss == "cross-entropy":
                    terms[place].append(-log_q[label])
                else:
                    log_p = (again.module.rows @ final[anchor + place]).log_softmax(0)
                    terms[place].append((log_p.exp() * (log_p - log_q)).sum())
    means = [torch.stack(own).mean() for own in terms]
    assert losses == pytest.approx([float(mean.detach()) for mean in means], rel=1e-4)
    total = sum(math.exp(-place / 4) * mean for place, mean in enumerate(means))
    assert isinstance(total, Tensor)
    total.backward()  # type: ignore[no-untyped-call]
    for ours, expected in zip(found.module.parameters(), again.module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-3, atol=1e-5)


def test_anchors_begin_with_the_last_token_of_the_prompt() -> None:
    assert anchors_of(text(8, 4, 0)).tolist() == [3, 4, 5, 6]
    assert anchors_of(text(5, 1, 0)).tolist() == [1, 2, 3]
    many = anchors_of(text(1300, 2, 0)).tolist()
    assert len(many) == 512
    assert many == sorted(set(many))
    assert many[0] == 1
    assert many[-1] < 1299


def test_the_weights_of_the_paper() -> None:
    assert weights_of(8)[:3] == pytest.approx([1, 0.7788, 0.6065], abs=1e-4)
    assert weights_of(16)[1] == pytest.approx(math.exp(-1 / 7))
