"""Early exit: the first layers draft, and the target's pass goes on from where they end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.sampling import SamplingParams
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.errors import InvalidInput
from paceline.targets.attention import Pass
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.dense.loading import from_weights
from paceline.testing import check_drafter
from paceline.verifiers.coupling import CouplingVerifier
from tests.rigged import markov, run
from tests.spare_layers import LAYERS, lean, rate, shallow
from tests.tiny_models import build, tokens_of

WARM = SamplingParams(temperature=1.0)
FEW = SamplingParams(temperature=1.0, top_k=2)
PROMPT = tokens_of(9)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("exit_layer", [None, 1, 4, 5])
def test_greedy_is_plain_greedy(exit_layer: int | None, k: int) -> None:
    plain = run(lean(), PROMPT, max_tokens=60, keep_logits=True)
    drafter = EarlyExitDrafter(exit_layer=exit_layer)
    found = run(lean(), PROMPT, drafter, k=k, max_tokens=60, keep_logits=True)
    assert found.tokens == plain.tokens
    torch.testing.assert_close(found.logits, plain.logits, rtol=0, atol=1e-4)
    if exit_layer == 5:
        assert 0.0 < rate(found) < 1.0, "both acceptance and rejection happen"


@pytest.mark.parametrize("settings", [{"exit_layer": 2}, {"min_confidence": 0.3}], ids=str)
def test_it_keeps_its_contract(settings: dict[str, Any]) -> None:
    check_drafter(EarlyExitDrafter(**settings), target=shallow(), params=FEW, text_alone=True)


def test_coupled_tokens_are_those_of_plain_decoding() -> None:
    options: dict[str, Any] = {"params": WARM, "max_tokens": 40, "verifier": CouplingVerifier()}
    found = run(lean(), PROMPT, EarlyExitDrafter(exit_layer=5), **options)
    assert found.tokens == run(lean(), PROMPT, **options).tokens
    assert rate(found) > 0.0


def test_invariant_mode_gives_the_same_logits_to_the_bit() -> None:
    narrow = lean(fixed_rows=8, fixed_keys=64)
    found, plain = (
        run(narrow, PROMPT, drafter, k=5, max_tokens=40, keep_logits=True)
        for drafter in (EarlyExitDrafter(exit_layer=5), None)
    )
    assert torch.equal(found.logits, plain.logits)


def test_drafting_and_verifying_take_fewer_layer_passes_than_two_models() -> None:
    """A drafted row goes once through the first E layers, and through the others in the pass."""
    rows: Counter[int] = Counter()

    class Counting(DenseDecoder):
        def layer(self, number: int, x: Tensor, batch: Pass, angles: Any, **parts: bool) -> Tensor:
            rows[number] += len(batch.tokens)
            return super().layer(number, x, batch, angles, **parts)

    model = build("llama", num_hidden_layers=LAYERS)
    decoder = from_weights(model.state_dict(), model.config, dtype=torch.float32, kind=Counting)
    found = run(CachedTarget(decoder), PROMPT, EarlyExitDrafter(exit_layer=2), k=4, max_tokens=30)
    prompt = len(PROMPT) - 1
    scored = sum(r.num_rows for r in found.rounds)
    # The root and all drafted tokens but the last are drafted from, once each, and that last one
    # is left to the pass, so that each scored row goes through each layer exactly once.
    assert rows == dict.fromkeys(range(LAYERS), prompt + scored)


def test_a_quarter_of_the_layers_is_the_default() -> None:
    rows: list[tuple[int, bool]] = []

    class Watching(DenseDecoder):
        def layer(self, number: int, x: Tensor, *arguments: Any, **parts: bool) -> Tensor:
            rows.append((number, bool(parts)))
            return super().layer(number, x, *arguments, **parts)

    model = build("llama", num_hidden_layers=9)
    decoder = from_weights(model.state_dict(), model.config, dtype=torch.float32, kind=Watching)
    run(CachedTarget(decoder), PROMPT, EarlyExitDrafter(), k=3, max_tokens=5)
    assert {number for number, drafting in rows if drafting} == {0, 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exit_layer": 0}, "exit_layer must be at least 1"),
        ({"exit_layer": 1.5}, "exit_layer must be a whole number"),
        ({"min_confidence": 2}, "min_confidence must be a finite number"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        EarlyExitDrafter(**settings)


def test_an_exit_behind_the_last_layer() -> None:
    with pytest.raises(InvalidInput, match="exit_layer must be below the 6 layers of"):
        run(lean(), PROMPT, EarlyExitDrafter(exit_layer=6))


def test_a_target_that_does_not_give_its_layers() -> None:
    with pytest.raises(InvalidInput, match="'early-exit' needs layers of the target"):
        run(markov(4, 0), (1, 2), EarlyExitDrafter(), max_tokens=4)
