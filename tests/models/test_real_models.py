"""The known models, against what transformers itself makes of the same GGUF file."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from paceline.models import eos_token_ids, fetch, known, load_tokenizer, resolve

pytestmark = pytest.mark.model

TEXTS = [
    "The naïve café: 你好, 世界! 🙂👩‍👩‍👧\n\n\tdef f(x):\n        return x  # 12345 ok",
    " <|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "can't  we'll   ,  1.5e-3 ",
]
IM_END, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Models stay where they are fetched to; they are converted anew."""
    monkeypatch.setenv("PACELINE_MODELS", str(known.models_folder()))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))


def state_by_transformers(path, config, dtype):
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    return load_gguf_checkpoint(path, return_tensors=True, model_to_load=empty, torch_dtype=dtype)[
        "tensors"
    ]


@pytest.mark.parametrize(
    ("name", "dtype", "ends"),
    [
        ("smollm2-135m", "float32", [IM_END]),
        ("smollm2-135m", "bfloat16", [IM_END]),
        pytest.param(
            "qwen2.5-coder-0.5b", "bfloat16", [IM_END, END_OF_TEXT], marks=pytest.mark.slow
        ),
        pytest.param("gemma3-270m", "bfloat16", ["<eos>", "<end_of_turn>"], marks=pytest.mark.slow),
    ],
)
def test_the_model_is_that_of_transformers(name, dtype, ends):
    path, torch_dtype = fetch(name), getattr(torch, dtype)
    folder = resolve(name, dtype=dtype).folder

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    expected = state_by_transformers(path, config, torch_dtype)
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == expected.keys()
    for key, tensor in stored.items():
        assert torch.equal(tensor, expected[key]), key

    tokens = torch.arange(20)[None] * 131
    with torch.no_grad():
        oracle = AutoModelForCausalLM.from_config(config, dtype=torch_dtype).eval()
        oracle.load_state_dict(expected, strict=False, assign=True)
        oracle.tie_weights()
        ours = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        assert ours.dtype == torch_dtype
        assert torch.equal(ours(tokens).logits, oracle(tokens).logits)

    tokenizer = load_tokenizer(folder)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text)
        assert tokenizer.decode(ids) == theirs.decode(ids)
    assert tokenizer.chat_template == theirs.chat_template
    assert eos_token_ids(folder) == set(theirs.convert_tokens_to_ids(ends))
    assert eos_token_ids(ours.generation_config) == eos_token_ids(folder)


@pytest.mark.slow
def test_qwen_composes_characters_as_its_own_tokenizer_does():
    # Qwen's tokenizer normalises to NFC. A GGUF file does not say so; transformers knows it of
    # the model's type, and so of the converted folder.
    tokenizer = load_tokenizer(resolve("qwen2.5-coder-0.5b", dtype="bfloat16").folder)
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("café")
