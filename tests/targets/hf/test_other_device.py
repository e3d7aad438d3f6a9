"""A model on another device than the CPU is decoded there, and nothing assumes CPU tensors.

The device is simulated (`tests/other_device.py`), so this needs no GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paceline
from paceline.targets.hf.decoder import HFDecoder
from tests import tiny_folders
from tests.other_device import DEVICE, Elsewhere, OtherDevice, move

PROMPT = [*range(5, 25)]
OPTIONS: Any = {"max_tokens": 16, "ignore_eos": True}


def here(family: str = "llama") -> Any:
    return paceline.load(tiny_folders.model(family), tiny_folders.tokenizer())


def elsewhere(family: str = "llama", **options: Any) -> Any:
    model = paceline.load(move(tiny_folders.model(family)), tiny_folders.tokenizer(), **options)
    assert model.decoder.device == DEVICE
    return model


def test_the_simulation_finds_what_a_device_would() -> None:
    with OtherDevice():
        there, own = torch.ones(3, device=DEVICE), torch.ones(3)
        assert isinstance(there, Elsewhere)
        assert there.device == own.to(DEVICE).device == DEVICE
        assert there.cpu().device == torch.device("cpu")
        assert torch.equal((there + own.to(DEVICE)).cpu(), 2 * own)
        with pytest.raises(RuntimeError, match="aten::add was given tensors on cuda:0 and on the"):
            there + own
        with pytest.raises(RuntimeError, match="assignment on cuda:0"):
            there[:3] = own


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "gpt2", "mistral-window", "phi3", "gemma2", "gemma3", "olmo2"]
)
def test_families(family: str) -> None:
    expected = here(family).generate(PROMPT, drafter="none", **OPTIONS)
    with OtherDevice():
        found = elsewhere(family).generate(PROMPT, drafter="ngram", num_draft_tokens=4, **OPTIONS)
    assert found.token_ids == expected.token_ids


@pytest.mark.parametrize("drafter", ["model", "tree"])
def test_a_draft_model_on_another_device_than_the_target(drafter: str) -> None:
    own = here()
    expected = own.generate(PROMPT, drafter="none", **OPTIONS).token_ids
    with OtherDevice():
        model = elsewhere()
        for target, draft in ((model, own), (own, model), (model, model)):
            found = target.generate(
                PROMPT, draft_model=draft, drafter=drafter, num_draft_tokens=4, **OPTIONS
            )
            assert found.token_ids == expected
            assert found.spec["num_drafts"] > 0


def test_sampled_answers_of_a_batch() -> None:
    options: Any = {"temperature": 1.0, "seed": 3, "num_draft_tokens": 3, **OPTIONS}
    prompts = [PROMPT, PROMPT[3:]]
    expected = here().generate_batch(prompts, drafter="ngram", **options)
    with OtherDevice():
        found = elsewhere().generate_batch(prompts, drafter="ngram", **options)
    assert [a.token_ids for a in found] == [a.token_ids for a in expected]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_lower_precision(dtype: torch.dtype) -> None:
    with OtherDevice():
        decoder = HFDecoder(move(tiny_folders.model().to(dtype)))
    assert (decoder.device, decoder.dtype) == (DEVICE, dtype)


def test_invariant_mode() -> None:
    with OtherDevice():
        model = elsewhere(invariant=True)
        answers = [
            model.generate(PROMPT, drafter=drafter, num_draft_tokens=3, **OPTIONS).token_ids
            for drafter in ("none", "ngram")
        ]
    assert answers[0] == answers[1]
