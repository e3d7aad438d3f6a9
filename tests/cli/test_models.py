import json

import pytest

from paceline.cli import models
from paceline.models.conversion import CONVERTER
from paceline.models.known import KNOWN


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_MODELS", str(tmp_path))
    return tmp_path


def listed(run):
    return {item["name"]: item for item in json.loads(run("models", "--json").stdout)["models"]}


def test_every_known_model_is_listed(run, folder):
    found = listed(run)
    assert list(found) == list(KNOWN)
    for name, model in KNOWN.items():
        assert found[name]["size_bytes"] == model.size_bytes
        assert found[name]["licence"] == model.licence
    shown = run("models").stdout
    assert all(name in shown for name in KNOWN)
    assert str(folder) in shown.replace("\n", "")


def test_a_model_is_downloaded_where_the_whole_file_is_there(run, folder):
    path = folder / "smollm2-135m.gguf"
    with path.open("wb") as file:
        file.truncate(KNOWN["smollm2-135m"].size_bytes)
    found = listed(run)
    assert found["smollm2-135m"]["downloaded"] is True
    assert found["smollm2-135m"]["path"] == str(path)
    others = [item for name, item in found.items() if name != "smollm2-135m"]
    assert not any(item["downloaded"] or item["path"] for item in others)
    with path.open("wb") as file:
        file.truncate(1000)
    assert listed(run)["smollm2-135m"]["downloaded"] is False


def test_fetch_tells_progress_and_prints_where_the_model_lies(run, folder, monkeypatch):
    def fetch(name, progress):
        progress(0, 98_000_000, f"fetching {name}")
        return folder / f"{name}.gguf"

    monkeypatch.setattr(models, "fetch", fetch)
    result = run("models", "fetch", "smollm2-135m")
    assert result.stdout == f"{folder / 'smollm2-135m.gguf'}\n"
    assert result.stderr == "fetching smollm2-135m (98 MB)\n"
    as_json = run("models", "fetch", "smollm2-135m", "--json")
    path = str(folder / "smollm2-135m.gguf")
    assert json.loads(as_json.stdout) == {"name": "smollm2-135m", "path": path}


def test_an_unknown_model_is_not_fetched(run):
    result = run("models", "fetch", "smollm2-135")
    assert result.exit_code == 2
    assert "unknown model 'smollm2-135'; did you mean 'smollm2-135m'?" in result.stderr


def test_names_are_completed():
    from paceline.cli.options import model_names

    assert model_names() == list(KNOWN)


@pytest.fixture
def kept(tmp_path, monkeypatch, folder):
    """One conversion in use and one of an older version, both of SmolLM2, and one of a stranger."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    known = KNOWN["smollm2-135m"].sha256
    for name, sha256, converter, size in (
        ("new", known, CONVERTER, 3_000_000),
        ("old", known, CONVERTER - 1, 2_000_000),
        ("other", "0" * 64, CONVERTER, 1_000_000),
    ):
        place = tmp_path / "cache" / "converted" / name
        place.mkdir(parents=True)
        manifest = {"source": "a.gguf", "sha256": sha256, "dtype": "float32"}
        text = json.dumps(manifest | {"converter": converter, "files": {}})
        (place / "paceline.json").write_text(text)
        (place / "model.safetensors").write_bytes(b"0" * (size - len(text)))
    return tmp_path / "cache" / "converted"


def test_what_conversions_take_is_said(run, kept):
    found = json.loads(run("models", "--json").stdout)
    sizes = {item["name"]: item["converted_bytes"] for item in found["models"]}
    assert sizes["smollm2-135m"] == 5_000_000
    assert sizes["gemma3-270m"] == 0
    assert (found["converted_bytes"], found["outdated_bytes"]) == (6_000_000, 2_000_000)
    shown = run("models").stdout
    assert "0 MB downloaded" in shown
    assert "6 MB converted" in shown
    assert "2 MB of it was made by another version" in shown


def test_clean_deletes_what_is_not_used(run, kept):
    assert run("models", "clean").stdout == "2 MB freed\n"
    assert sorted(path.name for path in kept.iterdir()) == ["new", "other"]
    assert run("models", "clean").stdout == "nothing to delete\n"
    assert json.loads(run("models", "clean", "--all", "--json").stdout) == {
        "freed_bytes": 4_000_000
    }
    assert list(kept.iterdir()) == []


def test_a_conversion_that_is_damaged_is_not_in_use(run, kept):
    (kept / "new" / "paceline.json").write_text("{")
    run("models", "clean")
    assert [path.name for path in kept.iterdir()] == ["other"]
