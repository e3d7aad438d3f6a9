"""What is said on a terminal while a model loads."""

from __future__ import annotations

import io
from threading import Event
from types import SimpleNamespace

import pytest

from paceline.generate import waiting
from paceline.generate.waiting import told_if_slow
from paceline.models.cache import no_progress


class Terminal(io.StringIO):
    """Standard error as a terminal, which tells when a line has come."""

    def __init__(self) -> None:
        super().__init__()
        self.came = Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        if self.getvalue():
            self.came.set()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    screen = Terminal()
    monkeypatch.setattr(waiting, "sys", SimpleNamespace(stderr=screen))
    return screen


def test_a_slow_load_says_so(screen: Terminal) -> None:
    with told_if_slow("toy", None, after=0.0):
        assert screen.came.wait(60)
    assert screen.getvalue() == "paceline: loading toy ...\n"


def test_a_quick_load_says_nothing(screen: Terminal) -> None:
    with told_if_slow("toy", None, after=3600.0):
        pass
    assert screen.getvalue() == ""


def test_each_slow_step_is_said_once(screen: Terminal) -> None:
    with told_if_slow("toy", None, after=3600.0) as tell:
        for done in (0, 1, 2):
            tell(done, 2, "converting toy")
    assert screen.getvalue() == "paceline: converting toy ...\n"


def test_the_callers_own_is_told_alone(screen: Terminal) -> None:
    calls = []
    with told_if_slow("toy", lambda *told: calls.append(told), after=3600.0) as tell:
        tell(0, 1, "reading")
    assert calls == [(0, 1, "reading")]
    assert screen.getvalue() == ""


def test_without_a_terminal_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with told_if_slow("toy", None, after=0.0) as tell:
        assert tell is no_progress
    assert capsys.readouterr().err == ""
    assert waiting.SLOW_S > 0
