"""PARD: one pass for all tokens, each from the law of its own place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.core.drafts import Budget
from paceline.core.passes import drive
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.core.view import TargetView
from paceline.drafters.model import ModelDrafter
from paceline.drafters.parallel import ParallelDrafter
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.verifiers.coupling import CouplingVerifier
from tests.greedy import generated
from tests.rigged import assert_same_law, law_of_run, markov, run
from tests.tiny_models import VOCAB, build, lean_target, own_logits, tiny, tokens_of

MASK = 2
WARM = SamplingParams(temperature=1.0)
PROMPT = tokens_of(9)


def pard(**changes: Any) -> Any:
    """A random model that says it was trained with a mask token."""
    return build("llama", num_hidden_layers=1, pard_token=MASK, **changes)


def test_the_law_of_each_place_is_the_models_own_after_masks() -> None:
    """Checked against a plain pass of the model over the text and the masks."""
    model = pard()
    drafter = ParallelDrafter(lean_target(model))
    target = lean_target(tiny("llama"))
    session = drafter.open(TargetView(target.info), 40)
    for start, end, k in ((0, 4, 4), (4, 6, 3), (6, 9, 1)):
        session.observe(Committed(PROMPT[start:end]))
        draft = drive(session.propose(Budget(k), SamplingWarp(WARM), SeededNoise(k)))
        rows = own_logits(model, [*PROMPT[:end], *[MASK] * (k - 1)])[end - 1 :]
        assert draft.probs is not None
        assert len(draft) == k
        for law, row in zip(draft.probs, rows, strict=True):
            assert law is not None
            torch.testing.assert_close(law, row.softmax(-1), atol=1e-5, rtol=1e-4)


def test_one_pass_a_draft() -> None:
    passes: list[int] = []
    model = lean_target(pard())

    class Counting(type(model)):  # type: ignore[misc]
        def score(self, work: Any) -> Any:
            passes.append(work[0].num_rows)
            return super().score(work)

    model.__class__ = Counting
    found = run(lean_target(tiny("llama")), PROMPT, ParallelDrafter(model), k=4, max_tokens=12)
    assert len(passes) == sum(r.num_draft_tokens > 0 for r in found.rounds)
    assert passes[0] == len(PROMPT) + 3


@pytest.mark.parametrize("decoder", ["lean", "transformers"])
def test_greedy_answers_are_those_of_transformers(decoder: str) -> None:
    model, draft = tiny("llama"), pard()
    lean = decoder == "lean"
    target = lean_target(model) if lean else CachedTarget(HFDecoder(model))
    drafter = ParallelDrafter(lean_target(draft) if lean else CachedTarget(HFDecoder(draft)))
    assert drafter.model.info.mask_token == MASK
    found = run(target, PROMPT, drafter, k=4, max_tokens=20)
    assert found.tokens == generated(model, PROMPT, 20)


def test_its_contract() -> None:
    """Every outcome of the noise on table targets, with a draft model that is another table."""
    check_drafter(ParallelDrafter(markov(3, seed=5), mask_token=1), text_alone=True)
    check_drafter(
        ParallelDrafter(markov(3, seed=5), mask_token=1),
        verifier=CouplingVerifier(),
        text_alone=True,
    )


def test_the_law_of_the_answer() -> None:
    target, drafter = markov(3, seed=1), ParallelDrafter(markov(3, seed=5), mask_token=0)
    options: dict[str, Any] = {"params": WARM, "max_tokens": 4}
    found = law_of_run(target, (2, 1), drafter, k=3, **options)
    assert_same_law(found, law_of_run(target, (2, 1), None, **options))


def test_with_one_token_it_is_the_plain_draft_model() -> None:
    model, target = lean_target(pard()), lean_target(tiny("llama"))
    options: dict[str, Any] = {"k": 1, "params": WARM, "max_tokens": 12}
    plain = run(target, PROMPT, ModelDrafter(model), **options)
    assert run(target, PROMPT, ParallelDrafter(model), **options).tokens == plain.tokens


def test_a_model_without_a_mask_is_refused() -> None:
    target = lean_target(tiny("llama"))
    with pytest.raises(InvalidInput, match="pard_token"):
        ParallelDrafter(target)
    assert ParallelDrafter(target, mask_token=7).mask_token == 7
    for wrong in (VOCAB, -1, "x"):
        with pytest.raises(InvalidInput, match="mask_token"):
            ParallelDrafter(target, mask_token=wrong)  # type: ignore[arg-type]
