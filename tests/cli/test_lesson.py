import webbrowser

import pytest

from paceline.lesson import build_lesson


@pytest.fixture
def opened(monkeypatch):
    """The addresses that a browser was asked to open; there is one, which opens them."""
    addresses = []
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or True)
    return addresses


def test_it_opens_the_page_from_disk(run, opened, tmp_path):
    result = run("lesson")
    assert result.exit_code == 0, result.output
    file = tmp_path / "cache" / "lesson.html"
    assert opened == [file.as_uri()]
    assert file.read_text(encoding="utf-8") == build_lesson()
    assert f"written: {file}" in result.stderr


def test_a_second_time_it_writes_the_page_anew(run, opened, tmp_path):
    run("lesson")
    file = tmp_path / "cache" / "lesson.html"
    file.write_text("of an older version")
    assert run("lesson").exit_code == 0
    assert file.read_text(encoding="utf-8") == build_lesson()


def test_a_file_is_only_written(run, opened, tmp_path):
    file = tmp_path / "page.html"
    result = run("lesson", "--html", file)
    assert result.exit_code == 0, result.output
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert opened == []
    assert not (tmp_path / "cache").exists()


def test_without_a_browser_it_says_where_the_page_is(run, monkeypatch, tmp_path):
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    result = run("lesson")
    assert result.exit_code == 0
    assert "no browser was found here" in result.stderr
    assert str(tmp_path / "cache" / "lesson.html") in " ".join(result.stderr.split())


@pytest.mark.parametrize("name", [".", "none/page.html"])
def test_a_file_that_cannot_be_written(run, opened, tmp_path, name):
    result = run("lesson", "--html", tmp_path / name)
    assert result.exit_code == 2
    assert "--html: cannot write" in result.stderr
    assert opened == []


def test_a_cache_that_cannot_be_made(run, opened, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    result = run("lesson")
    assert result.exit_code == 2
    assert "name a file with --html" in " ".join(result.stderr.split())
    assert opened == []
