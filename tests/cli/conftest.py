"""The command line in this process, on models small enough to make in a test."""

import json
import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from paceline.cli.main import app
from tests import tiny_tokenizers

CONTEXT = 1024
VARIABLES = ("PACELINE_DEBUG", "PACELINE_MODELS", "NO_COLOR", "FORCE_COLOR", "COLUMNS")


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    """A cache of the test's own, and nothing from the shell that runs the tests."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run():
    """Run `paceline` with arguments. No terminal is attached."""

    def run(*arguments, **options):
        return CliRunner().invoke(app, [str(item) for item in arguments], **options)

    return run


def write_model(folder, tokenizer, seed=0):
    """A tiny llama with weights large enough that its answers depend on the prompt."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A model with a chat template."""
    tokenizer = tiny_tokenizers.byte_level(chat_template=tiny_tokenizers.CHAT_TEMPLATE)
    return write_model(tmp_path_factory.mktemp("models") / "tiny", tokenizer)


@pytest.fixture(scope="session")
def opinionated(tiny, tmp_path_factory):
    """The same model, whose generation config says how to sample."""
    folder = tmp_path_factory.mktemp("models") / "opinionated"
    shutil.copytree(tiny, folder)
    file = folder / "generation_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "repetition_penalty": 1.7, "top_k": 5, "top_p": 0.9}))
    return folder


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory):
    """Another model with the same tokenizer."""
    tokenizer = tiny_tokenizers.byte_level(chat_template=tiny_tokenizers.CHAT_TEMPLATE)
    return write_model(tmp_path_factory.mktemp("models") / "draft", tokenizer, seed=1)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory):
    """A model with another tokenizer, and without a chat template."""
    return write_model(
        tmp_path_factory.mktemp("models") / "stranger", tiny_tokenizers.sentencepiece()
    )


@pytest.fixture(scope="session")
def encoder_decoder(tmp_path_factory):
    """The configuration of an encoder-decoder model."""
    folder = tmp_path_factory.mktemp("models") / "translator"
    folder.mkdir()
    config = {"model_type": "t5", "is_encoder_decoder": True, "architectures": ["T5Model"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
