"""Heads that read drafted tokens: the network by its equation, the gradient, and replay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.economics import stats
from paceline.economics.stats import AcceptanceCounts
from paceline.train.data import Vocabulary
from paceline.train.heads import DECAY, HeadsObjective, decaying
from paceline.train.hydra import HydraHeads
from paceline.train.objective import Loss
from paceline.train.store import Captured
from tests.train import languages

V = languages.VOCAB
WHOLE = Vocabulary(None, V, 1.0)
FEW = Vocabulary(torch.tensor([0, 2, 3, 5, 8, 9, 11]), 7, 0.5)
EMBEDDING = torch.randn(V, V, generator=torch.Generator().manual_seed(9))


def objective(
    vocabulary: Vocabulary = WHOLE,
    *,
    num_layers: int = 2,
    shared: bool = True,
    loss: Loss = "cross-entropy",
    noise: float = 0.0,
) -> HeadsObjective:
    rows = languages.ROWS if vocabulary.ids is None else languages.ROWS[vocabulary.ids]
    module = HydraHeads(rows, EMBEDDING, 3, num_layers, shared=shared)
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=random))
    weights = decaying(3)
    return HeadsObjective(
        module, vocabulary, weights, loss, 1.0, torch.float32, lambda folder: None
    )


def by_hand(module: HydraHeads, state: Tensor, tokens: list[int], head: int) -> Tensor:
    """The logits of one row of one head, from its weights by their names."""
    w = dict(module.named_parameters())
    x = torch.cat([state, *(EMBEDDING[token] for token in tokens)])
    z = w[f"first.{head}.residual.weight"] @ x + torch.nn.functional.silu(
        w[f"first.{head}.linear.weight"] @ x + w[f"first.{head}.linear.bias"]
    )
    weight, bias = w[f"further.{head}.0.linear.weight"], w[f"further.{head}.0.linear.bias"]
    z = z + torch.nn.functional.silu(weight @ z + bias)
    rows = module.rows if module.shared else w[f"own_rows.{head}"]
    return rows @ z


def test_every_head_begins_as_the_target_s_own() -> None:
    module = objective().module
    states = torch.randn(4, V, generator=torch.Generator().manual_seed(0))
    following = torch.arange(12).view(4, 3)
    for head in range(3):
        found = module.logits(module.state(states, following, head), head)
        torch.testing.assert_close(found, states @ languages.ROWS.T)


@pytest.mark.parametrize("vocabulary", [WHOLE, FEW])
@pytest.mark.parametrize("shared", [True, False])
def test_the_losses_and_the_gradient_by_the_equation(shared: bool, vocabulary: Vocabulary) -> None:
    texts = [languages.sequence(n, length=8) for n in range(3)]
    found = objective(vocabulary, shared=shared, noise=0.3)
    losses = found.backward(texts)
    again = objective(vocabulary, shared=shared, noise=0.3)
    assert isinstance(again.module, HydraHeads)
    total = torch.zeros(())
    for head in range(3):
        terms = []
        for text in texts:
            final, tokens = text.hidden.final, text.tokens.tolist()
            assert final is not None
            for i in range(text.num_prompt_tokens - 2, len(tokens) - 2 - head):
                place = int(vocabulary.places(torch.tensor([tokens[i + 2 + head]]))[0])
                logits = by_hand(again.module, final[i], tokens[i + 1 : i + 2 + head], head)
                if place >= 0:
                    terms.append(-logits.log_softmax(dim=0)[place])
        loss = torch.stack(terms).mean()
        assert losses[head] == pytest.approx(float(loss.detach()), rel=1e-5)
        total = total + DECAY**head * loss
    total.backward()  # type: ignore[no-untyped-call]
    for ours, expected in zip(found.module.parameters(), again.module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_replay_makes_the_rounds_of_decoding() -> None:
    """Against a loop that drafts each token from those it has drafted, and compares."""
    random = torch.Generator().manual_seed(4)
    found = objective(noise=0.4)
    assert isinstance(found.module, HydraHeads)
    texts = [
        languages.captured(torch.randint(3, (30,), generator=random, dtype=torch.int32), prompt)
        for prompt in (1, 2, 5)
    ]
    expected = AcceptanceCounts()
    for text in texts:
        tokens, final = text.tokens.tolist(), text.hidden.final
        assert final is not None
        done = text.num_prompt_tokens
        while done < len(tokens):
            draft: list[int] = []
            if done >= 2:
                for head in range(3):
                    read = [tokens[done - 1], *draft]
                    logits = by_hand(found.module, final[done - 2], read, head)
                    draft.append(int(logits.argmax()))
            matches = [a == b for a, b in zip(draft, tokens[done:], strict=False)]
            accepted = matches.index(False) if False in matches else len(matches)
            over = done + accepted == len(tokens)
            expected = expected.add(len(draft), accepted, accepted if over else None)
            done += accepted + 1
    assert found.replay(texts) == expected
    assert expected.num_accepted_tokens > 3


@pytest.mark.parametrize("loss", ["cross-entropy", "divergence"])
def test_what_only_the_drafted_tokens_say_is_learned(loss: Loss) -> None:
    """The states say nothing of the text; only the token before says which one follows."""
    texts: list[Captured] = []
    for n in range(V):
        text = languages.sequence(n)
        silent = languages.captured(text.tokens, text.num_prompt_tokens)
        final = silent.hidden.final
        assert final is not None
        if loss == "cross-entropy":
            final.zero_()
        texts.append(silent)
    found = objective(num_layers=1, loss=loss)
    optimizer = torch.optim.AdamW(found.module.parameters(), lr=0.05, weight_decay=0.0)
    for _ in range(80):
        optimizer.zero_grad()
        found.backward(texts)
        optimizer.step()
    after = found.replay(texts)
    assert after.accepted == after.tested
    assert stats.conditional_acceptance_rate_per_position(after) == (1.0, 1.0, 1.0)
