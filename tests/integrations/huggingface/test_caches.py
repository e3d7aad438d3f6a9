"""Caches of transformers: read where they fit the prompt, and left as `generate` leaves them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from paceline.core.events import Prefilled
from paceline.core.protocols import Work
from paceline.core.target import Scores
from paceline.errors import InvalidInput
from paceline.integrations.huggingface import speculate
from paceline.targets.cached import CachedTarget
from tests.integrations.huggingface.doors import REPETITIVE, answer, ids, padded, prompts
from tests.tiny_models import build, randomise, tiny, tokens_of


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass of a target computes without scoring them."""
    counts: list[int] = []
    score = CachedTarget.score

    def counting(self: CachedTarget, work: Sequence[Work]) -> list[Scores]:
        if unscored := sum(item.num_rows - item.num_scored for item in work):
            counts.append(unscored)
        return score(self, work)

    monkeypatch.setattr(CachedTarget, "score", counting)
    return counts


def assert_same_cache(found: Any, plain: Any, mask: Tensor | None = None) -> None:
    """Keys and values of all columns, or of those that `mask` `[B, n]` shows."""
    assert int(found.get_seq_length()) == int(plain.get_seq_length())
    assert len(found.layers) == len(plain.layers)
    for ours, theirs in zip(found.layers, plain.layers, strict=True):
        for name in ("keys", "values"):
            one, other = getattr(ours, name), getattr(theirs, name)
            assert one.shape == other.shape
            if mask is not None:
                shown = mask[:, None, : one.shape[2], None]
                one, other = one * shown, other * shown
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "gemma3", "mistral-window"])
def test_the_dict_holds_the_cache_of_generate(kind: str) -> None:
    """Layers with a window keep what they keep behind `generate`."""
    model = tiny(kind)
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 9, "return_dict_in_generate": True}
    plain = model.generate(**call)
    found = model.generate(**call, custom_generate=speculate(draft_model=model))
    assert found.sequences.tolist() == plain.sequences.tolist()
    assert_same_cache(found.cache, plain.cache)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_second_turn_with_the_users_cache_is_as_a_fresh_run(
    kind: str, computed: list[int]
) -> None:
    model, first, more = tiny(kind), tokens_of(9, seed=1), tokens_of(4, seed=2)
    speculation = speculate(num_draft_tokens=3)
    ours, theirs = DynamicCache(config=model.config), DynamicCache(config=model.config)
    # Turn by turn, each door with a cache of its own, and then both with the other's.
    text = ids(first)
    for turn in range(3):
        before = int(ours.get_seq_length())
        fresh = model.generate(text, max_new_tokens=8)
        plain = model.generate(text, max_new_tokens=8, cache=theirs)
        computed.clear()
        found = model.generate(text, max_new_tokens=8, cache=ours, custom_generate=speculation)
        assert found.tolist() == plain.tolist() == fresh.tolist()
        assert_same_cache(ours, theirs)
        assert sum(computed) == text.shape[1] - 1 - max(before - 1, 0)
        text = torch.cat([found, ids(more)], dim=1)
        if turn == 1:
            ours, theirs = theirs, ours


def test_an_empty_cache_of_any_make_is_filled() -> None:
    model = tiny("llama")
    for make in (
        DynamicCache,
        lambda: DynamicCache(config=model.config),
        lambda: StaticCache(config=model.config, max_cache_len=64),
    ):
        ours, theirs = make(), make()
        plain = model.generate(ids(REPETITIVE), max_new_tokens=8, cache=theirs)
        found = model.generate(
            ids(REPETITIVE), max_new_tokens=8, cache=ours, custom_generate=speculate()
        )
        assert found.tolist() == plain.tolist()
        assert_same_cache(ours, theirs)


def test_a_static_cache_that_generate_makes_is_no_hindrance() -> None:
    model = tiny("llama")
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 8, "disable_compile": True}
    plain = model.generate(**call, cache_implementation="static")
    found = model.generate(**call, cache_implementation="static", custom_generate=speculate())
    assert found.tolist() == plain.tolist()


@pytest.mark.parametrize("known", [1, 2, 5, 8])
def test_a_cache_of_a_prefix_is_used_and_one_branch_leaves_another_alone(
    known: int, computed: list[int]
) -> None:
    """One cached system prompt, copied for each question."""
    model, prompt = tiny("llama"), tokens_of(9, seed=1)
    shared = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids(prompt[:known]), cache=shared, use_cache=True)
    kept = copy.deepcopy(shared)
    for question in prompts([2, 3]):
        text = (*prompt, *question)
        cache = copy.deepcopy(shared)
        computed.clear()
        found = model.generate(
            ids(text), max_new_tokens=8, cache=cache, custom_generate=speculate(draft_model=model)
        )
        assert found[0].tolist() == [*text, *answer(model, text, 8)]
        assert_same_cache(shared, kept)
        assert int(cache.get_seq_length()) == len(text) + 7


def test_a_batch_takes_further_turns_though_rows_ended_early(computed: list[int]) -> None:
    """What the rows that ended early were padded with stands between the turns, masked."""
    model, rows = tiny("llama"), prompts([1, 5, 17])
    eos = answer(model, rows[1], 14)[4]
    call = {"max_new_tokens": 8, "eos_token_id": eos, "pad_token_id": 0}
    ours, theirs = DynamicCache(config=model.config), DynamicCache(config=model.config)
    inputs = padded(*rows)
    for turn in range(3):
        width = inputs["input_ids"].shape[1]
        plain = model.generate(**inputs, **call, cache=theirs)
        computed.clear()
        found = model.generate(**inputs, **call, cache=ours, custom_generate=speculate())
        assert found.tolist() == plain.tolist()
        mask = torch.cat([inputs["attention_mask"], _until_end(found[:, width:], eos)], dim=1)
        assert_same_cache(ours, theirs, mask)
        if turn:
            # Of each row a token to compare, the three new ones but the last, an end token, and
            # where the row had not ended the last token of its answer.
            assert sum(computed) <= 3 * (1 + 2 + 1 + 1)
        new = torch.tensor([tokens_of(3, seed=3 * turn + seed) for seed in range(3)])
        inputs = {
            "input_ids": torch.cat([found, new], dim=1),
            "attention_mask": torch.cat([mask, torch.ones_like(new)], dim=1),
        }
    assert (mask[:, 17:] == 0).any()


def _until_end(answers: Tensor, eos: int) -> Tensor:
    """1 for each token up to the end token."""
    ended = (answers == eos).long().cumsum(dim=1)
    return ((ended == 0) | ((ended == 1) & (answers == eos))).long()


def test_layers_with_a_window_are_computed_anew(computed: list[int]) -> None:
    model = tiny("gemma3")
    cache = DynamicCache(config=model.config)
    text = ids(tokens_of(12))
    for _ in range(2):
        fresh = model.generate(text, max_new_tokens=8)
        computed.clear()
        found = model.generate(text, max_new_tokens=8, cache=cache, custom_generate=speculate())
        assert found.tolist() == fresh.tolist()
        assert sum(computed) == text.shape[1] - 1
        text = torch.cat([found, ids((5, 6))], dim=1)


def _of_other_text(model: Any) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids(tokens_of(6, seed=9)), cache=cache, use_cache=True)
    return cache


def _of_other_model(model: Any) -> DynamicCache:
    other = build("llama", num_hidden_layers=3)
    cache = DynamicCache(config=other.config)
    with torch.no_grad():
        other(ids(tokens_of(9, seed=1)[:6]), cache=cache, use_cache=True)
    return cache


def _of_other_shape(model: Any) -> DynamicCache:
    other = build("llama", head_dim=16)
    cache = DynamicCache(config=other.config)
    with torch.no_grad():
        other(ids(tokens_of(9, seed=1)[:6]), cache=cache, use_cache=True)
    return cache


@pytest.mark.parametrize("make", [_of_other_text, _of_other_model, _of_other_shape])
def test_a_cache_that_does_not_belong_to_the_prompt_is_refused_and_left_alone(make: Any) -> None:
    model = tiny("llama")
    cache = make(model)
    before = copy.deepcopy(cache)
    with pytest.raises(InvalidInput, match="cache that these tokens made"):
        model.generate(
            ids(tokens_of(9, seed=1)), max_new_tokens=4, cache=cache, custom_generate=speculate()
        )
    assert_same_cache(cache, before)


def test_caches_of_another_size_are_refused() -> None:
    model = tiny("llama")
    cache = _of_other_text(model)
    with pytest.raises(InvalidInput, match="holds 6 tokens and input_ids 4"):
        model.generate(
            ids((5, 6, 7, 8)), max_new_tokens=4, cache=cache, custom_generate=speculate()
        )
    with pytest.raises(InvalidInput, match="holds 1 sequences; the call decodes 2"):
        model.generate(
            ids(tokens_of(9), tokens_of(9)),
            max_new_tokens=4,
            pad_token_id=0,
            cache=cache,
            custom_generate=speculate(),
        )
    # Only the new tokens, with a mask for all of them.
    for whole in (10, 8):
        with pytest.raises(InvalidInput, match="give the whole sequence"):
            model.generate(
                ids((5, 6, 7)),
                attention_mask=torch.ones(1, whole, dtype=torch.long),
                max_new_tokens=4,
                cache=cache,
                custom_generate=speculate(),
            )


def test_an_error_leaves_the_users_cache_as_it_was() -> None:
    model, cache = tiny("llama"), DynamicCache(config=tiny("llama").config)
    text = model.generate(
        ids(REPETITIVE), max_new_tokens=4, cache=cache, custom_generate=speculate()
    )
    before = copy.deepcopy(cache)

    def fail(event: Any) -> None:
        if not isinstance(event, Prefilled):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        model.generate(
            text, max_new_tokens=8, cache=cache, custom_generate=speculate(on_event=fail)
        )
    assert_same_cache(cache, before)
    found = model.generate(text, max_new_tokens=8, cache=cache, custom_generate=speculate())
    assert found.tolist() == model.generate(text, max_new_tokens=8).tolist()


@pytest.mark.parametrize("family", ["llama", "granite"])
def test_a_cache_of_a_text_that_ends_alike_is_refused(family: str) -> None:
    """Only the last cached token is the same: what it sees in the cache is another text's."""
    model, prompt = build(family), tokens_of(20)
    other = (*((token + 1) % 60 for token in prompt[:-1]), prompt[-1])
    cache = DynamicCache(config=model.config)
    model.generate(ids(prompt), cache=cache, max_new_tokens=1, custom_generate=speculate())
    before = copy.deepcopy(cache)
    for changed in (other, (*prompt[:7], 3 + (prompt[7] + 1) % 60, *prompt[8:])):
        with pytest.raises(InvalidInput, match="the cache that these tokens made"):
            model.generate(
                ids((*changed, 1, 2)), cache=cache, max_new_tokens=4, custom_generate=speculate()
            )
    assert_same_cache(cache, before)
    longer = ids((*prompt, 1, 2))
    plain = model.generate(longer, max_new_tokens=8)
    found = model.generate(longer, cache=cache, max_new_tokens=8, custom_generate=speculate())
    assert found.tolist() == plain.tolist()


def test_layers_that_share_keys_leave_no_gap_in_a_cache() -> None:
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    config = Gemma4TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, global_head_dim=8,
        sliding_window=8, num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=64,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = randomise(lambda: Gemma4ForCausalLM(config))
    call: dict[str, Any] = {"max_new_tokens": 6, "return_dict_in_generate": True}
    plain = model.generate(ids(REPETITIVE), **call)
    found = model.generate(ids(REPETITIVE), **call, custom_generate=speculate())
    assert found.sequences.tolist() == plain.sequences.tolist()
    again = {"max_new_tokens": 6, "do_sample": False}
    text = found.sequences
    expected = model.generate(text, **again)
    assert model.generate(text, cache=found.cache, **again).tolist() == expected.tolist()
    ours = model.generate(text, cache=plain.cache, **again, custom_generate=speculate())
    assert ours.tolist() == expected.tolist()
