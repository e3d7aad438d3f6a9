"""The page in a browser, served by Paceline's own server: a race of a real, tiny model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import paceline
from paceline.server.app import make_app
from paceline.server.settings import Settings
from paceline.targets.cached import CachedTarget
from tests.lesson.browser import opened
from tests.tiny_folders import model, tokenizer

pytestmark = pytest.mark.browser

PROMPT = "the stop the END the stop the"


class Served:
    """A server of its own on a free port, until it is stopped."""

    def __init__(self, language_model: Any) -> None:
        app = make_app(language_model, Settings(name="tiny"))
        self.engine = app.state.service.engine
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}/lesson"

    def stop(self) -> None:
        """As Ctrl-C twice does: connections are dropped."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()


@contextmanager
def race(browser: Any, served: Served, **fields: str) -> Iterator[Any]:
    """The page with its form filled in, and the run begun."""
    with opened(browser, served.address, offline=False) as page:
        page.wait_for_selector("#live-prompt")
        page.locator("#live-prompt").fill(PROMPT)
        for name, value in fields.items():
            page.locator(f"#live-{name}").fill(value)
            page.locator(f"#live-{name}").press("Tab")
        page.locator("lesson-race").get_by_role("button", name="Run").click()
        yield page


def ended(page: Any) -> None:
    page.locator("lesson-race").get_by_role("button", name="Run").wait_for()


@pytest.fixture
def served() -> Iterator[Served]:
    words = tokenizer()
    found = Served(paceline.load(model(eos_token_id=words.eos_token_id), words))
    yield found
    found.stop()


def test_a_race_runs_and_is_saved_as_a_trace(browser: Any, served: Served, tmp_path: Path) -> None:
    with race(browser, served, tokens="24") as page:
        ended(page)
        verdict = page.locator("lesson-race [data-verdict]").inner_text()
        assert "for 24 tokens" in verdict
        assert "The two texts are the same, token by token." in verdict
        with page.expect_download() as download:
            page.get_by_role("button", name="Save").click()
        path = tmp_path / "race.jsonl"
        download.value.save_as(path)
    trace = paceline.read_trace(path)
    assert trace.prompt == PROMPT
    plain, fast = trace.lanes.values()
    assert plain.tokens == fast.tokens
    assert len(plain.tokens) == 24


def test_stop_ends_the_run_on_the_server_too(
    browser: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = CachedTarget.score

    def slow(target: CachedTarget, work: Any) -> Any:
        time.sleep(0.02)  # or the run might end before anyone can stop it
        return quick(target, work)

    monkeypatch.setattr(CachedTarget, "score", slow)
    with race(browser, served, tokens="256") as page:
        page.locator("lesson-race").get_by_role("button", name="Stop").click()
        ended(page)
        deadline = time.monotonic() + 60
        while served.engine.num_open and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not served.engine.num_open
