"""The page as a whole: without a network, without scripts, served, and against hostile input."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.lesson.browser import opened
from tests.lesson.server import serving

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parent.parent.parent
INDEX = files("paceline.lesson").joinpath("page/index.html").read_text(encoding="utf-8")
WIDGETS = [
    "race",
    "stepper",
    "order",
    "lab",
    "gain",
    "diagrams",
    "planner",
    "workloads",
    "rounds",
    "quiz",
]
GOOD = ROOT / "tests/trace/files/good"


def test_every_widget_works_from_disk_without_a_network(page: Any) -> None:
    assert page.url.startswith("file://")
    for name in WIDGETS:
        widget = page.locator(f"lesson-{name}")
        assert widget.locator(".panel").count() >= 1, name
        assert widget.locator("ol.static:visible").count() == 0, name


def test_the_served_page_asks_only_its_own_server(browser: Any) -> None:
    with serving() as address, opened(browser, "about:blank", offline=False) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.locator("lesson-gain").get_by_role("button", name="Useless draft").click()
        page.locator("lesson-lab").get_by_role("button", name="Draw 200,000").click()
        origin = address.removesuffix("/lesson")
        own = [url for url in asked if not url.startswith(("data:", "blob:"))]
        assert len(own) > 15
        assert all(url.startswith(f"{origin}/lesson") for url in own)
        for name in WIDGETS:
            assert page.locator(f"lesson-{name} .panel").count() >= 1, name
        # Without a server for live rounds, the page says how to start one.
        page.wait_for_selector("text=Live rounds need Paceline running", state="attached")


# A browser writes a line of its own on a 404; the page's own complaints are what counts.
@pytest.fixture(autouse=True)
def _a_missing_info_is_no_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.lesson.browser.EXPECTED", ("Failed to load resource",))


def test_without_scripts_all_is_there(open_page: Callable[..., Any]) -> None:
    page = open_page(java_script_enabled=False)
    assert page.locator("lesson-quiz details").count() == 20
    assert page.locator("lesson-order details li").count() == 5
    for details in page.locator("lesson-quiz details summary").all()[:2]:
        details.click()
    assert page.get_by_text("A poor draft costs speed.").is_visible()
    for name in ("lab", "gain", "planner", "rounds", "diagrams"):
        assert page.locator(f"lesson-{name} svg").first.is_visible(), name
    assert page.locator("lesson-race .stream").count() == 2
    text = page.locator("main").inner_text()
    for number in ("1.77", "2.8013", "80,087", "2.801", ".857", ".928", ".741"):
        assert number in text, number
    assert page.locator("button:visible, input:visible, select:visible").count() == 0


def test_the_default_figures_are_those_of_the_widgets(browser: Any) -> None:
    sys.path.insert(0, str(ROOT))
    from scripts import lesson_figures

    def comparable(text: str) -> str:
        return re.sub(r"\s+", " ", text)

    figures = lesson_figures.drawn(browser)
    assert comparable(lesson_figures.filled(INDEX, figures)) == comparable(INDEX), (
        "run python scripts/lesson_figures.py"
    )


def test_the_page_carries_the_benchmarks_files() -> None:
    for name in ("replay.json", "plan_costs.json"):
        carried = files("paceline.lesson").joinpath(f"page/data/{name}").read_text()
        assert json.loads(carried) == json.loads((ROOT / "benchmarks/results" / name).read_text())


def hash_of(page: Any) -> str:
    page.wait_for_timeout(400)  # the address follows the controls after a fifth of a second
    return page.evaluate("location.hash.slice(1)")


def test_settings_go_round_through_the_address(open_page: Callable[..., Any]) -> None:
    page = open_page(fragment="gain")
    assert hash_of(page) == "gain"
    page.locator("#gain-k + .typed input").fill("8")
    page.locator("#gain-c + .typed input").fill("0.128")
    page.locator("#lab-rule").select_option("lenience .5")
    page.locator("#lab-p-0 + .typed input").fill("0.7")
    page.locator("#planner-batch + .typed input").fill("64")
    page.locator("#race-trace").select_option("copy")
    page.locator("#rounds-trace").select_option("prose")
    kept = hash_of(page)
    other = open_page(fragment=kept)
    for selector in ("#gain-k", "#gain-c + .typed input", "#lab-rule", "#lab-p-0", "#lab-p-1"):
        expected = page.locator(selector).input_value()
        assert other.locator(selector).input_value() == expected, selector
    for name in ("gain", "lab", "planner", "race", "rounds"):
        one, two = (
            each.locator(f"lesson-{name} [data-verdict]").text_content() for each in (page, other)
        )
        assert one == two, name
    assert hash_of(other) == kept
    # A link of the contents moves, and loses nothing.
    other.locator("nav a", has_text="Quiz").click()
    assert hash_of(other).startswith("quiz&")
    assert other.locator("#gain-k").input_value() == "8"


@pytest.mark.parametrize(
    "fragment",
    [
        "gain&gain.k=999&gain.a=NaN&gain.c=-1&gain.v=1e9",
        "gain&gain.k=&gain.constructor=1&gain.__proto__=1&constructor.k=1&__proto__.k=1",
        "lab&lab.p=1_2_3&lab.q=0.5_0.5&lab.rule=%3Cimg%20src=x%3E",
        "lab&lab.p=NaN_0_1&lab.q=1e400_0_0",
        "<img src=x onerror=alert(1)>&race.trace=../../etc/passwd&race.speed=0",
        "%E0%A4%A&gain.k=%E0%A4%A",
        "&".join(["gain.k=3"] * 5000),
    ],
)
def test_hostile_fragments_are_ignored(open_page: Callable[..., Any], fragment: str) -> None:
    page = open_page(fragment=fragment)
    assert page.locator("main img").count() == 0
    assert page.locator("#gain-a").input_value() == "70"
    assert page.locator("#gain-c").input_value() == "0.13"
    assert page.locator('lesson-lab [data-value="kept"]').inner_text() == "0.8000"


EVIL = '<img src=x onerror="window.hurt=1">'


def evil_trace() -> str:
    lines = [
        json.loads(line) for line in (GOOD / "race.jsonl").read_text("utf-8").strip().split("\n")
    ]
    lines[0] |= {"prompt": EVIL, "model": EVIL}
    lines[0]["lanes"] = {
        name: {**about, "drafter": EVIL, "promise": EVIL}
        for name, about in lines[0]["lanes"].items()
    }
    for line in lines:
        line.pop("text", None)
        if "pieces" in line:
            line["pieces"] = [EVIL for _ in line["pieces"]]
        if line.get("draft", {}).get("pieces"):
            line["draft"]["pieces"] = [EVIL for _ in line["draft"]["pieces"]]
    return "\n".join(map(json.dumps, lines))


def given(name: str, text: str) -> Any:
    return {"name": name, "mimeType": "application/json", "buffer": text.encode()}


def test_markup_in_files_is_text(page: Any) -> None:
    page.locator("#race-file").set_input_files(given(f"{EVIL}.jsonl", evil_trace()))
    page.locator("#race-trace option", has_text=EVIL).wait_for(state="attached")
    page.locator("#rounds-trace").select_option(label="the run shown in the race")
    report = json.loads(files("paceline.lesson").joinpath("page/data/replay.json").read_text())
    report["model"] = EVIL
    report["methods"][0]["name"] = EVIL
    report["methods"][0]["categories"] = {EVIL: report["methods"][0]["categories"]["qa"]}
    page.locator("#workloads-file").set_input_files(given("evil.json", json.dumps(report)))
    page.locator("lesson-workloads [data-message]").wait_for()
    page.locator("#race-file").set_input_files(given(f"{EVIL}.jsonl", EVIL))
    page.locator("lesson-race [data-error]").wait_for()
    for name in ("race", "workloads"):
        assert EVIL in page.locator(f"lesson-{name}").text_content()
    assert EVIL.replace(" ", "␣") in page.locator("lesson-rounds").text_content()
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hurt") is None


def test_messages_to_a_screen_reader_keep_their_distance(page: Any) -> None:
    page.evaluate(
        """() => {
          window.told = [];
          new MutationObserver(() => window.told.push(performance.now()))
            .observe(document.getElementById("live"), { childList: true, characterData: true });
        }"""
    )
    page.locator("#gain-a").focus()
    for _ in range(25):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(100)
    page.wait_for_timeout(2200)
    told = page.evaluate("window.told")
    assert told
    assert all(later - earlier >= 1990 for earlier, later in itertools.pairwise(told))
    # The last state is what was said last.
    live = page.locator("#live").text_content()
    assert live == page.locator("lesson-gain [data-verdict]").inner_text()
