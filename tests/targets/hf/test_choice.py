"""Which decoder a model gets, and that it is looked at again when something of it changes."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.errors import UnsupportedModel
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.hf import lean
from paceline.targets.hf.choice import decoder_of
from paceline.targets.hf.decoder import HFDecoder
from paceline.targets.hf.fingerprint import fingerprint
from paceline.targets.hf.lean import not_lean
from tests.tiny_models import FAMILIES, build, own_logits, tiny, tokens_of

LEAN = ("llama", "qwen2", "qwen3", "gemma", "mistral")


def logits(model: Any, tokens: tuple[int, ...], cached: int = 3) -> Tensor:
    """Those of the rows from `cached` on, by the decoder that the model gets."""
    target = CachedTarget(decoder_of(model))
    slot = target.open(len(tokens))
    prefill(target, slot, tokens[:cached])
    found = target.score([Work(slot, [tokens[cached]], Draft(tokens[cached + 1 :]))])[0].logits
    target.close(slot)
    return found


def assert_right(model: Any) -> None:
    tokens = tokens_of(12)
    expected = own_logits(model, tokens)[3:]
    torch.testing.assert_close(logits(model, tokens), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gets_the_decoder_that_computes_it(family: str) -> None:
    model = tiny(family)
    assert isinstance(decoder_of(model), DenseDecoder) is (family in LEAN)
    assert_right(model)


@pytest.mark.parametrize("family", LEAN)
@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied"])
def test_the_weights_are_the_models_own(family: str, tied: bool) -> None:
    model = build(family, tie_word_embeddings=tied, attention_bias=family == "llama")
    decoder: Any = decoder_of(model)
    places = {weight.data_ptr() for weight in model.parameters()}
    layer = decoder.layers[0]
    products = (layer.qkv, layer.output, layer.gate_up, layer.down, decoder.head)
    held = [tensor for product in products for tensor in (*product.weights, *product.biases)]
    held += [decoder.embedding, decoder.norm, layer.input_norm, layer.post_norm]
    assert {tensor.data_ptr() for tensor in held if tensor is not None} <= places
    assert_right(model)


@pytest.mark.parametrize("family", LEAN)
def test_hooks_that_transformers_leaves_behind_change_nothing(family: str) -> None:
    """It puts them on the layers when hidden states are asked for, and never takes them off."""
    model = build(family)
    before = fingerprint(model)
    model(torch.tensor([[3, 4]]), output_hidden_states=True)
    assert any(module._forward_hooks for module in model.modules())
    assert fingerprint(model) == before
    assert isinstance(decoder_of(model), DenseDecoder)
    assert_right(model)


def _scale(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 2


def _eps(model: Any) -> None:
    model.model.layers[1].input_layernorm.variance_epsilon = 0.5


def _rotary(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(0.5)


def _rotary_scale(model: Any) -> None:
    model.model.rotary_emb.attention_scaling = 1.5


def _fewer_layers(model: Any) -> None:
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1


def _skipped_layer(model: Any) -> None:
    model.model.layers[1] = model.model.layers[0]


def _other_weight(model: Any) -> None:
    model.lm_head.weight = nn.Parameter(-model.lm_head.weight.detach())


def _other_data(model: Any) -> None:
    model.lm_head.weight.data = -model.lm_head.weight.data


def _in_place(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(-1)


def _double(model: Any) -> None:
    model.double()


def _other_module(model: Any) -> None:
    class Halved(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 2

    old = model.model.layers[0].mlp.down_proj
    new = Halved(old.in_features, old.out_features, bias=False)
    new.weight = old.weight
    model.model.layers[0].mlp.down_proj = new


def _normed_weight(model: Any) -> None:
    module: Any = parametrizations.weight_norm(model.model.layers[0].mlp.down_proj)
    module.parametrizations.weight.original0.data *= 2


def _activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = nn.ReLU()


def _bias(model: Any) -> None:
    old = model.model.layers[0].mlp.down_proj
    old.bias = nn.Parameter(torch.ones(old.out_features))


def _output_hook(model: Any) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: output + 1)


def _patched(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    mlp.forward = functools.partial(lambda module, x: -module.down_proj(module.up_proj(x)), mlp)


CHANGES: dict[str, Callable[[Any], None]] = {
    change.__name__.strip("_"): change
    for change in (
        _scale, _eps, _rotary, _rotary_scale, _fewer_layers, _skipped_layer, _other_weight,
        _other_data, _in_place, _double, _other_module, _normed_weight, _activation, _bias,
        _output_hook, _patched,
    )
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", ["llama", "granite"])
def test_what_changes_a_model_after_it_was_looked_at_is_seen(change: str, family: str) -> None:
    model = build(family)
    tokens = tokens_of(12)
    before = logits(model, tokens)
    CHANGES[change](model)
    expected = own_logits(model, tokens)[3:]
    found = logits(model, tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    assert change == "double" or not torch.allclose(found, before, rtol=0, atol=1e-4)
    assert change != "double" or torch.allclose(found, expected, rtol=0, atol=1e-10)


def test_code_that_looks_at_places_is_refused_whenever_it_came() -> None:
    model, add = build("llama"), torch.full((32,), 3.0)
    steer = lambda module, args: (torch.cat([args[0][:, :-1], args[0][:, -1:] + add], 1), *args[1:])  # noqa: E731
    for _ in range(2):
        assert isinstance(decoder_of(model), DenseDecoder)
        handle = model.model.layers[1].register_forward_pre_hook(steer)
        for _ in range(2):
            with pytest.raises(UnsupportedModel, match="exactly"):
                decoder_of(model)
        handle.remove()


def test_a_hook_that_wakes_up_later_is_noticed() -> None:
    """It is the same object all the time, and did nothing when the model was first looked at."""
    model, on = build("llama"), []

    def steer(module: Any, args: Any) -> Any:
        return (torch.cat([args[0][:, :-1], 3 + args[0][:, -1:]], 1), *args[1:]) if on else None

    model.model.layers[1].register_forward_pre_hook(steer)
    assert_right(model)
    on.append(True)
    with pytest.raises(UnsupportedModel, match="exactly"):
        decoder_of(model)
    on.clear()
    assert_right(model)


def test_a_function_of_the_family_that_was_replaced_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As libraries of fast kernels do, for all models of a class at once."""
    from transformers.models.llama import modeling_llama

    model = build("llama")
    assert isinstance(decoder_of(model), DenseDecoder)
    forward = modeling_llama.LlamaMLP.forward
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: 2 * forward(self, x))
    assert isinstance(decoder_of(model), HFDecoder)
    assert_right(model)
    monkeypatch.undo()
    rotate = modeling_llama.rotate_half
    monkeypatch.setattr(modeling_llama, "rotate_half", lambda x: -rotate(x))
    assert isinstance(decoder_of(model), HFDecoder)
    assert_right(model)
    monkeypatch.undo()
    assert isinstance(decoder_of(model), DenseDecoder)


def test_an_attention_of_the_users_own_is_not_passed_over() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register("of the tests", AttentionInterface()["sdpa"])
    model = build("llama", attn_implementation="of the tests")
    assert "attention" in str(not_lean(model))


@pytest.mark.parametrize("family", ["llama", "granite"])
def test_compiling_changes_nothing_of_it(family: str) -> None:
    model = build(family)
    before = fingerprint(model)
    model.forward = torch.compile(model.forward, backend="eager")
    assert fingerprint(model) == before
    assert_right(model)
    assert_right(torch.compile(build(family), backend="eager"))


def test_a_forward_over_the_original_modules_is_named() -> None:
    model = build("granite")
    old = model.forward
    model.forward = lambda *args, **options: old(*args, **options)
    with pytest.raises(UnsupportedModel, match="the forward of the model was replaced"):
        decoder_of(model)


@pytest.mark.parametrize("family", ["llama", "granite"])
def test_a_model_is_looked_at_once_and_never_kept(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, looks = build(family), []
    monkeypatch.setattr(
        "paceline.targets.hf.choice.not_lean", lambda m: looks.append(m) or not_lean(m)
    )
    found = [decoder_of(model) for _ in range(3)]
    if family == "granite":  # whose modules are copied, once
        assert found[0] is found[1] is found[2]
    _in_place(model)
    decoder_of(model)
    assert len(looks) == 1
    looks.clear()
    found.clear()
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def test_looking_draws_no_random_numbers() -> None:
    for family in ("llama", "gemma"):
        model = build(family)
        torch.manual_seed(3)
        expected = torch.rand(4)
        torch.manual_seed(3)
        decoder_of(model)
        assert torch.equal(torch.rand(4), expected)


def test_a_class_that_computes_something_else_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of transformers, say: a small model of the class is compared."""
    real = lean.lean_decoder

    def scaled(model: Any, **options: Any) -> DenseDecoder:
        decoder = real(model, **options)
        decoder.norm = 1.01 * decoder.norm
        return decoder

    monkeypatch.setattr(lean, "lean_decoder", scaled)
    assert "gives other logits" in str(not_lean(build("llama")))
    monkeypatch.undo()
    assert not_lean(build("llama")) is None
