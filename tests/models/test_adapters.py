"""The oracles: the equation of LoRA, and the model of peft that wrote the adapter, unmerged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import paceline
from paceline.errors import InvalidInput, ModelError, UnsupportedModel
from paceline.models.adapter_files import read_adapter
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.hf.decoder import HFDecoder
from tests import tiny_folders

PROMPT = [*range(5, 25)]
BASE = "base_model.model."
QUERY = "model.layers.0.self_attn.q_proj"


def same_answers(path: Path, model: Any, **options: Any) -> Any:
    """Check that a loaded model says what `model` says, and return it."""
    loaded = paceline.load(path, dtype="float32", storage="plain", **options)
    found = loaded.generate(
        PROMPT, max_tokens=16, drafter="ngram", num_draft_tokens=3, ignore_eos=True, logprobs=1
    )
    text = torch.tensor([[*PROMPT, *found.token_ids]])
    with torch.no_grad():
        rows = model(text).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    assert rows.argmax(-1).tolist() == list(found.token_ids)
    expected = rows.max(-1).values
    torch.testing.assert_close(torch.tensor(found.logprobs), expected, atol=1e-5, rtol=1e-5)
    return loaded


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    """An adapter's folder, as peft writes it."""
    folder.mkdir(exist_ok=True)
    whole = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(whole))
    save_file({BASE + name: tensor for name, tensor in tensors.items()}, folder / _WEIGHTS)
    return folder


_WEIGHTS = "adapter_model.safetensors"


def pair(module: str, out: int, inputs: int, rank: int = 4, seed: int = 3) -> Any:
    """A and B of one module, under peft's names."""
    noise = torch.Generator().manual_seed(seed)
    return {
        f"{module}.lora_A.weight": torch.randn(rank, inputs, generator=noise) * 0.3,
        f"{module}.lora_B.weight": torch.randn(out, rank, generator=noise) * 0.3,
    }


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_folders.save(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    return write(tmp_path / "tuned", pair(QUERY, 32, 32), base_model_name_or_path=str(base))


def by_equation(adapter: Path, scale: float) -> Any:
    """The tiny Llama with s B A added to its first query weight."""
    tensors, model = load_file(adapter / _WEIGHTS), tiny_folders.model()
    a, b = (tensors[f"{BASE}{QUERY}.lora_{part}.weight"] for part in "AB")
    with torch.no_grad():
        model.get_parameter(f"{QUERY}.weight").add_(scale * (b @ a))
    return model


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 8 / 4),
        ({"lora_alpha": 3}, 3 / 4),
        ({"use_rslora": True}, 8 / 4**0.5),
        ({"alpha_pattern": {"k_proj": 1, "layers.0.self_attn.q_proj": 6}}, 6 / 4),
        ({"alpha_pattern": {"layers.1.self_attn.q_proj": 6}}, 8 / 4),
        ({"r": 16, "rank_pattern": {"q_proj": 4}}, 8 / 4),
    ],
    ids=str,
)
def test_the_equation(tmp_path: Path, base: Path, config: dict[str, Any], scale: float) -> None:
    adapter = write(tmp_path / "tuned", pair(QUERY, 32, 32), **config)
    loaded = same_answers(base, by_equation(adapter, scale), adapter=adapter)
    assert isinstance(loaded.decoder, DenseDecoder)
    assert loaded.name == "base+tuned"


def test_it_makes_a_difference(base: Path, adapter: Path) -> None:
    with pytest.raises(AssertionError):
        same_answers(base, by_equation(adapter, 2.0))


def test_the_folder_of_an_adapter_is_its_base_with_it(adapter: Path) -> None:
    assert same_answers(adapter, by_equation(adapter, 2.0)).name == "base+tuned"


def test_the_sum_is_rounded_once(base: Path, adapter: Path) -> None:
    exact = by_equation(adapter, 2.0).get_parameter(f"{QUERY}.weight").to(torch.bfloat16)
    found = read_adapter(adapter).applied(
        f"{QUERY}.weight", tiny_folders.model().get_parameter(f"{QUERY}.weight")
    )
    assert torch.equal(found.to(torch.bfloat16), exact)


def test_a_draft_model_may_be_one_with_an_adapter(base: Path, adapter: Path) -> None:
    draft = paceline.load_draft(adapter)
    same = paceline.load_draft(base, adapter=adapter, device="cpu", dtype="float32")
    assert draft.name == same.name == "base+tuned"
    plain = paceline.load(base, dtype="float32").generate(PROMPT, max_tokens=12, drafter="none")
    found = paceline.load(base, dtype="float32").generate(PROMPT, max_tokens=12, draft_model=draft)
    assert found.token_ids == plain.token_ids


LORA: dict[str, Any] = {"r": 4, "lora_alpha": 8}
ATTENTION = ["q_proj", "v_proj"]
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {}, {"target_modules": ATTENTION}),
    ("llama", {}, {"target_modules": "all-linear", "use_rslora": True}),
    ("llama", {}, {"target_modules": ATTENTION, "rank_pattern": {"q_proj": 2}}),
    ("llama", {}, {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]}),
    ("llama", {}, {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    ("llama", {"tie_word_embeddings": True}, {"target_modules": ["q_proj", "embed_tokens"]}),
    ("llama", {"tie_word_embeddings": True}, {"target_modules": ["q_proj", "lm_head"]}),
    ("llama", {"tie_word_embeddings": True}, {"modules_to_save": ["lm_head"]}),
    ("llama", {"tie_word_embeddings": True}, {"modules_to_save": ["embed_tokens"]}),
    ("qwen2", {}, {"target_modules": ATTENTION, "bias": "all"}),
    ("gpt2", {}, {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    ("gpt2", {}, {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]}),
    ("gpt2", {}, {"target_modules": ["wte", "c_fc"], "fan_in_fan_out": True}),
    ("gemma3", {}, {"target_modules": ["q_proj", "down_proj"]}),
]


@pytest.mark.parametrize(("family", "changes", "config"), CASES, ids=str)
@pytest.mark.filterwarnings("ignore")  # peft's own, about merging what is tied
def test_the_model_of_peft(tmp_path: Path, family: Any, changes: Any, config: Any) -> None:
    peft = pytest.importorskip("peft")
    base = tiny_folders.save(tmp_path / "base", family, **changes)
    settings = {"target_modules": ["q_proj"], **LORA, **config}
    model = peft.get_peft_model(
        tiny_folders.model(family, **changes), peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    ).eval()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=noise) * 0.1)
    model.save_pretrained(tmp_path / "tuned")
    loaded = same_answers(base, model, adapter=tmp_path / "tuned")
    lean = family in ("llama", "qwen2")
    assert isinstance(loaded.decoder, DenseDecoder if lean else HFDecoder)
    if lean:  # and by its own modules
        same_answers_by_modules(base, model, tmp_path / "tuned")


def same_answers_by_modules(base: Path, model: Any, adapter: Path) -> None:
    from transformers import AutoModelForCausalLM

    from paceline.models.adapters import merge_into

    own = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merge_into(own, read_adapter(adapter))
    text = torch.tensor([PROMPT])
    with torch.no_grad():
        torch.testing.assert_close(own(text).logits, model(text).logits, atol=1e-5, rtol=1e-5)


# What is refused


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"peft_type": "PREFIX_TUNING"}, UnsupportedModel, "'PREFIX_TUNING', and Paceline merges"),
        ({"use_dora": True}, UnsupportedModel, "sets use_dora, and Paceline merges plain LoRA"),
        ({"lora_bias": True, "x": 1}, UnsupportedModel, "sets lora_bias, x, and"),
        ({"init_lora_weights": "pissa"}, UnsupportedModel, "trained from 'pissa', which changes"),
    ],
)
def test_what_is_no_plain_lora(
    tmp_path: Path, base: Path, config: Any, error: Any, message: str
) -> None:
    adapter = write(tmp_path / "odd", pair(QUERY, 32, 32), **config)
    with pytest.raises(error, match=message):
        paceline.load(base, adapter=adapter)


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        (
            pair("model.layers.9.self_attn.q_proj", 32, 32),
            ModelError,
            "1 of the adapter's weights have no place",
        ),
        (pair(QUERY, 48, 32), ModelError, r"is \[48, 32\], and the model's is \[32, 32\]"),
        ({f"{QUERY}.lora_A.weight": torch.ones(4, 32)}, ModelError, "A and B of .* be matrices"),
        (
            {
                f"{QUERY}.lora_A.weight": torch.ones(4, 32),
                f"{QUERY}.lora_B.weight": torch.ones(32, 5),
            },
            ModelError,
            r"they are \{'A': \[4, 32\], 'B': \[32, 5\]\}",
        ),
        (
            {f"{QUERY}.lora_magnitude_vector": torch.ones(32)},
            UnsupportedModel,
            "lora_magnitude_vector', which is no part of plain LoRA",
        ),
        ({"lm_head.weight": torch.ones(5, 32)}, ModelError, r"lm_head.weight is \[5, 32\]"),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_what_does_not_fit(
    tmp_path: Path, family: Any, tensors: Any, error: Any, message: str
) -> None:
    base = tiny_folders.save(tmp_path / "base", family)
    adapter = write(tmp_path / "odd", tensors, modules_to_save=["lm_head"])
    with pytest.raises(error, match=message):
        paceline.load(base, adapter=adapter)


def test_the_config_of_the_base_beside_an_adapter_is_no_model(base: Path, adapter: Path) -> None:
    (adapter / "config.json").write_bytes((base / "config.json").read_bytes())
    same_answers(adapter, by_equation(adapter, 2.0))


def test_a_model_and_an_adapter_in_one_folder(base: Path, adapter: Path) -> None:
    write(base, pair(QUERY, 32, 32))
    for given in ({}, {"adapter": base}, {"adapter": adapter}):
        with pytest.raises(InvalidInput, match=r"holds a model .* and an adapter .*; move the"):
            paceline.load(base, **given)


def test_what_is_no_adapter(tmp_path: Path, base: Path, adapter: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds no adapter_config.json, so it is no adapter"):
        paceline.load(base, adapter=base)
    with pytest.raises(InvalidInput, match="an adapter itself; give one model and one adapter"):
        paceline.load(adapter, adapter=adapter)
    with pytest.raises(InvalidInput, match="adapter are for models that Paceline loads itself"):
        paceline.load(tiny_folders.model(), adapter=adapter)  # type: ignore[call-overload]
    nameless = write(tmp_path / "nameless", pair(QUERY, 32, 32))
    with pytest.raises(InvalidInput, match=r"does not say of which model; give the model"):
        paceline.load(nameless)
    (adapter / _WEIGHTS).write_bytes(b"broken")
    with pytest.raises(ModelError, match="damaged or truncated"):
        paceline.load(adapter)
    (adapter / _WEIGHTS).rename(adapter / "adapter_model.bin")
    with pytest.raises(InvalidInput, match=r"no adapter_model.safetensors; its weights are pick"):
        paceline.load(adapter)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lora_alpha": None}, "lora_alpha must be a number; it is None"),
        ({"lora_alpha": "8"}, "lora_alpha must be a number; it is '8'"),
        ({"lora_alpha": True}, "lora_alpha must be a number; it is True"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number; it is nan"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern must be an object"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern of 'q_proj' must be a number"),
        ({"alpha_pattern": {"q_(proj": 4}}, "alpha_pattern must be a regular expression"),
        ({"modules_to_save": "lm_head"}, "modules_to_save must be a list of names"),
        ({"modules_to_save": [3]}, "modules_to_save must be a list of names"),
        ({"base_model_name_or_path": 7}, "base_model_name_or_path must be the name of a model"),
    ],
    ids=str,
)
def test_settings_without_a_meaning(
    tmp_path: Path, base: Path, setting: dict[str, Any], message: str
) -> None:
    damaged = write(tmp_path / "damaged", pair(QUERY, 32, 32), **setting)
    with pytest.raises(ModelError) as found:
        paceline.load(base, adapter=damaged)
    assert message in str(found.value)
    assert str(damaged / "adapter_config.json") in str(found.value)
    assert "\n" not in str(found.value)


def test_matrices_without_a_rank(tmp_path: Path, base: Path) -> None:
    empty = write(tmp_path / "empty", pair(QUERY, 32, 32, rank=0))
    with pytest.raises(ModelError, match=r"A and B of .* must be matrices \[r, in\]"):
        paceline.load(base, adapter=empty)
