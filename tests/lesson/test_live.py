"""The live race against a server that speaks its protocol: rounds arrive, stop, break off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.trace import parse_trace
from tests.lesson.browser import opened
from tests.lesson.server import Script, serving

pytestmark = pytest.mark.browser

RACE = Path(__file__).parent.parent / "trace/files/good/race.jsonl"
LINES = RACE.read_text(encoding="utf-8").strip().split("\n")
ROUNDS_BY = [sum('"event":"round"' in line for line in LINES[:n]) for n in range(len(LINES) + 1)]
"""How many rounds the first n lines hold."""


@pytest.fixture
def script() -> Iterator[Script]:
    found = Script(list(LINES))
    yield found
    found.go.set()


@pytest.fixture
def page(browser: Any, script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # A connection that breaks is what some of these tests are about.
    monkeypatch.setattr("tests.lesson.browser.EXPECTED", ("Failed to load resource",))
    with serving(script) as address, opened(browser, address, offline=False) as found:
        # The page gives a server one second, which a busy machine may exceed.
        while not answered(found):
            found.reload()
        yield found


def answered(page: Any) -> bool:
    """Whether the server told in time what it has."""
    page.wait_for_function("() => document.querySelector('lesson-race').live.state !== 'asking'")
    return bool(page.locator("#live-prompt").count())


def shown_rounds(page: Any) -> int:
    """The rounds of both lanes that are on the screen."""
    passes = page.locator('lesson-race .lane [data-value="target passes"]').all_inner_texts()
    return sum(map(int, passes))


def arrived(page: Any, count: int) -> None:
    """Wait until as many rounds are shown while the run goes on."""
    page.wait_for_function(
        """(count) => document.querySelector("[data-running]") !== null && count ===
          [...document.querySelectorAll("lesson-race .lane [data-value='target passes']")]
            .reduce((total, figure) => total + Number(figure.textContent), 0)""",
        arg=count,
    )


def start(page: Any) -> None:
    page.locator("lesson-race").get_by_role("button", name="Run").click()


def finished(page: Any) -> None:
    page.get_by_role("button", name="Run").wait_for()


def test_what_is_asked_of_the_server(page: Any, script: Script) -> None:
    page.locator("#live-prompt").fill("Count to six.")
    page.locator("#live-drafter").select_option("model")
    page.locator("#live-k").select_option("7")
    page.locator("#live-rule").select_option("typical")
    page.locator("#live-temperature").fill("5")
    page.locator("#live-seed").fill("3")
    page.locator("#live-tokens").fill("100")
    start(page)
    finished(page)
    assert script.asked == [
        {
            "prompt": "Count to six.",
            "drafter": "model",
            "num_draft_tokens": 7,
            "temperature": 2,
            "seed": 3,
            "max_tokens": 100,
            "verifier": "typical",
        }
    ]


def test_rounds_arrive_before_the_end(page: Any, script: Script) -> None:
    script.pause_after = 4
    start(page)
    arrived(page, ROUNDS_BY[4])
    assert shown_rounds(page) == ROUNDS_BY[4]
    script.go.set()
    finished(page)
    assert shown_rounds(page) == ROUNDS_BY[-1]
    assert "The two texts are the same" in page.locator("lesson-race [data-verdict]").inner_text()


def test_stop_keeps_what_came(page: Any, script: Script) -> None:
    script.pause_after = 5
    script.lines += [LINES[-1]] * 20_000  # so much that the server notices that nobody reads
    start(page)
    arrived(page, ROUNDS_BY[5])
    page.get_by_role("button", name="Stop").click()
    message = page.locator("[data-live-message]")
    message.wait_for()
    assert "Stopped. What came until then is kept." in message.inner_text()
    assert shown_rounds(page) == ROUNDS_BY[5]
    script.go.set()
    assert script.left_early.wait(60)
    # The page is ready for another run.
    script.lines, script.pause_after = list(LINES), None
    start(page)
    finished(page)
    assert shown_rounds(page) == ROUNDS_BY[-1]


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_a_server_that_goes_away_midway(page: Any, script: Script, cut: int) -> None:
    script.cut_after = cut
    start(page)
    message = page.locator("[data-live-message]")
    message.wait_for()
    assert "What came until then is kept." in message.inner_text()
    assert shown_rounds(page) == ROUNDS_BY[cut]


def test_what_is_no_trace_is_said(page: Any, script: Script) -> None:
    script.lines = [LINES[0], '{"event":"surprise"}']
    start(page)
    message = page.locator("[data-live-message]")
    message.wait_for()
    assert "line 2" in message.inner_text()


def test_a_saved_run_is_a_trace_and_replays_alike(page: Any, tmp_path: Path) -> None:
    start(page)
    finished(page)
    live = page.locator("lesson-race .lanes").inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save trace").click()
    file = tmp_path / "race.jsonl"
    download.value.save_as(file)
    assert file.read_text(encoding="utf-8").strip().split("\n") == LINES
    assert set(parse_trace(file.read_text(encoding="utf-8")).lanes) == {"plain", "speculative"}
    page.locator("#race-trace").select_option("copy")
    assert page.locator("lesson-race .lanes").inner_text() != live
    page.locator("#race-file").set_input_files(file)
    page.locator("#race-trace option", has_text="race.jsonl").wait_for(state="attached")
    assert page.locator("lesson-race .lanes").inner_text() == live
