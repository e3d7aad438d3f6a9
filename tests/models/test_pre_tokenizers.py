"""The oracle is llama.cpp: its tokens of the same texts, with the same vocabulary and merges.

`llama_cpp_splits.json` was written by llama.cpp (xllamacpp 2026.10.11549): merges learned across
all boundaries, so that each text is one token without a split and every boundary shows.
"""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from paceline.errors import UnsupportedModel
from paceline.models import conversion, convert, load_tokenizer
from paceline.models.pre_tokenizers import SPLITS, WHOLE_WORDS, pre_tokenizer
from tests.models.tiny_gguf import CONFIGS, TOKENIZER, make_model, write_gguf

SEEN = json.loads((Path(__file__).parent / "llama_cpp_splits.json").read_text(encoding="utf-8"))
VOCAB = {token: number for number, token in enumerate(SEEN["vocab"])}
MERGES = [tuple(merge.split(" ")) for merge in SEEN["merges"]]
EXPECTED = {name: split["tokens"] for split in SEEN["splits"] for name in split["names"]}
WITHOUT_MARKS = {"tekken", "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}
"""llama.cpp's patterns for these leave out combining marks, which the models' own have."""


@pytest.mark.parametrize("name", SPLITS)
def test_texts_are_split_as_by_llama_cpp(name):
    bpe = models.BPE(vocab=VOCAB, merges=MERGES, ignore_merges=name in WHOLE_WORDS)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    for text, tokens in zip(SEEN["texts"], EXPECTED[name], strict=True):
        if name in WITHOUT_MARKS and "\u0301" in text:
            continue
        assert tokenizer.encode(text).ids == tokens, text


def written(folder, name):
    """A file that names this split, or none."""

    def change(writer):
        if name is None:
            del writer.kv_data[0]["tokenizer.ggml.pre"]
        else:
            writer.add_tokenizer_pre(name)

    return write_gguf(folder / "tiny.gguf", make_model(CONFIGS["llama"]), change=change)


def test_a_file_s_split_is_in_its_folder(tmp_path):
    tokenizer = load_tokenizer(convert(written(tmp_path, "smollm"), "float32"))
    found = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 2024 \u00bd")
    pieces = ["in", "\u0120", "2", "0", "2", "4", "\u0120", "\u00c2\u00bd"]
    assert [piece for piece, _ in found] == pieces


@pytest.mark.parametrize(("name", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_pieces_that_are_tokens_are_kept_whole_where_the_model_does(tmp_path, name, whole):
    tokenizer = load_tokenizer(convert(written(tmp_path, name), "float32"))
    assert tokenizer.backend_tokenizer.model.ignore_merges is whole


def test_a_split_that_is_not_known_is_refused(tmp_path):
    path = written(tmp_path, "kimi-k2")
    with pytest.raises(UnsupportedModel, match=r"not supported \('kimi-k2'\); another split"):
        convert(path, "float32")


def test_a_file_that_names_no_split_is_loaded_with_a_warning(tmp_path):
    path = written(tmp_path, None)
    with pytest.warns(UserWarning, match=r"tiny.gguf does not say how its tokenizer splits text"):
        folder = convert(path, "float32")
    assert load_tokenizer(folder).encode("the stop") == TOKENIZER.encode("the stop")


def test_a_conversion_with_an_older_split_is_not_used(tmp_path, monkeypatch):
    """What was kept is known by the number of the converter, too."""
    path = written(tmp_path, "smollm")
    with monkeypatch.context() as older:
        older.setattr(conversion, "CONVERTER", conversion.CONVERTER - 1)
        older.setattr(conversion, "set_pre_tokenizer", lambda tokenizer, head: None)
        old = load_tokenizer(convert(path, "float32"))
    new = load_tokenizer(convert(path, "float32"))
    splits = [t.backend_tokenizer.pre_tokenizer.pre_tokenize_str("20") for t in (old, new)]
    assert [len(split) for split in splits] == [1, 2]
