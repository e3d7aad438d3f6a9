"""Tuned settings on disk: found by name, written whole, refused where they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.drafting.tuned import read_tuned, tuned_file, write_tuned
from paceline.errors import InvalidInput


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "one.json"
    assert read_tuned(file) is None
    write_tuned(file, {"mlp": [1, 2]})
    write_tuned(file, {"mlp": [3]})
    assert read_tuned(file) == {"mlp": [3]}
    assert [path.name for path in file.parent.iterdir()] == ["one.json"]


@pytest.mark.parametrize("name", ["org/model", "../../up", "a b", "", ".hidden"])
def test_a_file_lies_in_the_cache_whatever_the_model_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    file = tuned_file("layer-skip", name)
    assert file.resolve().parent == (tmp_path / "tuned" / "layer-skip").resolve()


@pytest.mark.parametrize("text", ["[1]", "{", "3"])
def test_damaged_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidInput, match="tune again"):
        read_tuned(tmp_path / "x.json")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write"):
        write_tuned(tmp_path / "file" / "x.json", {})
