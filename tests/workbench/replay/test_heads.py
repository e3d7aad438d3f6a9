"""Replay of drafters that read the target's hidden states, against generation with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline
from paceline.core.sampling import SamplingParams
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.medusa import MedusaDrafter
from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput
from paceline.models.heads import load_head
from paceline.train.data import Vocabulary
from paceline.train.eagle_recipe import EagleRecipe
from paceline.train.medusa_recipe import MedusaRecipe
from paceline.train.recipe import Served
from paceline.workbench.replay.drafts import Reader
from paceline.workbench.replay.texts import RecordedText
from tests import tiny_models

PROMPTS = [tiny_models.tokens_of(length, length) for length in (1, 2, 9, 20)]
KINDS: dict[str, tuple[Any, Any]] = {
    "medusa": (MedusaRecipe(3, 1, None), MedusaDrafter),
    "eagle": (EagleRecipe(3, None), EagleDrafter),
}
LENGTH = 30


@pytest.fixture(scope="module")
def model() -> Any:
    return paceline.load(tiny_models.tiny("llama"))


@pytest.fixture(params=KINDS)
def head(request: pytest.FixtureRequest, model: Any, tmp_path: Path) -> tuple[Any, Any]:
    """A head that is right now and then, and its drafter."""
    recipe, drafter = KINDS[request.param]
    words = Vocabulary(None, tiny_models.VOCAB, 1.0)
    served = Served("tiny", tiny_models.VOCAB, 0.0)
    made = recipe.objective(recipe.gather(model, words), words, served, torch.float32)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.module.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    made.save(tmp_path)
    return load_head(tmp_path, model.target.info, dtype=torch.float32), drafter


def reader_of(model: Any, **changes: Any) -> Reader:
    found = Reader(model.target.info, SamplingParams(), model.target, by_target=True)
    return replace(found, **changes)


@pytest.mark.parametrize("shape", ["chain", "dynamic"])
@pytest.mark.parametrize("k", [1, 3])
def test_greedy_counts_are_those_of_generating(
    model: Any, head: tuple[Any, Any], shape: str, k: int
) -> None:
    """Round by round: from the states of one pass over the text, whatever the prompt's length."""
    weights, kind = head
    drafter = kind(weights, shape=shape)
    generated = replayed = AcceptanceCounts()
    for number, prompt in enumerate(PROMPTS):
        answer = model.generate(
            prompt, drafter=drafter, num_draft_tokens=k, max_tokens=LENGTH, temperature=0.0
        )
        generated += answer.metrics.counts
        text = RecordedText(str(number), "a", prompt, answer.token_ids, LENGTH)
        replayed += reader_of(model).replay(drafter, text, k).counts
    assert replayed == generated
    assert generated.num_accepted_tokens > 0


def test_the_target_is_needed(model: Any, head: tuple[Any, Any]) -> None:
    weights, kind = head
    text = RecordedText("1", "a", PROMPTS[2], PROMPTS[3], LENGTH)
    with pytest.raises(InvalidInput, match="reads the target's hidden states, and the target was"):
        reader_of(model, target=None).replay(kind(weights), text, 2)
