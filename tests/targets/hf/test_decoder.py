"""The decoder over models of transformers: every family against its own forward pass."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import paceline.targets.hf.decoder
from paceline.core.drafts import Draft
from paceline.core.events import FinishReason
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.drafters.ngram import NgramDrafter
from paceline.errors import ContextOverflow, InvalidInput, ModelError, UnsupportedModel
from paceline.kernels.packing import pack_modules
from paceline.targets.attention import Segment
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.targets.hf.probe import TOLERANCE
from paceline.targets.state.kv import KeyValueCache
from tests.greedy import COUNT, DRAFTERS, PROMPT, assert_greedy, generated
from tests.rigged import assert_r0, flip, oracle, ragged, run
from tests.tiny_models import (
    FAMILIES,
    VOCAB,
    WINDOWED,
    build,
    own_logits,
    randomise,
    tiny,
    tokens_of,
)

CLOSE = {"rtol": 1e-5, "atol": 1e-5}

CHAIN = Draft(tokens_of(5, seed=1))
TREE = Draft(tokens_of(8, seed=2), parents=(-1, -1, 0, 1, 1, 4, 0, 5))
"""Branches on two levels; the deepest path is 1, 4, 5, 7."""


def target_of(model: Any, **options: Any) -> CachedTarget:
    return CachedTarget(HFDecoder(model), **options)


def scored(target: CachedTarget, text: Sequence[int], draft: Draft) -> Tensor:
    """The rows of a fresh slot."""
    slot = target.open(len(text) + 1 + draft.max_path_length)
    prefill(target, slot, text[:-1])
    return target.score([Work(slot, [text[-1]], draft)])[0].logits


def expected(model: Any, text: Sequence[int], draft: Draft) -> Tensor:
    """The oracle: each path from the root as a plain sequence of its own, without a cache."""
    paths = [(), *(draft.path(node) for node in range(len(draft)))]
    texts = [[*text, *(draft.tokens[i] for i in path)] for path in paths]
    return torch.stack([own_logits(model, one)[-1] for one in texts])


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---------------------------------------------------------------- every family


@pytest.mark.parametrize("length", [1, 5, 20])
def test_chains_and_trees_give_the_rows_of_the_own_forward_pass(family: str, length: int) -> None:
    model, text = tiny(family), tokens_of(length)
    for draft in (Draft(), CHAIN, TREE):
        rows = scored(target_of(model), text, draft)
        torch.testing.assert_close(rows, expected(model, text, draft), **CLOSE)


def test_sequences_of_different_lengths_share_a_pass(family: str) -> None:
    model = tiny(family)
    target = target_of(model)
    texts = [tokens_of(n, seed=n) for n in (17, 1, 5)]
    drafts = [TREE, Draft(), CHAIN]
    slots = [target.open(64) for _ in texts]
    for slot, text in zip(slots, texts, strict=True):
        prefill(target, slot, text[:-1])
    work = [Work(slot, [t[-1]], d) for slot, t, d in zip(slots, texts, drafts, strict=True)]
    for scores, text, draft in zip(target.score(work), texts, drafts, strict=True):
        torch.testing.assert_close(scores.logits, expected(model, text, draft), **CLOSE)


@pytest.mark.parametrize("prefill_rows", [1, 3, 512])
def test_commits_and_rollbacks_leave_what_a_fresh_prefill_would(
    family: str, prefill_rows: int
) -> None:
    model, text = tiny(family), tokens_of(14)
    target = target_of(model, prefill_rows=prefill_rows)
    slot = target.open(64)
    prefill(target, slot, text[:-1])
    target.score([Work(slot, [text[-1]], TREE)])
    path = TREE.path(7)
    target.commit(slot, path)
    text = (*text, *(TREE.tokens[node] for node in path))
    assert target.length(slot) == len(text)
    rows = target.score([Work(slot, [7], CHAIN)])[0].logits
    torch.testing.assert_close(rows, expected(model, (*text, 7), CHAIN), **CLOSE)
    target.commit(slot, ())
    target.rollback(slot, 9)
    rows = target.score([Work(slot, [11], TREE)])[0].logits
    torch.testing.assert_close(rows, expected(model, (*text[:9], 11), TREE), **CLOSE)


@cache
def shared(family: str) -> tuple[CachedTarget, tuple[int, ...]]:
    """The target of a family, and transformers' answer to `PROMPT`."""
    model = tiny(family)
    return target_of(model), generated(model, PROMPT, COUNT)


@pytest.mark.parametrize("k", range(9))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_tokens_equal_those_of_generate(family: str, drafter: str, k: int) -> None:
    target, answer = shared(family)
    assert_greedy(target, answer, drafter, k)


def test_drafts_that_go_wrong_anywhere_change_nothing(family: str) -> None:
    # The prompt repeats itself, so that n-grams are found; the answer leaves every window.
    model, prompt, count = tiny(family), tokens_of(5) * 2, 20
    answer = generated(model, prompt, count)
    target, text = target_of(model), (*prompt, *answer)
    plain = run(target, prompt, max_tokens=count, keep_logits=True)
    assert plain.tokens == answer
    assert_r0(run(target, prompt, oracle(text), k=0, max_tokens=count, keep_logits=True), plain)
    drafters = (
        oracle(text),
        flip(text, VOCAB, 0),
        flip(text, VOCAB, 2),
        ragged(text, VOCAB, (0, 3, 1)),
    )
    for k in (1, 3, 8):
        for drafter in drafters:
            found = run(target, prompt, drafter, k=k, max_tokens=count, keep_logits=True)
            assert_r0(found, plain, atol=1e-4)


def test_the_model_is_left_as_it_was(family: str) -> None:
    model = build(family)
    prompt = tokens_of(6)
    before = (
        model.config.to_json_string(use_diff=False),
        model.generation_config.to_json_string(use_diff=False),
        model.config._attn_implementation,
        generated(model, prompt, 8),
        [(name, type(module), module.training) for name, module in model.named_modules()],
        {name: (id(p), p.requires_grad, p._version) for name, p in model.named_parameters()},
        {name: (id(b), b._version) for name, b in model.named_buffers()},
        [vars(module).keys() for module in model.modules()],
    )
    weights = copy.deepcopy(model.state_dict())
    run(target_of(model), prompt, flip(tokens_of(40), VOCAB, 1), max_tokens=12)
    after = (
        model.config.to_json_string(use_diff=False),
        model.generation_config.to_json_string(use_diff=False),
        model.config._attn_implementation,
        generated(model, prompt, 8),
        [(name, type(module), module.training) for name, module in model.named_modules()],
        {name: (id(p), p.requires_grad, p._version) for name, p in model.named_parameters()},
        {name: (id(b), b._version) for name, b in model.named_buffers()},
        [vars(module).keys() for module in model.modules()],
    )
    assert after == before
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    # The modules are free of inference tensors, so the model can still be trained.
    model(torch.tensor([prompt]), labels=torch.tensor([prompt])).loss.backward()


# ---------------------------------------------------------------- windows, limits, caches


_EAGER_ALONE = ("gemma2", "gpt_oss")
"""transformers has no other attention for softcap and sinks."""


@pytest.mark.parametrize(
    ("family", "attention"),
    [(name, kind) for name in WINDOWED for kind in ("eager", "sdpa")[: 2 - (name in _EAGER_ALONE)]],
)
def test_windows_hold_far_beyond_their_size(family: str, attention: str) -> None:
    model = build(family)
    model.set_attn_implementation(attention)
    prompt = tokens_of(6)
    answer = generated(model, prompt, 60)
    found = run(target_of(model), prompt, flip((*prompt, *answer), VOCAB, 1), max_tokens=60)
    assert found.tokens == answer


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_context_is_filled_to_the_last_token(family: str) -> None:
    limit = {"gpt2": "n_positions"}.get(family, "max_position_embeddings")
    model, prompt = build(family, **{limit: 32}), tokens_of(20)
    target = target_of(model)
    assert target.info.max_length == 32
    answer = generated(model, prompt, 12)
    for k in (0, 3, 8):
        found = run(target, prompt, oracle((*prompt, *answer)), k=k, max_tokens=None)
        assert found.tokens == answer
        assert found.reason is FinishReason.LENGTH
    with pytest.raises(ContextOverflow, match="takes 32 tokens"):
        target.open(33)


def test_rotary_frequencies_for_long_contexts_set_the_limit() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
    }
    model = build(
        "phi3", sliding_window=None, rope_parameters=rope, original_max_position_embeddings=32
    )
    # Such a model rewrites its frequencies in every pass: here in buffers of the shadow's own.
    versions = [buffer._version for buffer in model.buffers()]
    target, prompt = target_of(model), tokens_of(20)
    assert target.info.max_length == 32
    found = run(target, prompt, flip(tokens_of(40), VOCAB, 1), max_tokens=None)
    assert [buffer._version for buffer in model.buffers()] == versions
    assert len(found.tokens) == 12
    assert found.tokens == generated(model, prompt, 12)


def test_chunked_attention_sets_the_limit() -> None:
    config = transformers.Llama4TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        intermediate_size_mlp=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        attention_chunk_size=24,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=None,
    )
    model = randomise(lambda: transformers.Llama4ForCausalLM(config))
    target, text = target_of(model), tokens_of(18)
    assert target.info.max_length == 24
    rows = scored(target, text, CHAIN)
    torch.testing.assert_close(rows, expected(model, text, CHAIN), **CLOSE)


def test_no_tensor_of_the_cache_moves_in_100_rounds() -> None:
    target = target_of(build("llama", max_position_embeddings=512))
    slot = target.open(320)
    prefill(target, slot, tokens_of(9))
    places = {tensor.data_ptr() for layer in slot.state.layers for tensor in layer}
    assert len(places) == 4
    for number in range(100):
        target.score([Work(slot, [5], TREE if number % 2 else CHAIN)])
        target.commit(slot, TREE.path(4) if number % 2 else (0, 1))
    assert target.length(slot) == 9 + 100 * 3
    assert {tensor.data_ptr() for layer in slot.state.layers for tensor in layer} == places


# ---------------------------------------------------------------- the model as the user has it


def test_a_model_in_training_mode_is_read_in_evaluation_mode_and_stays_in_training() -> None:
    model = build("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    text = tokens_of(9)
    truth = expected(model, text, CHAIN)
    model.train()
    rows = scored(target_of(model), text, CHAIN)
    torch.testing.assert_close(rows, truth, **CLOSE)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_weights_are_shared_tied_ones_too(family: str) -> None:
    model = build(family, tie_word_embeddings=True)
    target, text = target_of(model), tokens_of(9)
    shared = {id(parameter) for parameter in target.decoder._model.parameters()}
    assert shared == {id(parameter) for parameter in model.parameters()}
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    torch.testing.assert_close(scored(target, text, CHAIN), expected(model, text, CHAIN), **CLOSE)


def test_hooks_and_adapters_of_the_moment_are_in_the_shadow() -> None:
    model, text = build("llama"), tokens_of(9)
    plain = scored(target_of(model), text, CHAIN)
    steer = model.model.layers[0].register_forward_hook(lambda _, __, output: output + 0.5)
    torch.testing.assert_close(
        scored(target_of(model), text, CHAIN), expected(model, text, CHAIN), **CLOSE
    )
    assert not torch.allclose(scored(target_of(model), text, CHAIN), plain, atol=0.1)
    steer.remove()
    torch.testing.assert_close(scored(target_of(model), text, CHAIN), plain, **CLOSE)

    adapted = LowRank(model.model.layers[0].self_attn.q_proj)
    model.model.layers[0].self_attn.q_proj = adapted
    torch.testing.assert_close(
        scored(target_of(model), text, CHAIN), expected(model, text, CHAIN), **CLOSE
    )
    assert not torch.allclose(scored(target_of(model), text, CHAIN), plain, atol=0.1)
    adapted.active = False
    torch.testing.assert_close(scored(target_of(model), text, CHAIN), plain, **CLOSE)


class LowRank(nn.Module):
    """An adapter, switched by a plain attribute as those of peft are."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.base, self.active = base, True
        self.down = nn.Parameter(torch.randn(base.in_features, 2, generator=generator))
        self.up = nn.Parameter(torch.randn(2, base.out_features, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out + x @ self.down @ self.up if self.active else out


class Wrapper(nn.Module):
    """A model inside another that hands everything on, as that of peft does."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, self.config = base, base.config

    def get_input_embeddings(self) -> Any:
        return self.base.get_input_embeddings()

    def forward(self, input_ids: Tensor | None = None, **options: Any) -> Any:
        return self.base(input_ids=input_ids, **options)


def test_wrapped_and_compiled_models_decode_as_what_is_inside() -> None:
    model, text = build("qwen3"), tokens_of(9)
    truth = expected(model, text, TREE)
    torch.testing.assert_close(scored(target_of(Wrapper(model)), text, TREE), truth, **CLOSE)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(scored(target_of(compiled), text, TREE), truth, **CLOSE)
    model.compile(backend="eager")
    torch.testing.assert_close(scored(target_of(model), text, TREE), truth, **CLOSE)


def test_a_replaced_forward_that_only_the_model_knows_is_refused() -> None:
    model = build("llama")
    inner = model.forward
    model.forward = lambda *args, **options: inner(*args, **options)
    with pytest.raises(UnsupportedModel, match="does not compute attention through"):
        HFDecoder(model)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_a_decoder_does_not_keep_the_model_alive(family: str) -> None:
    model, text = build(family), tokens_of(6)
    target, truth = target_of(model), expected(model, text, CHAIN)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    torch.testing.assert_close(scored(target, text, CHAIN), truth, **CLOSE)


def test_a_model_is_probed_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[Any] = []
    real = paceline.targets.hf.decoder.probe_target
    monkeypatch.setattr(
        paceline.targets.hf.decoder,
        "probe_target",
        lambda *args: (probed.append(args), real(*args))[1],
    )
    model = build("mistral-window")
    HFDecoder(model, probe=False)
    assert len(probed) == 0
    HFDecoder(model)
    HFDecoder(model)
    HFDecoder(model, probe=False)
    assert len(probed) == 1
    model.config.sliding_window = 5
    text = tokens_of(20)
    torch.testing.assert_close(
        scored(target_of(model), text, TREE), expected(model, text, TREE), **CLOSE
    )
    assert len(probed) == 2
    model.set_attn_implementation("eager")
    HFDecoder(model)
    assert len(probed) == 3
    model.bfloat16()
    HFDecoder(model)
    assert len(probed) == 4


@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mistral-window"])
def test_half_precision(family: str, dtype: torch.dtype, atol: float) -> None:
    model, text = build(family).to(dtype), tokens_of(20)
    for draft in (CHAIN, TREE):
        rows = scored(target_of(model), text, draft)
        assert rows.dtype == torch.float32
        wide = expected(build(family), text, draft)
        # Rounding may move a token between experts; the median sees the arithmetic.
        assert float((rows - wide).abs().median()) < atol


def test_float64_stays_float64() -> None:
    model, text = build("llama").double(), tokens_of(20)
    rows = scored(target_of(model), text, TREE)
    assert rows.dtype == torch.float64
    torch.testing.assert_close(rows, expected(model, text, TREE), rtol=1e-12, atol=1e-12)


def test_threads_share_a_decoder_without_meeting() -> None:
    target = target_of(tiny("mistral-window"))
    prompts = [tuple(range(3 + 15 * i, 18 + 15 * i)) for i in range(4)]
    alone = [run(target, prompt, NgramDrafter(), max_tokens=30).tokens for prompt in prompts]
    together: dict[int, list[tuple[int, ...]]] = {i: [] for i in range(4)}

    def work(index: int) -> None:
        for _ in range(3):
            found = run(target, prompts[index], NgramDrafter(), max_tokens=30)
            together[index].append(found.tokens)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == {i: [alone[i]] * 3 for i in range(4)}


def test_a_model_without_logits_to_keep_gives_the_wanted_rows() -> None:
    class Old(transformers.LlamaForCausalLM):
        def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Any:
            return super().forward(input_ids=input_ids, position_ids=position_ids, use_cache=False)

    config = transformers.LlamaConfig(**FAMILIES["llama"][1])
    model, text = randomise(lambda: Old(config)), tokens_of(9)
    rows = scored(target_of(model), text, TREE)
    torch.testing.assert_close(rows, expected(tiny("llama"), text, TREE), **CLOSE)


# ---------------------------------------------------------------- refusals

_HYBRID: dict[str, Any] = {
    **FAMILIES["llama"][1],
    "initializer_range": 0.02,
}
_HYBRID.pop("head_dim")

STATEFUL = {
    "lfm2": lambda: transformers.Lfm2ForCausalLM(
        transformers.Lfm2Config(**_HYBRID, layer_types=["conv", "full_attention"])
    ),
    "jamba": lambda: transformers.JambaForCausalLM(
        transformers.JambaConfig(
            **_HYBRID, num_experts=2, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4
        )
    ),
    "falcon-h1": lambda: transformers.FalconH1ForCausalLM(
        transformers.FalconH1Config(
            **_HYBRID, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8
        )
    ),
}


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("probe", [True, False])
def test_hybrids_with_recurrent_layers_are_refused(kind: str, probe: bool) -> None:
    # Untrained weights of the usual size, so that the other ways weigh as little as they can.
    torch.manual_seed(0)
    model = STATEFUL[kind]().eval()
    with pytest.raises(UnsupportedModel, match="not only through attention"):
        HFDecoder(model, probe=probe)


def test_models_without_attention_are_refused() -> None:
    config = transformers.MambaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4
    )
    with pytest.raises(UnsupportedModel, match="does not compute attention through"):
        HFDecoder(transformers.MambaForCausalLM(config))


def test_models_with_attention_code_of_their_own_are_refused() -> None:
    config = transformers.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(UnsupportedModel, match="does not compute attention through"):
        HFDecoder(transformers.BloomForCausalLM(config))


def test_encoder_decoders_are_not_yet_supported() -> None:
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2
    )
    with pytest.raises(UnsupportedModel, match="encoder-decoder model; these are not yet"):
        HFDecoder(transformers.T5ForConditionalGeneration(config))


def test_models_that_see_what_comes_later_are_refused() -> None:
    sizes = {**FAMILIES["gpt_neox"][1], "is_decoder": False}
    model = transformers.BertLMHeadModel(transformers.BertConfig(**sizes))
    with pytest.raises(UnsupportedModel, match="masks attention in a way"):
        HFDecoder(model)


@pytest.mark.parametrize(
    "name", ["LlamaModel", "LlamaForSequenceClassification", "LlamaForTokenClassification"]
)
def test_models_without_a_language_head_are_refused(name: str) -> None:
    model = getattr(transformers, name)(transformers.LlamaConfig(**FAMILIES["llama"][1]))
    with pytest.raises(UnsupportedModel, match=f"a row of {VOCAB} logits"):
        HFDecoder(model)


@pytest.mark.parametrize("wrong", [None, "llama", nn.Linear(2, 2), 7])
def test_what_is_no_model_is_bad_input(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="expected a model of transformers; got"):
        HFDecoder(wrong)


def test_weights_that_are_not_in_memory_are_refused() -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**FAMILIES["llama"][1]))
    with pytest.raises(UnsupportedModel, match="not in memory"):
        HFDecoder(model)


class Planted(nn.Module):
    """Stands in for an attention module of Llama, and does something else around it."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention


class OwnAttention(Planted):
    """Ignores the attention interface."""

    def forward(self, hidden_states: Tensor, **options: Any) -> tuple[Tensor, None]:
        attention: Any = self.attention
        shape = (*hidden_states.shape[:-1], -1, 8)
        query, value = (
            f(hidden_states).view(shape).transpose(1, 2)
            for f in (attention.q_proj, attention.v_proj)
        )
        value = value.repeat_interleave(2, dim=1)
        out = nn.functional.scaled_dot_product_attention(query, value, value, is_causal=True)
        return attention.o_proj(out.transpose(1, 2).flatten(2)), None


class Option(Planted):
    """Hands an option to attention that changes what it computes."""

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.attention(*args, **options, position_bias=torch.zeros(1))


class OwnMask(Planted):
    """Hands a mask of its own to attention."""

    def forward(self, *args: Any, attention_mask: Any, **options: Any) -> Any:
        rows = args[0].shape[1] if args else options["hidden_states"].shape[1]
        mask = torch.full((1, 1, rows, rows), -torch.inf).triu(1)
        return self.attention(*args, attention_mask=mask, **options)


class Prefix(Planted):
    """Puts keys of its own before those of the tokens."""

    def forward(self, *args: Any, cache: Any = None, **options: Any) -> Any:
        return self.attention(*args, cache=self, **options)

    def update(self, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        return torch.cat([key[:, :, :1], key], dim=2), torch.cat([value[:, :, :1], value], dim=2)


class Running(Planted):
    """Adds the mean of all that it ever saw: state that no cache knows of."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__(attention)
        self.total, self.count = torch.zeros(32), 0

    def forward(self, hidden_states: Tensor, **options: Any) -> Any:
        out, weights = self.attention(hidden_states=hidden_states, **options)
        self.total, self.count = self.total + hidden_states.sum((0, 1)), self.count + 1
        return out + self.total / self.count, weights


class Sometimes(Planted):
    """Skips its attention where many tokens come at once."""

    def forward(self, hidden_states: Tensor, **options: Any) -> Any:
        if hidden_states.shape[1] > 30:
            return hidden_states, None
        return self.attention(hidden_states=hidden_states, **options)


class Shift(Planted):
    """Counts positions by itself: rotates by where tokens stand in the pass."""

    def forward(self, *args: Any, position_embeddings: Any, **options: Any) -> Any:
        cosines, _ = position_embeddings
        steps = torch.arange(cosines.shape[1])[:, None] / 10 ** torch.arange(4)
        angles = torch.cat([steps, steps], dim=-1)[None].to(cosines.dtype)
        return self.attention(*args, position_embeddings=(angles.cos(), angles.sin()), **options)


class Ratchet(Planted):
    """Starts anew at position 0, and goes wrong when it is taken back to any other."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__(attention)
        self.last, self.rewinds = -1, 0

    def forward(self, *args: Any, position_ids: Tensor, **options: Any) -> Any:
        first, before = int(position_ids[0, 0]), self.last
        self.last = int(position_ids.max())
        self.rewinds = 0 if first == 0 else self.rewinds + (first <= before)
        out, weights = self.attention(*args, position_ids=position_ids, **options)
        return out * (1 + self.rewinds), weights


def planted(kind: type[Planted]) -> Any:
    model = build("llama", num_hidden_layers=1)
    model.model.layers[0].self_attn = kind(model.model.layers[0].self_attn)
    return model


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (OwnAttention, "does not compute attention through the attention interface"),
        (Option, "calls attention with position_bias"),
        (OwnMask, "builds its own attention masks or position biases"),
        (Prefix, "attends to keys that are not those of the new tokens"),
        (Running, "not only through attention"),
        (Shift, "or counts positions by itself"),
        (Ratchet, "its state cannot be rolled back"),
    ],
)
def test_planted_models_are_refused_and_the_message_says_why(
    kind: type[Planted], says: str
) -> None:
    with pytest.raises(UnsupportedModel, match=says):
        HFDecoder(planted(kind))


def test_layers_that_are_skipped_now_and_then_are_refused_when_it_happens() -> None:
    target = target_of(planted(Sometimes))
    slot = target.open(64)
    with pytest.raises(
        UnsupportedModel, match="called attention 0 times in a pass and 1 times before"
    ):
        prefill(target, slot, tokens_of(40))


def test_dropout_that_does_not_stop_in_evaluation_is_refused() -> None:
    model = build("llama")
    model.model.layers[0].self_attn.attention_dropout = 0.5

    class Always(type(model.model.layers[0].self_attn)):
        training = property(lambda self: True, lambda self, value: None)

    model.model.layers[0].self_attn.__class__ = Always
    with pytest.raises(UnsupportedModel, match="calls attention with dropout"):
        HFDecoder(model)


def test_code_that_fails_on_plain_input_is_named() -> None:
    class Broken(transformers.LlamaForCausalLM):
        def forward(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("no kernel for this")

    model = Broken(transformers.LlamaConfig(**FAMILIES["llama"][1]))
    with pytest.raises(UnsupportedModel, match="RuntimeError: no kernel for this"):
        HFDecoder(model)


# ---------------------------------------------------------------- the probe sees faults of ours


def _see_all(self: Segment, *args: Any) -> None:
    return None


def _see_siblings(original: Any) -> Any:
    def bias(self: Segment, *args: Any) -> Any:
        self.visible = None
        return original(self, *args)

    return bias


@torch.inference_mode()
def _keep_half(self: KeyValueCache, rows: Sequence[int]) -> int:
    for tensor in (tensor for layer in self.layers for tensor in layer):
        tensor[:, self.length : self.length + len(rows)] *= 0.5
    self.length += len(rows)
    return self.length


@pytest.mark.parametrize(
    ("place", "name", "fault", "says"),
    [
        (Segment, "bias", _see_all, "does not give the logits that it gives by itself"),
        (Segment, "bias", _see_siblings(Segment.bias), "does not take positions or branches"),
        (KeyValueCache, "keep", _keep_half, "cannot be carried on from pass to pass"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_wrong_mask_or_cache_is_caught_by_the_probe(
    place: Any, name: str, fault: Any, says: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(family)
    monkeypatch.setattr(place, name, fault)
    with pytest.raises(UnsupportedModel, match=says):
        HFDecoder(model)


# ---------------------------------------------------------------- what rounding explains


@pytest.fixture
def doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at a model in bfloat16 says nothing, as with some trained ones."""
    monkeypatch.setitem(TOLERANCE, torch.bfloat16, 1e-6)


def in_bfloat16(family: str, storage: Any) -> Any:
    model = build(family).bfloat16()
    if storage is not None:
        assert pack_modules(model, storage)
    return model


@pytest.mark.usefixtures("doubtful")
@pytest.mark.parametrize("storage", [None, "packed", "int8"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "phi", "mistral-window"])
def test_rounding_is_not_taken_for_a_fault(family: str, storage: Any) -> None:
    model = in_bfloat16(family, storage)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    HFDecoder(model)
    for name, weight in model.state_dict().items():
        assert weight.dtype is before[name].dtype
        assert torch.equal(weight, before[name])


@pytest.mark.usefixtures("doubtful")
@pytest.mark.parametrize("storage", [None, "packed"])
@pytest.mark.parametrize(
    ("place", "name", "fault"),
    [
        (Segment, "bias", _see_all),
        (Segment, "bias", _see_siblings(Segment.bias)),
        (KeyValueCache, "keep", _keep_half),
    ],
)
def test_faults_are_found_where_rounding_is_large(
    place: Any, name: str, fault: Any, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = in_bfloat16("llama", storage)
    monkeypatch.setattr(place, name, fault)
    with pytest.raises(UnsupportedModel, match=r"off by .*; rounding explains"):
        HFDecoder(model)


@pytest.mark.usefixtures("doubtful")
@pytest.mark.parametrize("kind", [Shift, Ratchet])
def test_planted_faults_are_found_where_rounding_is_large(kind: type[Planted]) -> None:
    with pytest.raises(UnsupportedModel, match=r"in float32; rounding explains 0\.0005"):
        HFDecoder(planted(kind).bfloat16())


# ---------------------------------------------------------------- reasons that are so


def test_weights_that_are_no_numbers_are_named() -> None:
    model = build("llama")
    model.lm_head.weight.data[7] = float("nan")
    for probe in (True, False):
        with pytest.raises(ModelError, match=r"1 of its weights hold NaN .*lm_head\.weight"):
            HFDecoder(model, probe=probe)


def test_a_number_format_that_overflows_is_named() -> None:
    model = build("llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(1e30)
        model.model.norm.weight.mul_(1e30)
    with pytest.raises(ModelError, match="its weights are finite, so the number format overflows"):
        HFDecoder(model)


class Coupled(nn.Linear):
    """Rounds its inputs to steps that depend on the largest of all rows, as 8-bit products do."""

    def forward(self, x: Tensor) -> Tensor:
        step = x.abs().max() / 7
        return super().forward((x / step).round() * step)


def test_rows_that_depend_on_the_others_of_their_pass_are_not_called_recurrent() -> None:
    model = build("llama")
    for layer in model.model.layers:
        layer.mlp.down_proj.__class__ = Coupled
    with pytest.raises(UnsupportedModel, match=r"depend on the other tokens of its pass.*4 bits"):
        HFDecoder(model)


@pytest.mark.parametrize("storage", ["packed", "int8", "int4"])
@pytest.mark.parametrize("family", ["phi", "gpt_neox"])
def test_a_model_in_bfloat16_with_its_modules_packed(family: str, storage: Any) -> None:
    """The decoder copies the model, and with it whatever multiplies in place of its modules."""
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 128}
    model = build(family, **sizes).to(torch.bfloat16)
    text = tokens_of(20)
    expected = own_logits(model, text)
    assert pack_modules(model, storage)
    target = CachedTarget(HFDecoder(model))
    slot = target.open(40)
    prefill(target, slot, text[:9])
    found = target.score([Work(slot, [text[9]], Draft(text[10:]))])[0].logits
    near = {"packed": 0.02, "int8": 0.05, "int4": 0.5}[storage]
    assert float((found - expected[9:]).norm() / expected[9:].norm()) < near
