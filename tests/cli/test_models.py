import json

import pytest

from paceline.cli import models
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
