"""What transformers does not read from GGUF. The oracle is the model that was written.

That its logits are the same to the bit is tested with all others, in `test_conversion`.
"""

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig

import paceline
from paceline.errors import UnsupportedModel
from paceline.models import convert
from paceline.models.gguf_architectures import ARCHITECTURES, _fraction
from tests.models.tiny_gguf import CONFIGS, GRANITE, OWN_CONFIGS, SHAPE, make_model, write_gguf

PROMPT = [7, 3, 50, 21, 8, 9, 77, 41, 5, 66, 12, 34]


def logits(model):
    with torch.no_grad():
        return model(torch.arange(24)[None] * 7 % SHAPE["vocab_size"]).logits


def read(path):
    return AutoModelForCausalLM.from_pretrained(convert(path, "float32"), dtype=torch.float32)


def without(*names):
    """A change of the writer that takes settings out again."""
    return lambda writer: [writer.kv_data[0].pop(name) for name in names]


def with_values(**values):
    """A change of the writer that sets numbers under names of the architecture."""

    def change(writer):
        for name, value in values.items():
            key = f"{writer.arch}.{name.replace('__', '.')}"
            writer.kv_data[0].pop(key, None)
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            else:
                writer.add_float32(key, value)

    return change


def test_every_architecture_is_written():
    assert {name.split(",")[0] for name in OWN_CONFIGS} == {*ARCHITECTURES, "olmo3"}


@pytest.mark.parametrize("name", OWN_CONFIGS)
def test_the_answer_is_that_of_the_model_that_was_written(tmp_path, name):
    model = make_model(OWN_CONFIGS[name])
    loaded = paceline.load(write_gguf(tmp_path / "a.gguf", model), dtype="float32")
    answer = loaded.generate(
        PROMPT, max_tokens=24, drafter="ngram", num_draft_tokens=4, ignore_eos=True, logprobs=1
    )
    expected = model.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    written = expected[0, len(PROMPT) :]
    assert list(answer.token_ids) == written.tolist()
    with torch.no_grad():
        rows = model(expected).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    logprobs = rows.gather(1, written[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(answer.logprobs), logprobs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("granite", with_values(attention__scale=0.4)),
        ("granite", with_values(embedding_scale=2.0)),
        ("granite", with_values(residual_scale=0.3)),
        ("granite", with_values(logit_scale=5.0)),
        ("granite, linear and biased", with_values(rope__scaling__factor=5.0)),
        ("glm4", with_values(rope__dimension_count=4)),
        ("glm4, yarn", with_values(rope__scaling__factor=5.0)),
        ("phi2", with_values(rope__freq_base=5000.0)),
        ("cohere2", with_values(logit_scale=0.5)),
        ("cohere2", with_values(attention__sliding_window=7)),
        ("cohere2", with_values(attention__sliding_window_pattern=2)),
        ("olmo3", with_values(attention__sliding_window=7)),
        ("olmo3", with_values(attention__sliding_window_pattern=[True, False, True, True])),
        ("olmo3", with_values(rope__scaling__factor=5.0, rope__scaling__attn_factor=1.0)),
        ("smollm3", with_values(rope__freq_base=4000.0)),
    ],
)
def test_each_setting_is_read(tmp_path, name, change):
    model = make_model(OWN_CONFIGS[name])
    other = read(write_gguf(tmp_path / "a.gguf", model, change=change))
    assert not torch.allclose(logits(other), logits(model), atol=1e-4)


def test_scales_that_granite_leaves_out_are_those_of_llama(tmp_path):
    scales = {**dict.fromkeys(GRANITE, 1.0), "attention_multiplier": 8**-0.5}
    model = make_model(GraniteConfig(**SHAPE, **scales))
    names = [f"granite.{name}" for name in ("attention.scale", "embedding_scale", "residual_scale")]
    path = write_gguf(tmp_path / "a.gguf", model, change=without(*names))
    assert torch.equal(logits(read(path)), logits(model))


def test_a_granite_4_model_without_recurrent_layers(tmp_path):
    """It has a count of key heads for each layer, and settings of what it does not have."""
    change = with_values(
        attention__head_count_kv=[2, 2],
        feed_forward_length=999,
        expert_count=0,
        expert_shared_feed_forward_length=64,
        ssm__conv_kernel=4,
        rope__scaling__finetuned=True,
    )
    model = make_model(OWN_CONFIGS["granite"])
    path = write_gguf(tmp_path / "a.gguf", model, change=change)
    assert torch.equal(logits(read(path)), logits(model))


def fuse(arrays):
    """One tensor of queries, keys and values, as old files have."""
    for layer in range(2):
        for kind in ("weight", "bias"):
            parts = [arrays.pop(f"blk.{layer}.attn_{part}.{kind}") for part in "qkv"]
            arrays[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(parts)


@pytest.mark.parametrize("name", ["phi2", "glm4", "qwen2"])
def test_queries_keys_and_values_in_one_tensor(tmp_path, name):
    model = make_model(CONFIGS[name])
    path = write_gguf(tmp_path / "a.gguf", model, tensors=fuse)
    assert torch.equal(logits(read(path)), logits(model))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("granite", without("granite.logit_scale"), "does not say what 'logit_scale' is"),
        ("smollm3", without("smollm3.embedding_length"), "does not say what 'embedding_length'"),
        ("glm4", with_values(attn_logit_softcapping=3.0), "sets attn_logit_softcapping, which"),
        ("glm4", with_values(rope__dimension_sections=[2, 1, 1, 0]), "sets rope.dimension_sect"),
        ("glm4", with_values(attention__value_length=8), "values of another length"),
        ("granite", with_values(rope__scaling__finetuned=False), "has no rotary positions"),
        ("olmo2", with_values(rope__dimension_count=4), "rotates 4 of 8 dimensions"),
        ("olmo2", with_values(attention__head_count_kv=[2, 4]), "has settings that transformers"),
        ("cohere2", with_values(attention__sliding_window_pattern=[True]), "of 1 of 4 layers"),
        ("olmo3", with_values(rope__scaling__attn_factor=0.5), "yarn with settings of its own"),
    ],
)
def test_what_would_be_another_model_is_refused(tmp_path, name, change, message):
    path = write_gguf(tmp_path / "odd.gguf", make_model(OWN_CONFIGS[name]), change=change)
    with pytest.raises(UnsupportedModel, match=message) as raised:
        convert(path, "float32")
    assert str(path) in str(raised.value)


def test_a_fraction_gives_the_part_again():
    for whole in range(2, 300):
        for part in range(1, whole + 1):
            assert int(whole * _fraction(part, whole)) == part


def test_the_names_are_those_of_gguf():
    assert set(ARCHITECTURES) <= set(gguf.MODEL_ARCH_NAMES.values())
