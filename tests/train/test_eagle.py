"""The EAGLE-3 network and its training against the equations, row by row, and the loss by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.hidden import Hidden, HiddenStates
from paceline.economics import stats
from paceline.train.data import Vocabulary
from paceline.train.eagle import DECAY, decaying, hidden_of, taps_of
from paceline.train.eagle_network import EagleNetwork, Shape, rotated
from paceline.train.feature import FeatureObjective
from paceline.train.objective import Loss
from paceline.train.store import Captured, Store

VOCAB, WIDTH, STEPS = 13, 8, 3
SHAPE = Shape(WIDTH, 2, 12)
WHOLE = Vocabulary(None, VOCAB, 1.0)
FEW = Vocabulary(torch.tensor([0, 2, 3, 5, 8, 9, 12]), 7, 0.5)


def network(vocabulary: Vocabulary = WHOLE, *, own_rows: bool = False) -> EagleNetwork:
    """A head with weights large enough that everything matters."""
    random = torch.Generator().manual_seed(2)
    embedding = torch.randn(VOCAB, WIDTH, generator=random)
    rows = torch.randn(VOCAB, WIDTH, generator=random)
    rows = rows if vocabulary.ids is None else rows[vocabulary.ids]
    found = EagleNetwork(SHAPE, embedding, rows, own_rows=own_rows, seed=0)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=random))
    return found


def objective(
    vocabulary: Vocabulary = WHOLE, loss: Loss = "cross-entropy", *, own_rows: bool = False
) -> FeatureObjective:
    return FeatureObjective(
        network(vocabulary, own_rows=own_rows),
        vocabulary,
        decaying(STEPS),
        loss,
        1.0,
        torch.float32,
        lambda folder: None,
    )


def text(length: int, num_prompt_tokens: int, seed: int) -> Captured:
    random = torch.Generator().manual_seed(seed)
    states = [torch.randn(length - 1, WIDTH, generator=random) for _ in range(4)]
    return Captured(
        torch.randint(VOCAB, (length,), generator=random, dtype=torch.int32),
        num_prompt_tokens,
        HiddenStates({2: states[0], 9: states[1], 15: states[2]}, states[3]),
    )


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean() + 1e-5).sqrt() * weight


def drafted(net: EagleNetwork, one: Captured, row: int, tokens: list[int]) -> list[Tensor]:
    """The logits of the steps from one row, one vector at a time, by the equations alone.

    `tokens` are those fed in the steps from the second on.
    """
    w = {name: value.detach() for name, value in net.named_parameters()}
    at = "layers.0"
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def layer(feature: Tensor, token: int, position: int) -> Tensor:
        residual = normed(feature, w[f"{at}.hidden_norm.weight"])
        embedded = normed(net.embedding[token], w[f"{at}.input_layernorm.weight"])
        x = torch.cat([embedded, residual])
        q, k, v = ((w[f"{at}.self_attn.{name}_proj.weight"] @ x).view(2, 4) for name in "qkv")
        place = torch.tensor([position])
        q, k = (rotated(part[:, None], place)[:, 0] for part in (q, k))
        keys.append(k)
        values.append(v)
        heads = []
        for head in range(2):
            scores = torch.stack([q[head] @ key[head] for key in keys]) / math.sqrt(4)
            mixed = torch.stack([value[head] for value in values])
            heads.append(scores.softmax(0) @ mixed)
        y = residual + w[f"{at}.self_attn.o_proj.weight"] @ torch.cat(heads)
        inner = normed(y, w[f"{at}.post_attention_layernorm.weight"])
        gate, up = (w[f"{at}.mlp.{name}_proj.weight"] @ inner for name in ("gate", "up"))
        return y + w[f"{at}.mlp.down_proj.weight"] @ (functional.silu(gate) * up)

    y = torch.zeros(WIDTH)
    for place in range(row + 1):
        taps = torch.cat([states[place] for states in one.hidden.layers.values()])
        y = layer(w["fc.weight"] @ taps, int(one.tokens[place + 1]), place)
    found = [net.rows @ normed(y, w["norm.weight"])]
    for step, token in enumerate(tokens, start=1):
        y = layer(y, token, row + step)
        found.append(net.rows @ normed(y, w["norm.weight"]))
    return [logits.detach() for logits in found]


def test_rotation_is_that_of_llama() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    x = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(5) + 3
    angles = positions[:, None].float() * 10_000.0 ** (-torch.arange(0, 4, 2).float() / 4)
    angles = torch.cat([angles, angles], dim=-1)[None]
    expected, _ = apply_rotary_pos_emb(x, x, angles.cos(), angles.sin())
    torch.testing.assert_close(rotated(x, positions), expected)


@pytest.mark.parametrize("words", [WHOLE, FEW])
def test_the_loss_is_that_of_the_equations(words: Vocabulary) -> None:
    """Texts of different lengths in one batch, row by row; teacher forced as in the paper."""
    texts = [text(9, 4, 0), text(6, 2, 1), text(7, 1, 2)]
    found = objective(words)
    losses = found.backward(texts)
    for step in range(STEPS):
        terms = []
        for one in texts:
            tokens = one.tokens.tolist()
            for row in range(max(0, one.num_prompt_tokens - 2), len(tokens) - 2 - step):
                label = int(words.places(torch.tensor([tokens[row + 2 + step]])))
                if label >= 0:
                    fed = tokens[row + 2 : row + 2 + step]
                    logits = drafted(found.module, one, row, fed)[step]
                    terms.append(-float(logits.log_softmax(0)[label]))
        assert losses[step] == pytest.approx(sum(terms) / len(terms), rel=1e-4)


def test_the_divergence_is_from_the_target_at_the_drafted_place() -> None:
    texts = [text(8, 3, 0), text(6, 2, 1)]
    found = objective(loss="divergence")
    losses = found.backward(texts)
    for step in range(STEPS):
        terms = []
        for one in texts:
            tokens, final = one.tokens.tolist(), one.hidden.final
            assert final is not None
            for row in range(max(0, one.num_prompt_tokens - 2), len(tokens) - 2 - step):
                p = (found.module.rows @ final[row + 1 + step]).log_softmax(0)
                fed = tokens[row + 2 : row + 2 + step]
                q = drafted(found.module, one, row, fed)[step].log_softmax(0)
                terms.append(float((p.exp() * (p - q)).sum()))
        assert losses[step] == pytest.approx(sum(terms) / len(terms), rel=1e-4)


def test_the_gradient_is_that_of_the_weighted_sum() -> None:
    texts = [text(7, 3, 0)]
    found = objective(own_rows=True)
    found.backward(texts)
    name, step = "layers.0.self_attn.k_proj.weight", 1e-3
    parameter = dict(found.module.named_parameters())[name]
    assert parameter.grad is not None
    place = int(parameter.grad.abs().argmax())
    sums = []
    for sign in (1, -1):
        again = objective(own_rows=True)
        with torch.no_grad():
            dict(again.module.named_parameters())[name].view(-1)[place] += sign * step
        losses = again.backward(texts)
        sums.append(sum(DECAY**k * loss for k, loss in enumerate(losses)))
    expected = (sums[0] - sums[1]) / (2 * step)
    assert float(parameter.grad.view(-1)[place]) == pytest.approx(expected, rel=2e-2)
    assert all(p.grad is not None and p.grad.any() for p in found.module.parameters())


@pytest.mark.parametrize("words", [WHOLE, FEW])
def test_drafts_are_fed_with_their_own_tokens(words: Vocabulary) -> None:
    one = text(8, 3, 5)
    found = objective(words)
    drafts = found.drafts(one)
    assert drafts.shape == (7, STEPS)
    for row in range(7):
        tokens: list[int] = []
        for _ in range(STEPS):
            best = int(drafted(found.module, one, row, tokens)[-1].argmax())
            tokens.append(best if words.ids is None else int(words.ids[best]))
        assert drafts[row].tolist() == tokens


def test_frozen_parts_stay_as_they_are() -> None:
    names = {name for name, _ in network().named_parameters()}
    assert {name.split(".")[0] for name in names} == {"fc", "layers", "norm"}
    assert "rows" in {name for name, _ in network(own_rows=True).named_parameters()}


def test_it_begins_as_the_state_of_the_highest_layer() -> None:
    net = EagleNetwork(SHAPE, torch.eye(VOCAB, WIDTH), torch.eye(VOCAB, WIDTH), own_rows=False,
                       seed=0)  # fmt: skip
    taps = torch.randn(1, 4, 3 * WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        feature = net.fuse(taps)
        torch.testing.assert_close(feature, taps[..., -WIDTH:], atol=0.3, rtol=0.1)


def test_a_language_that_is_certain_is_learned() -> None:
    """Texts count on by one; the states know nothing but the token."""

    def counting(first: int) -> Captured:
        tokens = (torch.arange(first, first + 16) % VOCAB).int()
        state = torch.eye(VOCAB, WIDTH)[tokens[:-1].long()]
        random = torch.Generator().manual_seed(first)
        noise = 0.01 * torch.randn(state.shape, generator=random)
        return Captured(tokens, 3, HiddenStates({0: noise, 1: noise, 2: state}, state))

    texts = [counting(first) for first in range(VOCAB)]
    found = objective()
    optimizer = torch.optim.AdamW(found.module.parameters(), lr=0.02, weight_decay=0.0)
    for _ in range(200):
        optimizer.zero_grad()
        found.backward(texts)
        optimizer.step()
    counts = found.replay(texts)
    assert stats.conditional_acceptance_rate_per_position(counts) == (1.0, 1.0, 1.0)


def test_the_states_come_in_the_order_of_the_layers(tmp_path: Path) -> None:
    """On the disk their names are in the order of letters: 15, 2, 9."""
    one = text(6, 2, 3)
    Store(tmp_path).append([one], {})
    (shard,) = Store(tmp_path)
    again = shard[0]
    assert list(again.hidden.layers) == [2, 9, 15]
    found = objective()
    assert torch.equal(found.drafts(again), found.drafts(one))


@pytest.mark.parametrize(
    ("layers", "expected"), [(30, (2, 15, 27)), (7, (2, 3, 4)), (6, (0, 3, 6)), (2, (0, 1, 2))]
)
def test_the_layers_that_are_read(layers: int, expected: tuple[int, ...]) -> None:
    assert taps_of(layers) == expected
    assert hidden_of(layers) == Hidden(expected, final=True)


@pytest.mark.parametrize(("width", "heads"), [(576, 9), (896, 14), (32, 1), (48, 3), (10, 5)])
def test_shapes(width: int, heads: int) -> None:
    shape: Any = Shape.of(width)
    assert (shape.num_heads, shape.head_dim) == (heads, width // heads)
    assert shape.intermediate_size % 64 == 0
    assert shape.intermediate_size >= 8 * width / 3
