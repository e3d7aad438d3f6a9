"""The oracle is the rotary embedding of transformers, through the logits of a whole model."""

import math

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paceline.errors import UnsupportedModel
from paceline.models import convert
from tests.models.tiny_gguf import CONFIGS, SHAPE, make_model, write_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# A head of 64, as Llama 3 has, so that there are frequencies of every kind.
SCALED = SHAPE | {"max_position_embeddings": 16384, "head_dim": 64}
SCALED_LLAMA = LlamaConfig(**SCALED | {"rope_parameters": LLAMA3})
# What the scaling does to each frequency, as transformers computes it.
DIVISORS = 500000.0 ** -(torch.arange(0, 64, 2) / 64) / LlamaRotaryEmbedding(SCALED_LLAMA).inv_freq


def logits(model):
    with torch.no_grad():
        far = torch.arange(24)[None] * 37  # positions that are far apart
        return model(torch.arange(24)[None] * 7 % 300, position_ids=far).logits


def check(path, model):
    again = AutoModelForCausalLM.from_pretrained(convert(path, "float32"), dtype=torch.float32)
    assert torch.equal(logits(again), logits(model))


def add_divisors(divisors):
    return lambda arrays: arrays.update({"rope_freqs.weight": np.asarray(divisors, np.float32)})


def test_the_divisors_are_of_every_kind():
    assert DIVISORS.min() == pytest.approx(1)
    assert DIVISORS.max() == pytest.approx(8)
    assert ((DIVISORS > 1.01) & (DIVISORS < 7.9)).any()


def test_llama_3(tmp_path):
    model = make_model(SCALED_LLAMA)
    check(write_gguf(tmp_path / "a.gguf", model, tensors=add_divisors(DIVISORS)), model)
    plain = make_model(LlamaConfig(**SCALED | {"rope_parameters": {"rope_theta": 500000.0}}))
    assert not torch.equal(logits(plain), logits(model)), "the test would not notice"


def test_linear(tmp_path):
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
    model = make_model(LlamaConfig(**SHAPE | {"rope_parameters": linear}))

    def scale(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    check(write_gguf(tmp_path / "a.gguf", model, change=scale), model)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}


def scale_by_yarn(writer, **more):
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(256)
    for key, value in more.items():
        writer.add_float32(f"llama.rope.scaling.{key}", value)


@pytest.mark.parametrize("betas", [{}, {"beta_fast": 16.0, "beta_slow": 2.0}])
def test_yarn(tmp_path, betas):
    sizes = SCALED | {"max_position_embeddings": 1024, "rope_parameters": YARN | betas}
    model = make_model(LlamaConfig(**sizes))
    named = {f"yarn_{name}": value for name, value in betas.items()}
    change = lambda writer: scale_by_yarn(writer, **named)  # noqa: E731
    check(write_gguf(tmp_path / "a.gguf", model, change=change), model)
    plain = make_model(LlamaConfig(**sizes | {"rope_parameters": {"rope_theta": 5000.0}}))
    assert not torch.equal(logits(plain), logits(model)), "the test would not notice"


@pytest.mark.parametrize("more", [{"yarn_attn_factor": 0.5}, {"yarn_log_multiplier": 0.1}])
def test_yarn_in_other_terms_is_refused(tmp_path, more):
    change = lambda writer: scale_by_yarn(writer, **more)  # noqa: E731
    path = write_gguf(tmp_path / "a.gguf", make_model(CONFIGS["llama"]), change=change)
    with pytest.raises(UnsupportedModel, match="yarn with settings of its own"):
        convert(path, "float32")


def test_none_is_none(tmp_path):
    model = make_model(CONFIGS["llama"])
    change = lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)  # noqa: E731
    check(write_gguf(tmp_path / "a.gguf", model, change=change), model)


def test_other_divisors_are_refused(tmp_path):
    wrong = DIVISORS * torch.linspace(1, 1.01, 32)
    model = make_model(SCALED_LLAMA)
    path = write_gguf(tmp_path / "a.gguf", model, tensors=add_divisors(wrong))
    with pytest.raises(UnsupportedModel, match="frequencies one by one"):
        convert(path, "float32")


def test_divisors_of_another_type_are_refused(tmp_path):
    half = DIVISORS.numpy().astype(np.float16)
    tensors = lambda arrays: arrays.update({"rope_freqs.weight": half})  # noqa: E731
    path = write_gguf(tmp_path / "a.gguf", make_model(CONFIGS["llama"]), tensors=tensors)
    with pytest.raises(UnsupportedModel, match="a type other"):
        convert(path, "float32")


def test_a_scaling_for_layers_of_two_kinds_is_refused(tmp_path):
    def scale(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)

    path = write_gguf(tmp_path / "a.gguf", make_model(CONFIGS["gemma3"]), change=scale)
    with pytest.raises(UnsupportedModel, match=r"rotary embedding \(linear\)"):
        convert(path, "float32")


def test_the_formula_is_that_of_transformers():
    from paceline.models.rope import _llama3_divisor

    for index, divisor in enumerate(DIVISORS.tolist()):
        wavelength = 2 * math.pi * 500000.0 ** (2 * index / 64)
        assert _llama3_divisor(wavelength, 8.0) == pytest.approx(divisor, rel=1e-5)
