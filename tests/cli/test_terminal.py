import io
import sys

import pytest
from rich.console import Console

from paceline.cli import terminal


def test_control_characters_do_not_reach_the_terminal():
    every = "".join(map(chr, range(0x100)))
    shown = terminal.printable(every)
    assert [c for c in shown if ord(c) < 32 or 0x7F <= ord(c) < 0xA0] == ["\t", "\n"]
    assert len(shown) == 0x100 - (32 + 33 - 2)


def test_an_error_stays_on_one_line_however_long(capsys):
    terminal.error("word " * 100)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_progress_without_a_terminal_is_a_line_for_each_step(capsys):
    with terminal.progress("loading a") as tell:
        tell(0, 98_000_000, "fetching a")
        tell(50_000_000, 98_000_000, "fetching a")
        tell(0, 0, "reading a")
        tell(0, 0, "reading a")
    captured = capsys.readouterr()
    assert captured.err == "fetching a (98 MB)\nreading a\n"
    assert captured.out == ""


@pytest.fixture
def screen(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(terminal, "err", lambda: console)
    return screen


def test_progress_on_a_terminal_is_a_bar_that_goes_away(screen):
    with terminal.progress("loading a") as tell:
        tell(1_000_000, 4_000_000, "fetching a")
    shown = screen.getvalue()
    assert "loading a" in shown
    assert "fetching a" in shown
    assert "1.0/4.0 MB" in shown
    assert shown.endswith("\x1b[2K")  # the lines are wiped


def test_the_bar_of_a_step_that_is_over_is_gone(screen):
    with terminal.progress("loading a") as tell:
        tell(1_000_000, 4_000_000, "fetching a")
        tell(4_000_000, 4_000_000, "fetching a")
    assert "fetching a" not in screen.getvalue()


def test_json_is_one_line_that_keeps_its_letters(capsys):
    terminal.print_json({"text": "né\n你"})
    assert capsys.readouterr().out == '{"text": "né\\n你"}\n'


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"force_terminal": True, "color_system": "standard", "_environ": {}}, True),
        ({"force_terminal": True, "color_system": None, "_environ": {}}, False),
        ({"force_terminal": True, "color_system": "standard", "no_color": True}, False),
        ({"force_terminal": False, "color_system": "standard", "_environ": {}}, False),
    ],
)
def test_whether_colours_reach_the_reader(settings, expected):
    assert terminal.has_colour(Console(file=io.StringIO(), **settings)) is expected


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not terminal.has_colour(terminal.out())


def test_consoles_follow_the_streams(monkeypatch):
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", first)
    terminal.out().print("one")
    monkeypatch.setattr(sys, "stdout", second)
    terminal.out().print("two")
    assert (first.getvalue(), second.getvalue()) == ("one\n", "two\n")
