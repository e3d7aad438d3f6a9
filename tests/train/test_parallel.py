"""PARD's rows and loss against the model run on each draft by itself; the paper's counts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import paceline
from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput
from paceline.train.answers import Answering
from paceline.train.capture import capture
from paceline.train.data import Vocabulary
from paceline.train.heads import HIDDEN
from paceline.train.parallel import ParallelObjective, num_kept, rows_of
from paceline.train.parallel_recipe import ParallelRecipe
from paceline.train.prompts import Prompt
from paceline.train.recipe import Served
from tests.train import periodic, rounds
from tests.train.languages import captured

VOCAB, MASK, STEPS = 12, 11, 4


def tiny() -> Any:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def objective(module: Any) -> ParallelObjective:
    return ParallelObjective(module, STEPS, MASK, 0.7, 0.2, 5, torch.float32, lambda folder: None)


def alone(module: Any, text: Tensor, depth: int) -> Tensor:
    """The logits after a text and some masks, as the drafter computes them."""
    tokens = torch.cat([text, torch.full((depth,), MASK)])
    found: Tensor = module(input_ids=tokens[None], use_cache=False).logits[0, -1]
    return found


def test_the_counts_of_the_paper() -> None:
    kept = [num_kept(100, depth, 0.7, 0.2) for depth in range(8)]
    assert kept == [100, 70, 48, 34, 24, 20, 20, 20]


def test_rows_by_hand() -> None:
    """A text of three tokens; anchor 1 goes two deep, anchor 0 one."""
    rows = rows_of(torch.tensor([5, 6, 7]), [torch.tensor([0, 1]), torch.tensor([1])], MASK)
    assert rows.tokens.tolist() == [5, 6, 7, MASK, MASK, MASK]
    assert rows.positions.tolist() == [0, 1, 2, 1, 2, 3]
    assert rows.sees.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]


def test_anchors_are_nested_and_counted() -> None:
    one = captured(torch.arange(103, dtype=torch.int32) % VOCAB, 3)
    found = objective(tiny()).anchors(one, torch.Generator().manual_seed(0))
    assert [len(own) for own in found] == [100, 70, 49 - 1, 34]
    for before, after in itertools.pairwise(found):
        assert set(after.tolist()) <= set(before.tolist())
    assert found[0].tolist() == list(range(2, 102))
    for depth, own in enumerate(found):
        assert int(own.max()) + depth + 1 < 103


def test_loss_and_gradient_are_those_of_each_draft_by_itself() -> None:
    random = torch.Generator().manual_seed(1)
    texts = [
        captured(torch.randint(VOCAB - 1, (length,), generator=random, dtype=torch.int32), prompt)
        for length, prompt in ((9, 3), (6, 1))
    ]
    found, module = objective(tiny()), tiny()
    losses = found.backward(texts)
    again = torch.Generator().manual_seed(found._seed_of(texts))
    terms: list[list[Tensor]] = [[] for _ in range(STEPS)]
    for one in texts:
        tokens = one.tokens.long()
        for depth, anchors in enumerate(found.anchors(one, again)):
            for anchor in anchors.tolist():
                logits = alone(module, tokens[: anchor + 1], depth)
                terms[depth].append(-logits.log_softmax(0)[tokens[anchor + depth + 1]])
    expected = [float(torch.stack(own).mean().detach()) for own in terms]
    assert losses == pytest.approx(expected, rel=1e-4)
    torch.stack([loss for own in terms for loss in own]).mean().backward()  # type: ignore[no-untyped-call]
    for ours, theirs in zip(found.module.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def test_the_rounds_of_replay_are_those_of_decoding(tmp_path: Path) -> None:
    """Trained a little, written, loaded as a draft model, decoded with: round by round."""
    model = paceline.load(periodic.save(tmp_path / "target"))
    recipe = ParallelRecipe(str(tmp_path / "target"), num_steps=3)
    words = Vocabulary(None, model.target.info.vocab_size, 1.0)
    weights = recipe.gather(model, words)
    served = Served("tiny", words.size, 0.0)
    trained = recipe.objective(weights, words, served, torch.float32)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trained.module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=random))
            parameter.copy_(parameter.bfloat16())
    prompts = [Prompt(text, tuple(model.encode(text))) for text in periodic.prompts(4)]
    how = Answering({"temperature": 0.0}, max_tokens=20, batch=4, seed=0)
    texts = capture(model.target, how.requests(model, prompts, 0), HIDDEN, batch=4)
    trained.save(tmp_path / "draft")
    draft = paceline.load_draft(tmp_path / "draft", dtype="float32")
    decoded = AcceptanceCounts()
    for prompt in prompts:
        answer = model.generate(
            prompt.tokens,
            drafter="parallel",
            draft_model=draft,
            num_draft_tokens=3,
            max_tokens=20,
            temperature=0.0,
        )
        decoded += answer.metrics.counts
    assert trained.replay(texts).rounds == decoded.rounds
    assert rounds.of_decoding(trained, texts).rounds == decoded.rounds
    assert rounds.of_decoding(trained, texts).accepted == decoded.accepted
    assert decoded.num_accepted_tokens > 0


def test_settings_that_cannot_be() -> None:
    for settings, message in (
        ({}, "name it with --draft-model"),
        ({"draft_model": "x", "keep": 0.0}, "keep must be above 0"),
        ({"draft_model": "x", "draft_vocab": 100}, "leave --draft-vocab"),
        ({"draft_model": "x", "loss": "divergence"}, "learns by cross-entropy"),
        ({"draft_model": "x", "num_steps": 1}, "num_steps must be at least 2"),
    ):
        with pytest.raises(InvalidInput, match=message):
            ParallelRecipe(**settings)  # type: ignore[arg-type]
