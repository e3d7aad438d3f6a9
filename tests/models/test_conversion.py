"""The oracle is the model that was written: the one read back gives the same logits, to the bit."""

import gc
import json
import os
import shutil
import threading
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.errors import InvalidInput, ModelError, UnsupportedModel
from paceline.models import convert, eos_token_ids, load_tokenizer
from tests.models.tiny_gguf import CONFIGS, TOKENIZER, make_model, write_gguf

LLAMA = CONFIGS["llama"]


def logits(model):
    with torch.no_grad():
        return model(torch.arange(24)[None] * 7 % len(TOKENIZER)).logits


def loaded(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


class Told(list):
    """Keeps what a progress callback is told."""

    def __call__(self, done, total, text):
        self.append((done, total, text))

    def made(self):
        return any(text.startswith("converting") for _, _, text in self)


@pytest.fixture
def tiny(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", make_model(LLAMA))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_is_the_one_that_was_written(tmp_path, name):
    model = make_model(CONFIGS[name])
    folder = convert(write_gguf(tmp_path / "tiny.gguf", model), "float32")
    again = loaded(folder)
    assert type(again) is type(model)
    assert torch.equal(logits(again), logits(model))


def test_in_bfloat16(tmp_path):
    model = make_model(LLAMA)
    folder = convert(write_gguf(tmp_path / "tiny.gguf", model), "bfloat16")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    state = loaded(folder, "auto").state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(state[name], weight.to(torch.bfloat16)), name


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_quantised_tensors_are_unpacked_as_gguf_does(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("paceline.models.gguf_tensors._CHUNK", 100)  # so that there are pieces
    quantise = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "tiny.gguf", make_model(CONFIGS["qwen2"]), quantise=quantise)
    names = {"model.embed_tokens": "token_embd", "model.layers.1.mlp.down_proj": "blk.1.ffn_down"}
    state = loaded(convert(path, "float32")).state_dict()
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for ours, theirs in names.items():
        tensor = stored[f"{theirs}.weight"]
        assert tensor.tensor_type == quantise
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(state[f"{ours}.weight"].numpy(), expected)


def test_the_tokenizer_is_the_one_that_was_written(tiny):
    folder = convert(tiny, "float32")
    tokenizer = load_tokenizer(folder)
    text = "the stop\n 🙂é 你好 <|user|>x<tool></s>"
    assert tokenizer.encode(text) == TOKENIZER.encode(text)
    for skip in (True, False):
        tokens = list(range(len(TOKENIZER)))
        expected = TOKENIZER.decode(tokens, skip_special_tokens=skip)
        assert tokenizer.decode(tokens, skip_special_tokens=skip) == expected
    assert tokenizer.chat_template == TOKENIZER.chat_template
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    # "<|end|>" ends a turn of this chat format, though the file names "</s>" alone.
    ends = TOKENIZER.convert_tokens_to_ids(["</s>", "<|end|>"])
    assert eos_token_ids(folder) == frozenset(ends)
    assert loaded(folder).generation_config.eos_token_id == ends


def test_tokenizer_files_beside_the_gguf_file_are_not_taken_for_its_own(tiny):
    (tiny.parent / "tokenizer.json").write_text("{}")
    (tiny.parent / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    assert load_tokenizer(convert(tiny, "float32")).encode("the") == TOKENIZER.encode("the")


def split_in(folder, model):
    write_gguf(folder / "tiny.gguf", model, split=5)
    return sorted(folder.glob("tiny-*.gguf"))


@pytest.mark.parametrize("given", [0, 2, -1])
def test_a_model_in_several_files_is_the_one_that_was_written(tmp_path, given):
    model = make_model(LLAMA)
    parts = split_in(tmp_path, model)
    assert len(parts) > 3
    folder = convert(parts[given], "float32")
    assert torch.equal(logits(loaded(folder)), logits(model))
    assert load_tokenizer(folder).encode("the stop") == TOKENIZER.encode("the stop")
    assert convert(parts[0], "float32") == folder


def test_a_part_that_is_not_there(tmp_path):
    first, second, *_ = split_in(tmp_path, make_model(LLAMA))
    second.unlink()
    with pytest.raises(ModelError, match=rf"one of \d files .*{second.name} is not beside it"):
        convert(first, "float32")


# What is kept


def test_the_second_call_finds_what_the_first_made(tiny):
    told = Told()
    folder = convert(tiny, "float32", told)
    done, total, text = told[-1]
    assert done == total > 0
    assert text == "converting tiny.gguf"
    assert [step[0] for step in told if step[2] == text] == sorted(
        step[0] for step in told if step[2] == text
    )
    told.clear()
    assert convert(tiny, "float32", told) == folder
    assert told == []  # neither converted nor read
    assert convert(tiny, "bfloat16") != folder


def test_a_file_is_known_by_its_content(tiny, tmp_path):
    folder = convert(tiny, "float32")
    moved = tmp_path / "elsewhere.gguf"
    shutil.copy(tiny, moved)
    told = Told()
    assert convert(moved, "float32", told) == folder
    assert not told.made()
    other = make_model(LLAMA, seed=1)
    write_gguf(tiny, other)  # same path, same size
    replaced = convert(tiny, "float32")
    assert replaced != folder
    assert torch.equal(logits(loaded(replaced)), logits(other))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "paceline.json"])
@pytest.mark.parametrize("harm", [os.remove, lambda path: os.truncate(path, 10)])
def test_a_damaged_copy_is_made_again(tiny, name, harm):
    folder = convert(tiny, "float32")
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    harm(folder / name)
    told = Told()
    assert convert(tiny, "float32", told) == folder
    assert told.made()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == whole


def test_an_interrupted_conversion_leaves_nothing(tiny, cache):
    def interrupt(done, total, text):
        if done > total / 2 > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tiny, "float32", interrupt)
    assert [file.name for file in (cache / "converted").iterdir() if file.is_dir()] == []
    assert loaded(convert(tiny, "float32")) is not None


def test_what_a_killed_process_left_is_removed(tiny, cache):
    folder = convert(tiny, "float32")
    left_over = folder.parent / f".{folder.name}-killed"
    folder.rename(left_over)
    assert convert(tiny, "float32") == folder
    assert not left_over.exists()


def test_two_at_once_make_it_once(tiny):
    start, told, folders = threading.Barrier(2), [Told(), Told()], []

    def run(progress):
        start.wait()
        folders.append(convert(tiny, "float32", progress))

    threads = [threading.Thread(target=run, args=[progress]) for progress in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 2
    assert len(set(folders)) == 1
    assert sum(progress.made() for progress in told) == 1


# What cannot be converted


def change_to(name, array):
    return lambda arrays: arrays.update({name: np.asarray(array, np.float32)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tensors": lambda arrays: arrays.pop("blk.1.ffn_up.weight")},
            r"no tensor for model.layers.1.mlp.up_proj.weight \(1 in total\)",
        ),
        ({"tensors": change_to("blk.0.extra.weight", [1])}, "'blk.0.extra.weight', .* no place"),
        (
            {"tensors": change_to("output_norm.weight", [1, 2, 3])},
            r"model.norm.weight has shape \(3,\); the config asks for \(32,\)",
        ),
        (
            {"change": lambda writer: writer.add_string("llama.rope.scaling.type", "longrope")},
            r"rotary embedding \(longrope\)",
        ),
    ],
)
def test_what_would_be_another_model_is_refused(tmp_path, cache, options, message):
    path = write_gguf(tmp_path / "odd.gguf", make_model(LLAMA), **options)
    with pytest.raises(UnsupportedModel, match=message) as raised:
        convert(path, "float32")
    assert str(path) in str(raised.value)
    assert [file for file in (cache / "converted").iterdir() if file.is_dir()] == []


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("t5", "encoder-decoder model .*not supported yet"),
        ("command-r", "cannot read .* architecture 'command-r'"),
        ("clip", "cannot read .* architecture 'clip'"),
    ],
)
def test_an_architecture_that_is_not_supported(tmp_path, architecture, message):
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=message):
        convert(tmp_path / "odd.gguf", "float32")


def test_no_room(tiny, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(ModelError, match=r"takes 0.0 GB and .* has 0.0 GB left.*PACELINE_CACHE"):
        convert(tiny, "float32")


def test_a_cache_that_cannot_be_written(tiny, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"could not convert .*set PACELINE_CACHE to another"):
        convert(tiny, "float32")


def test_no_such_file(tmp_path):
    with pytest.raises(ModelError, match=r"cannot read .*none.gguf: No such file"):
        convert(tmp_path / "none.gguf", "float32")


def test_not_a_gguf_file(tmp_path):
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(InvalidInput, match="not a GGUF file"):
        convert(tmp_path / "text.gguf", "float32")


def test_garbage_is_collected_again_afterwards(tmp_path):
    path = write_gguf(tmp_path / "odd.gguf", make_model(LLAMA))
    assert gc.isenabled()
    convert(path, "float32")
    assert gc.isenabled()
