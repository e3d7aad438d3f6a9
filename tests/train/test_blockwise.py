"""One layer for a block of tokens: the network by its equation, the loss, and the gradient."""

from __future__ import annotations

import pytest
import torch

from paceline.economics import stats
from paceline.train.blockwise import BlockwiseHeads
from paceline.train.data import Vocabulary
from paceline.train.heads import HeadsObjective
from tests.train import languages

V, N, WIDTH = languages.VOCAB, 3, 5


def objective(noise: float = 0.0, width: int = WIDTH) -> HeadsObjective:
    module = BlockwiseHeads(languages.ROWS, N, width, shared=True)
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=random))
    whole, weights = Vocabulary(None, V, 1.0), (1 / N,) * N
    return HeadsObjective(
        module, whole, weights, "cross-entropy", 1.0, torch.float32, lambda folder: None
    )


def test_every_head_begins_as_the_target_s_own() -> None:
    states = torch.randn(4, V, generator=torch.Generator().manual_seed(0))
    for state in objective().module.states(states, torch.zeros(4, 0)):
        assert torch.equal(state, states)


def test_the_loss_is_the_mean_over_the_heads_by_the_equation() -> None:
    texts = [languages.sequence(n, length=8) for n in range(3)]
    found, again = objective(0.3), objective(0.3)
    losses = found.backward(texts)
    w = dict(again.module.named_parameters())
    total = torch.zeros(())
    for head in range(N):
        terms = []
        for text in texts:
            final, tokens = text.hidden.final, text.tokens.tolist()
            assert final is not None
            for i in range(text.num_prompt_tokens - 2, len(tokens) - 2 - head):
                inner = (w["hidden.weight"] @ final[i] + w["hidden.bias"]).relu()
                rows = slice(head * V, (head + 1) * V)
                change = w["output.weight"][rows] @ inner + w["output.bias"][rows]
                logits = languages.ROWS @ (final[i] + change)
                terms.append(-logits.log_softmax(dim=0)[tokens[i + 2 + head]])
        loss = torch.stack(terms).mean()
        assert losses[head] == pytest.approx(float(loss.detach()), rel=1e-5)
        total = total + loss / N
    total.backward()  # type: ignore[no-untyped-call]
    for ours, expected in zip(found.module.parameters(), again.module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_a_language_that_is_certain_is_learned() -> None:
    texts = [languages.sequence(n) for n in range(V)]
    found = objective(width=V)
    optimizer = torch.optim.AdamW(found.module.parameters(), lr=0.02, weight_decay=0.0)
    for _ in range(120):
        optimizer.zero_grad()
        found.backward(texts)
        optimizer.step()
    after = found.replay(texts)
    assert after.accepted == after.tested
    assert stats.conditional_acceptance_rate_per_position(after) == (1.0, 1.0, 1.0)
