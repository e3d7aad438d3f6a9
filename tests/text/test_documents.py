"""Documents from files, piece by piece."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import InvalidInput
from paceline.text import documents, tokenizer_fingerprint
from paceline.text.documents import Piece, read_documents
from tests.tiny_tokenizers import byte_level, sentencepiece


def test_a_text_is_one_document_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 8)
    text = "one two\nthrée\n\n  four\nfive\n" * 5
    path = tmp_path / "text.md"
    path.write_text(text, encoding="utf-8")
    pieces = list(read_documents(path))
    assert "".join(piece.text for piece in pieces) == text
    assert len(pieces) > 5
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [piece.num_bytes for piece in pieces] == sorted(piece.num_bytes for piece in pieces)
    assert pieces[-1].num_bytes == path.stat().st_size
    # Cut where a line begins that is not indented, or empty.
    assert all(not piece.text[0].isspace() for piece in pieces if piece.text)


def test_a_text_without_lines_is_cut_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_LONGEST", 100)
    monkeypatch.setattr(documents, "PIECE", 64)
    path = tmp_path / "text"
    path.write_text("word " * 100)
    pieces = list(read_documents(path))
    assert "".join(piece.text for piece in pieces) == "word " * 100
    assert len(pieces) > 2


def test_each_json_line_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"text": "one\\ntwo"}\n\n"three"\n["four", "five"]\n', encoding="utf-8-sig")
    assert [piece.text for piece in read_documents(path)] == ["one\ntwo", "three", "four", "five"]
    assert all(piece.is_last for piece in read_documents(path))
    path.write_text('{"turns": ["a", "b"]}\n{"turns": [{"role": "user", "content": "c"}]}')
    assert list(read_documents(path, "turns"))[-1] == Piece("c", True, path.stat().st_size)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": 3}', "line 1: expected a text, or a list of texts or of messages, got 3"),
        ('{"text": "a"}\n{"content": "b"}', "line 2: the object has no 'text'; it has 'content'"),
        ("plain", "line 1: expected JSON, got 'plain'"),
        ('[{"role": "user"}]', "expected a text"),
    ],
)
def test_lines_that_are_something_else(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        list(read_documents(path))


@pytest.mark.parametrize("name", ["some.txt", "some.jsonl"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        list(read_documents(tmp_path / name))
    (tmp_path / name).write_bytes(b"\xff\xfe\xfd\n")
    with pytest.raises(InvalidInput, match="is not text in UTF-8"):
        list(read_documents(tmp_path / name))


def test_a_fingerprint_follows_from_the_vocabulary() -> None:
    assert tokenizer_fingerprint(byte_level()) == tokenizer_fingerprint(byte_level())
    assert tokenizer_fingerprint(byte_level()) != tokenizer_fingerprint(sentencepiece())
    longer = byte_level()
    longer.add_tokens(["<new>"])
    assert tokenizer_fingerprint(longer) != tokenizer_fingerprint(byte_level())
