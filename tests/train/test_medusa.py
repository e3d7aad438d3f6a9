"""The heads and their loss against numbers worked out here, and replay against decoding."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline.economics import stats
from paceline.economics.stats import AcceptanceCounts
from paceline.train.data import Vocabulary
from paceline.train.heads import DECAY, Heads, HeadsObjective, batch_of, decaying
from paceline.train.medusa import MedusaHeads
from paceline.train.objective import Loss
from paceline.train.store import Captured
from tests.train import languages

WHOLE = Vocabulary(None, languages.VOCAB, 1.0)


def objective(
    *,
    vocabulary: Vocabulary = WHOLE,
    num_heads: int = 3,
    num_layers: int = 1,
    shared: bool = True,
    loss: Loss = "cross-entropy",
    temperature: float = 1.0,
) -> HeadsObjective:
    rows = languages.ROWS if vocabulary.ids is None else languages.ROWS[vocabulary.ids]
    module = MedusaHeads(rows, num_heads, num_layers, shared=shared)
    weights = decaying(num_heads)
    return HeadsObjective(
        module, vocabulary, weights, loss, temperature, torch.float32, lambda folder: None
    )


def said(module: Heads, states: Tensor, head: int) -> Tensor:
    """The logits of a head that reads no tokens."""
    return module.logits(module.state(states, torch.zeros(len(states), 0), head), head)


def test_every_head_begins_as_the_target_s_own() -> None:
    states = torch.randn(4, languages.VOCAB, generator=torch.Generator().manual_seed(0))
    for shared in (True, False):
        module = objective(shared=shared, num_layers=2).module
        for head in range(3):
            assert torch.equal(said(module, states, head), states @ languages.ROWS.T)


def test_what_is_trained() -> None:
    d, v = languages.VOCAB, languages.VOCAB
    shared = objective(num_layers=2).module
    assert sum(p.numel() for p in shared.parameters()) == 3 * 2 * (d * d + d)
    own = objective(shared=False).module
    assert sum(p.numel() for p in own.parameters()) == 3 * (d * d + d + v * d)


def test_the_rows_of_a_batch() -> None:
    """By hand: text 4 9 2 | 7 0 5, so states of 4 9 2 7 0, of which 9 and on are used."""
    one = languages.captured(torch.tensor([4, 9, 2, 7, 0, 5], dtype=torch.int32), 3)
    other = languages.captured(torch.tensor([6, 1, 3], dtype=torch.int32), 1)
    rows = batch_of([one, other], Vocabulary(torch.tensor([0, 1, 2, 5, 7]), 5, 1.0))
    assert rows.following.tolist() == [2, 4, 0, 3, 1, -1]  # 2 7 0 5, 1 3
    assert rows.left.tolist() == [3, 2, 1, 0, 1, 0]
    assert rows.windows(2)[:3].tolist() == [[2, 7], [7, 0], [0, 5]]
    read, at = rows.pairs(0)
    assert (read.tolist(), at.tolist()) == ([0, 1, 2, 4], [1, 2, 3, 5])
    read, at = rows.pairs(2)
    assert (read.tolist(), at.tolist()) == ([0], [3])


def test_the_cross_entropy_by_hand() -> None:
    """Untouched heads say what the target says at the next place, which is never two further."""
    text = languages.sequence(0, length=6, num_prompt_tokens=2)
    found = objective()
    losses = found.backward([text])
    wrong = math.log(math.exp(languages.SURE) + languages.VOCAB - 1)  # -log q of a logit of 0
    assert losses == pytest.approx([wrong] * 3, rel=1e-6)


def test_the_gradient_is_that_of_the_weighted_sum() -> None:
    texts = [languages.sequence(n, length=8) for n in range(3)]
    found = objective(shared=False)
    found.backward(texts)
    again = objective(shared=False)
    total = torch.zeros(())
    for head in range(3):
        logits, labels = [], []
        for text in texts:
            final, tokens = text.hidden.final, text.tokens
            assert final is not None
            for i in range(text.num_prompt_tokens - 2, len(tokens) - 2 - head):
                logits.append(said(again.module, final[i : i + 1], head)[0])
                labels.append(int(tokens[i + 2 + head]))
        rows = torch.stack(logits).log_softmax(dim=-1)
        total = total - DECAY**head * rows[range(len(labels)), labels].mean()
    total.backward()  # type: ignore[no-untyped-call]
    for ours, expected in zip(found.module.parameters(), again.module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_divergence_by_hand(temperature: float) -> None:
    """p is sure of one token with logit 8, and q, an untouched head, of another."""
    text = languages.sequence(0, length=6, num_prompt_tokens=2)
    losses = objective(loss="divergence", temperature=temperature).backward([text])
    p = torch.zeros(languages.VOCAB).index_fill_(0, torch.tensor([1]), languages.SURE)
    q = torch.zeros(languages.VOCAB).index_fill_(0, torch.tensor([2]), languages.SURE)
    log_p, log_q = (p / temperature).log_softmax(0), q.log_softmax(0)
    expected = float((log_p.exp() * (log_p - log_q)).sum())
    assert losses == pytest.approx([expected] * 3, rel=1e-5)


def test_tokens_outside_the_vocabulary_do_not_count() -> None:
    """Half of the tokens are lacking; the loss is that of the others."""
    text = languages.sequence(0, length=14, num_prompt_tokens=2)
    few = Vocabulary(torch.arange(0, languages.VOCAB, 2), 6, 0.5)
    losses = objective(vocabulary=few).backward([text])
    # q has the logit of the target's next token where the vocabulary has it: then the label, which
    # is 5 or 15 further on and so odd by turns, is lacking for heads 0 and 2.
    flat, wrong = math.log(6), math.log(math.exp(languages.SURE) + 5)
    assert losses == pytest.approx([flat, wrong, flat], rel=1e-6)
    none = Vocabulary(torch.tensor([3]), 1, 0.0)
    short = languages.captured(torch.tensor([1, 2, 4, 5, 6], dtype=torch.int32), 2)
    lost = objective(vocabulary=none)
    assert lost.backward([short]) == [0.0] * 3
    assert all(p.grad is not None and not p.grad.any() for p in lost.module.parameters())


def trained(found: HeadsObjective, texts: list[Captured], steps: int = 60) -> HeadsObjective:
    optimizer = torch.optim.AdamW(found.module.parameters(), lr=0.05, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        found.backward(texts)
        optimizer.step()
    return found


@pytest.mark.parametrize("loss", ["cross-entropy", "divergence"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_language_that_is_certain_is_learned(shared: bool, loss: Loss) -> None:
    texts = [languages.sequence(n) for n in range(languages.VOCAB)]
    found = objective(shared=shared, loss=loss)
    before = stats.mean_acceptance_length(found.replay(texts))
    assert before == 1.0
    after = trained(found, texts).replay(texts)
    assert after.accepted == after.tested
    rates = stats.conditional_acceptance_rate_per_position(after)
    assert rates == (1.0, 1.0, 1.0)


def test_replay_makes_the_rounds_of_decoding() -> None:
    """Against a loop that drafts, compares and goes on, token by token."""
    random = torch.Generator().manual_seed(4)
    found = objective()
    with torch.no_grad():
        for parameter in found.module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=random))
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
            draft = []
            if done >= 2:
                state = final[done - 2 : done - 1]
                draft = [int(said(found.module, state, head).argmax()) for head in range(3)]
            accepted = 0
            while (
                accepted < len(draft)
                and done + accepted < len(tokens)
                and draft[accepted] == tokens[done + accepted]
            ):
                accepted += 1
            over = done + accepted == len(tokens)
            expected = expected.add(len(draft), accepted, accepted if over else None)
            done += accepted + 1
    assert found.replay(texts) == expected
    assert expected.num_accepted_tokens > 5


def test_drafts_are_tokens_of_the_target() -> None:
    few = Vocabulary(torch.tensor([1, 5, 6, 11]), 4, 1.0)
    drafts = objective(vocabulary=few).drafts(languages.sequence(1))
    assert set(drafts.flatten().tolist()) <= {1, 5, 6, 11}


def test_saving_is_left_to_the_writer(tmp_path: Path) -> None:
    written: list[Path] = []
    found = objective()
    found.write = written.append
    found.save(tmp_path)
    assert written == [tmp_path]
