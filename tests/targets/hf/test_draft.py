"""A model of transformers as a coarse draft."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.kernels.quantized import Int4Linear, Int8Linear
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.choice import decoder_of
from paceline.targets.hf.draft import draft_decoder_of, head_ids
from tests.tiny_models import build, own_logits, tiny, tokens_of

SIZES: dict[str, Any] = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96}


def logits(decoder: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    target = CachedTarget(decoder)
    slot = target.open(len(tokens))
    prefill(target, slot, tokens[:-3])
    found = target.score([Work(slot, [tokens[-3]], Draft(tokens[-2:]))])[0].logits
    target.close(slot)
    return found


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma"])
@pytest.mark.parametrize(("storage", "kind"), [("int4", Int4Linear), ("int8", Int8Linear)])
def test_the_copy_is_coarse_and_near_the_model(family: str, storage: Any, kind: type) -> None:
    model, tokens = build(family, **SIZES), tokens_of(9)
    decoder: Any = draft_decoder_of(model, storage=storage)
    assert type(decoder.layers[0].qkv) is kind
    assert decoder.embedding.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    expected = own_logits(model, tokens)[-3:]
    error = (logits(decoder, tokens) - expected).norm() / expected.norm()
    assert 0 < error < (0.6 if storage == "int4" else 0.05)


def test_a_cut_head_has_the_tokens_of_the_text_and_those_that_end_it() -> None:
    model = build("llama", vocab_size=3000, eos_token_id=1500, **SIZES)
    ids = head_ids(model, 200)
    expected = {*range(200), 1500, *range(3000 - 1024, 3000)}
    assert ids.tolist() == sorted(expected)
    decoder: Any = draft_decoder_of(model, head_tokens=200)
    text = (5, 1700, 9, 1800, 7)
    found, whole = logits(decoder, text), own_logits(model, text)[-3:]
    seen = [{*expected, *text[: 3 + row]} for row in range(3)]
    for row, tokens in zip(range(3), seen, strict=True):
        possible = found[row].isfinite().nonzero().flatten().tolist()
        assert set(possible) == tokens
        torch.testing.assert_close(found[row][possible], whole[row][possible], rtol=0, atol=1e-4)


def test_it_is_made_once_and_again_when_weights_change() -> None:
    model, tokens = build("llama", **SIZES), tokens_of(9)
    first = draft_decoder_of(model, storage="int4")
    assert draft_decoder_of(model, storage="int4") is first
    before = logits(first, tokens)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(-1)
    second = draft_decoder_of(model, storage="int4")
    assert second is not first
    assert not torch.allclose(logits(second, tokens), before, atol=1e-3)
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    assert draft_decoder_of(model, storage="int4").num_layers == 1  # type: ignore[attr-defined]


def test_what_cannot_be_coarse_stays_as_it_is() -> None:
    gpt2, llama = tiny("gpt2"), tiny("llama")
    assert type(draft_decoder_of(gpt2, storage="int4")) is type(decoder_of(gpt2))
    shared: Any = draft_decoder_of(llama)
    assert shared.layers[0].down.weights[0].data_ptr() == (
        llama.model.layers[0].mlp.down_proj.weight.data_ptr()
    )
