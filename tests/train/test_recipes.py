"""What is written is what was trained: the reader and the drafter of heads give the same rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline
from paceline.core.hidden import Hidden
from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput
from paceline.models.heads import load_head
from paceline.train.answers import Answering
from paceline.train.blockwise_recipe import BlockwiseRecipe
from paceline.train.capture import capture
from paceline.train.data import Vocabulary
from paceline.train.dflash_recipe import DflashRecipe
from paceline.train.eagle_recipe import EagleRecipe
from paceline.train.hydra_recipe import HydraRecipe
from paceline.train.medusa_recipe import MedusaRecipe
from paceline.train.mtp_recipe import MtpRecipe
from paceline.train.prompts import Prompt
from paceline.train.recipe import Served
from tests import tiny_models
from tests.train import rounds

PROMPTS = [Prompt(str(n), tiny_models.tokens_of(3 + n, n)) for n in range(8)]
TARGET = Served("tiny", tiny_models.VOCAB, 0.0)


@pytest.fixture(scope="module")
def model() -> Any:
    return paceline.load(tiny_models.tiny("llama"))


RECIPES = (
    MedusaRecipe(3, 2),
    MedusaRecipe(3, 2, own_rows=True),
    HydraRecipe(3, 2),
    HydraRecipe(3, 1),
    BlockwiseRecipe(3, 20),
    MtpRecipe(3),
    DflashRecipe(4, 2),
    EagleRecipe(3),
    EagleRecipe(3, own_rows=True),
)


def disturbed(recipe: Any, words: Vocabulary, model: Any, by: float = 0.25) -> Any:
    """A drafter that is no longer what it was, with weights that bfloat16 holds."""
    weights = recipe.gather(model, words)
    weights["rows"].copy_(weights["rows"].bfloat16())
    found = recipe.objective(weights, words, TARGET, torch.float32)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in found.module.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=random))
            parameter.copy_(parameter.bfloat16())
    return found


@pytest.mark.parametrize("draft_vocab", [None, 40])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda one: f"{one.name}-{one.own_rows}")
def test_the_rounds_of_replay_are_those_of_decoding(
    model: Any, tmp_path: Path, recipe: Any, draft_vocab: int | None
) -> None:
    """Greedily, chain for chain: one drafter trained here, written, read and decoded with."""
    if recipe.name == "mtp":
        draft_vocab = None  # it has the target's whole output head
    recipe = replace(recipe, draft_vocab=draft_vocab)
    ids = None if draft_vocab is None else torch.arange(draft_vocab)
    words = Vocabulary(ids, draft_vocab or tiny_models.VOCAB, 1.0)
    trained = disturbed(recipe, words, model)
    trained.save(tmp_path)
    head = load_head(tmp_path, model.target.info, dtype=torch.float32)
    assert head.drafter == recipe.name
    drafter = model.drafter(
        drafter=recipe.name, draft_head=head, drafter_options={"shape": "chain"}
    )
    how = Answering({"temperature": 0.0}, max_tokens=30, batch=4, seed=0)
    hidden = recipe.hidden(model.target.info)
    texts = capture(
        model.target, how.requests(model, PROMPTS, 0), hidden, batch=4, dtype=torch.float32
    )
    decoded = AcceptanceCounts()
    for prompt in PROMPTS:
        answer = model.generate(
            prompt.tokens, drafter=drafter, num_draft_tokens=3, max_tokens=30, temperature=0.0
        )
        decoded += answer.metrics.counts
    assert trained.replay(texts).rounds == decoded.rounds
    assert rounds.of_decoding(trained, texts).rounds == decoded.rounds
    assert rounds.of_decoding(trained, texts).accepted == decoded.accepted
    assert decoded.num_accepted_tokens > 0


def test_eagle_needs_the_states_of_the_layers(model: Any) -> None:
    info = replace(model.target.info, gives=frozenset({Hidden(final=True)}))
    with pytest.raises(InvalidInput, match="does not give the hidden states of its layers"):
        EagleRecipe().hidden(info)


def test_shared_rows_of_a_whole_vocabulary_are_left_to_the_target(
    model: Any, tmp_path: Path
) -> None:
    words = Vocabulary(None, tiny_models.VOCAB, 1.0)
    disturbed(MedusaRecipe(2, 1, None), words, model).save(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size < 2 * (32 * 32 + 32) * 2 + 2000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 0}, "num_heads must be at least 1"),
        ({"num_layers": 9}, "num_layers must be at least 1 and at most 8"),
        ({"draft_vocab": 3}, "draft_vocab must be at least 16"),
        ({"loss": "squares"}, "loss must be one of cross-entropy, divergence"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MedusaRecipe(**settings)


def test_what_a_format_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidInput, match="shares the target's whole output head"):
        MtpRecipe(draft_vocab=100)
    with pytest.raises(InvalidInput, match="leave --own-rows out"):
        DflashRecipe(own_rows=True)
    with pytest.raises(InvalidInput, match="leave --own-rows out"):
        BlockwiseRecipe(own_rows=True)
    with pytest.raises(InvalidInput, match="give --draft-vocab all"):
        HydraRecipe(own_rows=True)
