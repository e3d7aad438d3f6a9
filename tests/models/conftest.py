import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own, so that no test sees or changes the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PACELINE_CACHE", str(folder))
    monkeypatch.delenv("PACELINE_MODELS", raising=False)
    return folder
