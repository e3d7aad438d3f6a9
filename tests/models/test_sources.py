"""From what a user names to a folder: each kind of source, and each way it can be wrong."""

import json
import pickle
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM, T5Config

from paceline.errors import InvalidInput, ModelError, UnknownName, UnsupportedModel
from paceline.models import Files, check_folder, load_tokenizer, resolve, sources
from tests.models.tiny_gguf import CONFIGS, TOKENIZER, make_model, write_gguf


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "tiny-llama"
    make_model(CONFIGS["llama"]).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "tiny-llama"))


def change_json(file, **changes):
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | changes))


def refuse(error, message, source, **options):
    """One clear line."""
    with pytest.raises(error, match=message) as raised:
        resolve(source, **{"dtype": "float32"} | options)
    assert "\n" not in str(raised.value)


# What works


@pytest.mark.parametrize("as_given", [str, Path])
def test_a_folder(folder, as_given):
    files = resolve(as_given(folder), dtype=torch.bfloat16)
    assert files == Files(folder, "tiny-llama")
    assert load_tokenizer(files.folder).encode("the") == TOKENIZER.encode("the")


def test_the_folder_one_is_in(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert resolve(".", dtype="float32").name == "tiny-llama"


@pytest.mark.parametrize("suffix", [".gguf", ""])
def test_a_gguf_file(tmp_path, suffix):
    model = make_model(CONFIGS["llama"])
    files = resolve(write_gguf(tmp_path / f"tiny{suffix}", model), dtype=torch.float32)
    assert files.name == "tiny"
    again = AutoModelForCausalLM.from_pretrained(files.folder)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_a_known_name(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "x.gguf", make_model(CONFIGS["llama"]))
    asked = []
    monkeypatch.setattr(sources, "fetch", lambda name, progress: asked.append(name) or path)
    files = resolve("smollm2-135m", dtype="float32")
    assert asked == ["smollm2-135m"]
    assert files.name == "smollm2-135m"
    assert (files.folder / "config.json").is_file()


def test_pickled_weights_with_the_switch(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    refuse(InvalidInput, r"pickled weights \(pytorch_model.bin\).*allow_pickle=True", folder)
    assert resolve(folder, dtype="float32", allow_pickle=True).folder == folder


def test_pickled_weights_beside_safetensors_are_left_alone(folder):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    assert resolve(folder, dtype="float32").folder == folder


def test_shards(saved, tmp_path):
    AutoModelForCausalLM.from_pretrained(saved).save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    check_folder(tmp_path)
    shards[-1].unlink()
    refuse(ModelError, rf"lacks 1 of its weight files \({shards[-1].name}\)", tmp_path)


# Hub names. No test reaches for a hub: the cache of the hub library stands in for it.


@pytest.fixture
def hub(saved, tmp_path, monkeypatch):
    """A hub cache that holds org/tiny, as the hub library lays it out."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    repository = cache / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(saved, repository / "snapshots" / ("0" * 40))
    return repository


def test_a_hub_name(hub):
    files = resolve("org/tiny", dtype="float32")
    assert files == Files(hub / "snapshots" / ("0" * 40), "org/tiny")


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({}, []),
        ({"allow_pickle": True}, ["*.bin", "*.pt", "*.pth"]),
        ({"trust_remote_code": True}, ["*.py"]),
    ],
)
def test_only_what_is_needed_comes_from_the_hub(hub, folder, monkeypatch, options, extra):
    asked = {}
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **given: asked.update(given) or folder
    )
    resolve("org/tiny", dtype="float32", **options)
    files = ["model.safetensors", "tokenizer.json", "tokenizer.model", "chat_template.jinja"]
    files += ["vocab.txt", "model.bin", "model.pt", "model.pth", "modeling.py", "README.md"]
    files += ["onnx/model.safetensors", "consolidated.safetensors", "tf_model.h5", "flax.msgpack"]
    taken = huggingface_hub.utils.filter_repo_objects(files, **asked)
    assert set(taken) == {*files[:5], *(f for f in files[5:9] if f"*{Path(f).suffix}" in extra)}


def test_a_hub_that_cannot_be_reached(hub):
    message = (
        r"could not get 'HuggingFaceTB/SmolLM2-135M' from the model hub \(.+\), and there is no "
        r"such folder; give a folder in Hugging Face layout, a .gguf file or a known name.*"
        r"did you mean 'smollm2-135m'\? Known: .*qwen2.5-coder-0.5b"
    )
    refuse(ModelError, message, "HuggingFaceTB/SmolLM2-135M")


def test_pickled_weights_of_a_hub_are_not_even_fetched(hub):
    (next(hub.glob("snapshots/*")) / "model.safetensors").unlink()
    refuse(InvalidInput, r"has no weights: expected \*.safetensors", "org/tiny")


# What is refused


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("smolm2-135m", UnknownName, "did you mean 'smollm2-135m'.*hub name"),
        ("", UnknownName, "unknown model ''"),
        ("none.gguf", InvalidInput, "no such file or folder: none.gguf; expected a folder"),
        ("/none/at/all", InvalidInput, "no such file or folder: /none/at/all"),
        ("./none", InvalidInput, "no such file or folder: none"),
        ("~/none/at/all", InvalidInput, "no such file or folder: .*/none/at/all"),
        ("a/b/c", UnknownName, "unknown model 'a/b/c'"),
        ("x" * 5000, InvalidInput, "not a model: 'xxx"),
        ("a\0b", UnknownName, "unknown model"),
        ("~nobody-of-this-name/x", InvalidInput, "not a model"),
    ],
)
def test_a_source_that_is_nothing(source, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(error, message, source)


@pytest.mark.parametrize("dtype", ["float16", "int8", torch.float64, "auto", None])
def test_a_dtype_that_is_not_supported(folder, dtype):
    refuse(InvalidInput, "dtype must be bfloat16 or float32; it is", folder, dtype=dtype)


def test_a_file_of_weights(folder):
    refuse(InvalidInput, "contains only weights; give the folder", folder / "model.safetensors")


def test_a_file_of_another_kind(folder):
    refuse(InvalidInput, "not a GGUF file", folder / "config.json")


def test_a_folder_without_config(folder):
    (folder / "config.json").unlink()
    refuse(InvalidInput, "has no config.json, so it is not a model", folder)


@pytest.mark.parametrize("content", ["{", "[]", '"x"', "\xff\x00"])
def test_a_damaged_config(folder, content):
    (folder / "config.json").write_text(content)
    refuse(ModelError, "config.json is damaged", folder)


def test_a_config_that_transformers_cannot_read(folder):
    change_json(folder / "config.json", num_hidden_layers="many")
    refuse(ModelError, "transformers cannot read .*config.json", folder)


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    refuse(InvalidInput, r"has no weights: expected \*.safetensors", folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_weights_cut_short(folder, keep):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    refuse(ModelError, "model.safetensors is damaged or truncated", folder)


def test_an_encoder_decoder(tmp_path):
    T5Config().save_pretrained(tmp_path)
    refuse(UnsupportedModel, r"encoder-decoder model \(t5\); those are not supported yet", tmp_path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("clip", "'clip', which is not a decoder-only language model"),
        ("whisper", "'whisper', which is not a decoder-only"),
        ("hyperloom", "'hyperloom', which this transformers does not know"),
        (None, "type None, which this transformers does not know"),
    ],
)
def test_a_model_of_another_kind(folder, kind, message):
    (folder / "config.json").write_text(json.dumps({} if kind is None else {"model_type": kind}))
    refuse(UnsupportedModel, message, folder)


def test_a_model_with_code_of_its_own(folder):
    change_json(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})
    refuse(InvalidInput, "contains Python code .* 'own'.*trust_remote_code=True", folder)
    assert resolve(folder, dtype="float32", trust_remote_code=True).folder == folder


def test_code_that_is_not_needed_is_not_run(folder):
    # Many models on hubs still bring code that transformers has long had itself.
    change_json(folder / "config.json", auto_map={"AutoConfig": "own.Config"})
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Slow", None]})
    (folder / "own.py").write_text("raise SystemExit('this was run')")
    assert resolve(folder, dtype="float32").folder == folder
    AutoModelForCausalLM.from_pretrained(folder)
    load_tokenizer(folder)


def test_a_tokenizer_with_code_of_its_own(folder):
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Slow", None]})
    (folder / "tokenizer.json").unlink()
    refuse(InvalidInput, "contains Python code for its tokenizer", folder)
    assert resolve(folder, dtype="float32", trust_remote_code=True).folder == folder


def test_an_adapter_is_no_model_and_the_message_says_what_merges_it(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(InvalidInput, match=r"holds an adapter.*paceline.load merges it"):
        resolve(tmp_path, dtype="float32")
