import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import GenerationConfig

from paceline.errors import ModelError
from paceline.models import eos_token_ids, load_tokenizer
from paceline.models.gguf_file import Head
from paceline.models.tokens import end_token_ids


def head(control=(), plain=(), **ids):
    """A head with these control tokens, numbered from 0, then these plain ones."""
    metadata = {f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()}
    metadata["tokenizer.ggml.tokens"] = [*control, *plain]
    metadata["tokenizer.ggml.token_type"] = [3] * len(control) + [1] * len(plain)
    return Head(Path("x.gguf"), metadata, ())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # As the generation configs of these models say.
        (
            head(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], eos=2, bos=0, padding=0),
            [2, 0],
        ),  # Qwen2.5
        (head(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], eos=2, unknown=0), [2]),  # SmolLM2
        (head(["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"], eos=2), [2, 0, 1]),  # Llama 3
        (head(["<pad>", "<eos>", "<bos>", "<end_of_turn>"], eos=1), [1, 3]),  # Gemma 3
        (head(["<s>", "</s>"], eos=1), [1]),  # Llama 2
        # What the file names counts, whatever it is called; and once.
        (head(["a", "b", "c"], eos=2, eot=0, eom=2), [2, 0]),
        # A plain token of that name is text.
        (head(["</s>"], ["<|im_end|>"], eos=0), [0]),
        (head(["</s>"]), []),
        (Head(Path("x.gguf"), {}, ()), []),
    ],
)
def test_the_ends_that_a_gguf_file_means(given, expected):
    assert end_token_ids(given) == expected


def test_the_first_source_that_names_any_counts():
    generation, config = GenerationConfig(eos_token_id=[3, 4]), SimpleNamespace(eos_token_id=5)
    nothing = SimpleNamespace(eos_token_id=None)
    assert eos_token_ids(generation, config) == {3, 4}
    assert eos_token_ids(None, nothing, SimpleNamespace(), config, generation) == {5}
    assert eos_token_ids(SimpleNamespace(eos_token_id=0)) == {0}
    assert eos_token_ids(None, nothing) == frozenset()
    assert eos_token_ids() == frozenset()


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [1, 2]}, {"eos_token_id": 3}, {1, 2}),
        ({}, {"eos_token_id": 3}, {3}),
        (None, {"eos_token_id": 3}, {3}),
        (None, {}, {9}),
        (None, None, {9}),
    ],
)
def test_a_folder(tmp_path, generation, config, expected):
    for name, content in (("generation_config", generation), ("config", config)):
        if content is not None:
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
    tokenizer = SimpleNamespace(eos_token_id=9)
    assert eos_token_ids(tmp_path, tokenizer) == expected
    assert eos_token_ids(str(tmp_path), tokenizer) == expected


def test_a_damaged_generation_config(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config.json is damaged"):
        eos_token_ids(tmp_path)


def test_a_folder_without_tokenizer(tmp_path):
    with pytest.raises(ModelError, match="cannot load a tokenizer from") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
